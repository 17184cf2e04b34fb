/* SPDX-License-Identifier: Apache-2.0
 * One attempt: all ranks are started, waited for, and stopped together when one of them fails or a signal says so. A
 * rank has a process group of its own, which ends with it: what it started does not outlive it. */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TERM_S 2.0   /* from SIGTERM to SIGKILL */
#define SETTLE_S 2.0 /* for processes to be gone that were killed */
enum { PIPE_BYTES = 64 * 1024 /* a pipe holds */ };

enum stage { RUNNING, GRACE, TERMINATED, KILLED };

struct rank {
  pid_t pid;  /* 0: was not started */
  int handle; /* of the process; -1: the kernel has none */
  int is_running;
  double started_s;
  int left_bytes; /* at most, of what it wrote before it ended */
  struct stream stream;
};

struct attempt {
  const struct start *start;
  struct rank *ranks;
  int count;
  int running;
  int ends; /* an epoll set of the ranks' handles, which become ready when they end */
  enum stage stage;
  double deadline_s; /* of the stage */
  int signal;        /* the first that was passed on */
  int interrupts;
  int is_any_bad;
  int failed; /* the rank that failed first, by itself; -1: none */
  int code;
  char how[128];   /* it ended */
  long lines_then; /* of all ranks, when it was told */
};

static const char *signal_name(int number, char *text, size_t size) {
  static const struct {
    int number;
    const char *name;
  } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
               {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
               {SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},
               {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"},
               {SIGSYS, "SIGSYS"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (names[i].number == number) return names[i].name;
  snprintf(text, size, "signal %d", number);
  return text;
}

static void signal_ranks(const struct attempt *attempt, int number) {
  for (int i = 0; i < attempt->count; ++i)
    if (attempt->ranks[i].is_running) kill(-attempt->ranks[i].pid, number);
}

static void enter(struct attempt *attempt, enum stage stage) {
  attempt->stage = stage;
  if (stage == GRACE) attempt->deadline_s = now_s() + attempt->start->options->grace_s;
  if (stage == TERMINATED) attempt->deadline_s = now_s() + TERM_S;
  if (stage == TERMINATED) signal_ranks(attempt, SIGTERM);
  if (stage == TERMINATED) signal_ranks(attempt, SIGCONT); /* what is stopped sees no SIGTERM */
  if (stage == KILLED) signal_ranks(attempt, SIGKILL);
  if (stage == KILLED) attempt->deadline_s = INFINITY;
}

static const char *plural(int count) { return count == 1 ? "" : "s"; }

static void enforce_deadline(struct attempt *attempt) {
  if (attempt->running == 0 || now_s() < attempt->deadline_s) return;
  const int is_grace = attempt->stage == GRACE;
  say("%d rank%s did not end within %g s%s: %s", attempt->running, plural(attempt->running),
      is_grace ? attempt->start->options->grace_s : TERM_S, is_grace ? "" : " of SIGTERM",
      is_grace ? "SIGTERM" : "SIGKILL");
  enter(attempt, is_grace ? TERMINATED : KILLED);
}

static void fail(struct attempt *attempt, int index, const siginfo_t *info) {
  const struct rank *rank = &attempt->ranks[index];
  char text[32], others[64] = "";
  const int is_exit = info->si_code == CLD_EXITED;
  const double after_s = now_s() - rank->started_s;
  attempt->failed = index;
  attempt->code = is_exit ? info->si_status : 128 + info->si_status;
  if (is_exit) {
    snprintf(attempt->how, sizeof attempt->how, "rank %d (pid %d) exited with code %d after %.1f s", index,
             (int)rank->pid, info->si_status, after_s);
  } else {
    snprintf(attempt->how, sizeof attempt->how, "rank %d (pid %d) was killed by %s after %.1f s", index, (int)rank->pid,
             signal_name(info->si_status, text, sizeof text), after_s);
  }
  if (attempt->running > 0)
    snprintf(others, sizeof others, "; stopping %d other rank%s", attempt->running, plural(attempt->running));
  say("%s%s", attempt->how, others);
  attempt->lines_then = output_lines();
  enter(attempt, GRACE);
}

/* Reads what a rank that has ended left in its pipe. Others may hold that open, or even write to it for ever. */
static void drain(struct rank *rank) {
  while (rank->stream.fd >= 0 && output_takes()) {
    const int got = stream_read(&rank->stream);
    if (got > 0) rank->left_bytes -= got;
    if (got <= 0 || rank->left_bytes <= 0) stream_close(&rank->stream);
  }
}

/* Its process group goes first: as long as the rank is not reaped, that number cannot be another's. */
static void end_rank(struct attempt *attempt, int index) {
  struct rank *rank = &attempt->ranks[index];
  siginfo_t info;
  waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOWAIT);
  kill(-rank->pid, SIGKILL);
  attempt->start->kept->groups[index] = 0;
  waitpid(rank->pid, NULL, 0);
  if (rank->handle >= 0) close(rank->handle);
  rank->is_running = 0;
  --attempt->running;
  rank->left_bytes = PIPE_BYTES;
  drain(rank);
  if (info.si_code == CLD_EXITED && info.si_status == 0) return;
  attempt->is_any_bad = 1;
  if (attempt->stage == RUNNING) fail(attempt, index, &info);
}

static int find_rank(const struct attempt *attempt, pid_t pid) {
  for (int i = 0; i < attempt->count; ++i)
    if (attempt->ranks[i].is_running && attempt->ranks[i].pid == pid) return i;
  return -1;
}

/* The first failure is the one to tell, but waitid knows no order among those that have ended. An epoll set does: it
 * gives what became ready first. */
static void reap(struct attempt *attempt) {
  for (;;) {
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    struct epoll_event first = {.data.fd = find_rank(attempt, info.si_pid)};
    if (first.data.fd < 0) {
      waitpid(info.si_pid, NULL, 0);
      continue;
    }
    epoll_wait(attempt->ends, &first, 1, 0);
    end_rank(attempt, first.data.fd);
  }
}

static void take_signal(struct attempt *attempt, int number) {
  char text[32];
  if (number == SIGCHLD) {
    reap(attempt);
  } else if (number == SIGTSTP) {
    signal_ranks(attempt, SIGTSTP);
    kill(getpid(), SIGSTOP); /* comes back with SIGCONT, which is passed on */
  } else if (number == SIGCONT || number == SIGUSR1 || number == SIGUSR2) {
    signal_ranks(attempt, number);
  } else if (number == SIGINT && ++attempt->interrupts > 1) {
    say("a second SIGINT: killing %d rank%s", attempt->running, plural(attempt->running));
    enter(attempt, KILLED);
  } else {
    say("passing %s on to %d rank%s", signal_name(number, text, sizeof text), attempt->running,
        plural(attempt->running));
    signal_ranks(attempt, number);
    if (attempt->signal == 0) attempt->signal = number;
    if (attempt->stage == RUNNING) enter(attempt, GRACE);
  }
}

static void take_signals(struct attempt *attempt, int signals) {
  struct signalfd_siginfo info;
  while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) take_signal(attempt, (int)info.ssi_signo);
}

static void read_streams(struct attempt *attempt) {
  for (int i = 0; i < attempt->count; ++i) {
    struct rank *rank = &attempt->ranks[i];
    if (!rank->is_running) {
      drain(rank);
    } else if (rank->stream.fd >= 0 && output_takes() && stream_read(&rank->stream) < 0) {
      stream_close(&rank->stream);
    }
  }
}

/* Returns whether there is still something to wait for. */
static int wait_for_event(struct attempt *attempt, int signals, struct pollfd *fds) {
  double until_s = fmin(attempt->running ? attempt->deadline_s : INFINITY, output_deadline_s());
  const int takes = output_takes();
  int is_open = 0;
  for (int i = 0; i < attempt->count; ++i) {
    const struct rank *rank = &attempt->ranks[i];
    fds[2 + i] = (struct pollfd){.fd = takes ? rank->stream.fd : -1, .events = POLLIN};
    is_open |= rank->stream.fd >= 0;
    if (takes && rank->stream.fd >= 0 && !rank->is_running) until_s = 0;
  }
  if (attempt->running == 0 && !is_open) return 0;
  fds[0] = (struct pollfd){.fd = signals, .events = POLLIN};
  fds[1] = (struct pollfd){.fd = output_poll_fd(), .events = POLLOUT};
  const double wait_ms = ceil(1000 * fmax(until_s - now_s(), 0));
  poll(fds, 2 + (nfds_t)attempt->count, wait_ms < 1e6 ? (int)wait_ms : -1);
  return 1;
}

/* What was killed in the ranks' groups is our child by now, if its parent has ended (we are a subreaper). */
static void settle(struct attempt *attempt) {
  const double until_s = now_s() + SETTLE_S;
  for (int i = 0; i < attempt->count; ++i)
    while (attempt->ranks[i].pid && kill(-attempt->ranks[i].pid, 0) == 0 && now_s() < until_s) {
      nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
      reap(attempt);
    }
}

static void start_ranks(struct attempt *attempt) {
  for (int i = 0; i < attempt->count; ++i) attempt->ranks[i].stream.fd = -1;
  for (int i = 0; i < attempt->count && attempt->code == 0; ++i) {
    struct rank *rank = &attempt->ranks[i];
    rank->stream.rank = i;
    attempt->code = start_rank(attempt->start, i, &rank->pid, &rank->stream.fd);
    rank->started_s = now_s();
    rank->is_running = rank->pid != 0;
    attempt->running += rank->is_running;
    rank->handle = rank->pid ? (int)syscall(SYS_pidfd_open, rank->pid, 0) : -1;
    struct epoll_event end = {.events = EPOLLIN, .data.fd = i};
    if (rank->handle >= 0) epoll_ctl(attempt->ends, EPOLL_CTL_ADD, rank->handle, &end);
  }
  if (attempt->code != 0) enter(attempt, KILLED);
}

/* What was told when it happened is repeated where other ranks' lines came after it: the first error is read last. */
static void repeat_failure(const struct attempt *attempt) {
  const struct stream *stream = &attempt->ranks[attempt->failed].stream;
  if (stream_is_last(stream) && output_lines() == attempt->lines_then) return;
  const int kept = stream_kept(stream);
  say("the first failure: %s%s", attempt->how, kept ? "; its last lines were:" : "");
  stream_repeat(stream);
}

struct result run_attempt(const struct start *start, int signals) {
  struct attempt attempt = {.start = start, .count = start->options->ranks, .failed = -1, .deadline_s = INFINITY};
  attempt.ends = epoll_create1(EPOLL_CLOEXEC);
  attempt.ranks = calloc((size_t)attempt.count, sizeof *attempt.ranks);
  struct pollfd *fds = calloc(2 + (size_t)attempt.count, sizeof *fds);
  if (!attempt.ranks || !fds) {
    say("no memory for %d ranks", attempt.count);
    attempt.code = 126;
  } else {
    start_ranks(&attempt);
    while (wait_for_event(&attempt, signals, fds)) {
      take_signals(&attempt, signals);
      output_write();
      read_streams(&attempt);
      enforce_deadline(&attempt);
    }
    settle(&attempt);
    if (attempt.failed >= 0) repeat_failure(&attempt);
  }
  close(attempt.ends);
  free(attempt.ranks);
  free(fds);
  struct result result = {attempt.code, attempt.failed >= 0 && attempt.signal == 0};
  if (result.code == 0 && attempt.signal && attempt.is_any_bad) result.code = 128 + attempt.signal;
  return result;
}
