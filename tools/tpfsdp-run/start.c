/* SPDX-License-Identifier: Apache-2.0
 * How a rank starts: its environment, its descriptors, its signals, its process group. */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

static sigset_t mask_before;
static struct sigaction pipe_before;

int signals_open(void) {
  const int wanted[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2};
  sigset_t read_here;
  sigemptyset(&read_here);
  /* Inherited as ignored, no end of a child would be told. */
  sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
  sigaddset(&read_here, SIGCHLD);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    struct sigaction now;
    /* nohup, and a shell's background jobs, have some ignored: they stay so for us and for the ranks. */
    if (sigaction(wanted[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&read_here, wanted[i]);
  }
  sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &pipe_before);
  sigprocmask(SIG_BLOCK, &read_here, &mask_before);
  return signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static void set_environment(const struct start *start, int rank) {
  char store[sizeof start->kept->directory + 8];
  snprintf(store, sizeof store, "file:%s", start->kept->directory);
  set_number("RANK", rank);
  set_number("WORLD_SIZE", start->options->ranks);
  set_number("LOCAL_RANK", rank);
  set_number("LOCAL_WORLD_SIZE", start->options->ranks);
  set_number("TPFSDP_RESTART_COUNT", start->restart);
  setenv("TPFSDP_RUN_ID", start->run_id, 1);
  setenv("TPFSDP_STORE", store, 1);
}

/* In the child. */
_Noreturn static void become_rank(const struct start *start, int rank, pid_t parent, int error_fd, int failure_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  start->kept->groups[rank] = getpid();
  /* One reader of the standard input, as several would share its bytes at random; none of a terminal, since that
   * stops what is not in its foreground process group. */
  if (rank > 0 || isatty(STDIN_FILENO)) {
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  }
  dup2(error_fd, STDERR_FILENO);
  set_environment(start, rank);
  sigaction(SIGPIPE, &pipe_before, NULL);
  sigprocmask(SIG_SETMASK, &mask_before, NULL);
  execvp(start->options->program[0], start->options->program);
  const int why = errno;
  _exit(write(failure_fd, &why, sizeof why) == sizeof why ? 127 : 126);
}

int start_rank(const struct start *start, int rank, pid_t *pid, int *error_fd) {
  int error_pipe[2] = {-1, -1}, failure_pipe[2] = {-1, -1};
  const pid_t parent = getpid();
  int why = 0;
  *pid = 0;
  if (pipe2(error_pipe, O_CLOEXEC) != 0 || pipe2(failure_pipe, O_CLOEXEC) != 0 || (*pid = fork()) < 0) why = errno;
  if (why) {
    say("cannot start rank %d: %s", rank, strerror(why));
    *pid = 0;
  } else if (*pid == 0) {
    become_rank(start, rank, parent, error_pipe[1], failure_pipe[1]);
  }
  if (error_pipe[1] >= 0) close(error_pipe[1]);
  if (failure_pipe[1] >= 0) close(failure_pipe[1]);
  if (!why) {
    /* It ends without a word when the program has taken the child's place. */
    ssize_t got;
    while ((got = read(failure_pipe[0], &why, sizeof why)) < 0 && errno == EINTR) continue;
    if (got == sizeof why) say("cannot start \"%s\": %s", start->options->program[0], strerror(why));
  }
  if (failure_pipe[0] >= 0) close(failure_pipe[0]);
  fcntl(error_pipe[0], F_SETFL, O_NONBLOCK);
  *error_fd = error_pipe[0];
  return why == 0 ? 0 : why == ENOENT && *pid ? 127 : 126;
}
