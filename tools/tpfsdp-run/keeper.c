/* SPDX-License-Identifier: Apache-2.0
 * The keeper is a process that waits for the end of this program, which it sees at a pipe, and then kills what is left
 * of the ranks and removes the private directory. A SIGKILL leaves us no time to do so; the keeper has a process
 * group of its own, where neither the terminal nor a kill of our group reaches it. */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int make_directory(struct kept *kept) {
  const char *const places[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
  const char *place = NULL;
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    place = places[i];
    if (!place || *place != '/') continue;
    const int size = snprintf(kept->directory, sizeof kept->directory, "%s/tpfsdp-XXXXXX", place);
    if (size < (int)sizeof kept->directory && mkdtemp(kept->directory)) return 0;
  }
  say("cannot make a private directory in %s: %s; name another with TMPDIR", place, strerror(errno));
  return -1;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where) {
  (void)about, (void)kind, (void)where;
  remove(path);
  return 0;
}

static void clean_up(struct kept *kept, int ranks) {
  for (int rank = 0; rank < ranks; ++rank)
    if (kept->groups[rank]) kill(-kept->groups[rank], SIGKILL);
  /* A rank that is just being killed may still make a file. */
  for (int tries = 0; tries < 200; ++tries) {
    nftw(kept->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (access(kept->directory, F_OK) != 0) return;
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
  }
}

static int rank_count(const struct keeper *keeper) {
  return (int)((keeper->size_bytes - sizeof(struct kept)) / sizeof(pid_t));
}

_Noreturn static void keep(struct keeper *keeper, int launcher) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  prctl(PR_SET_NAME, "tpfsdp-keeper");
  char byte;
  while (read(launcher, &byte, 1) < 0 && errno == EINTR) continue;
  clean_up(keeper->kept, rank_count(keeper));
  _exit(0);
}

int keeper_start(struct keeper *keeper, int ranks) {
  keeper->size_bytes = sizeof(struct kept) + (size_t)ranks * sizeof(pid_t);
  keeper->kept = mmap(NULL, keeper->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (keeper->kept == MAP_FAILED) {
    say("no memory for %d ranks: %s", ranks, strerror(errno));
    return -1;
  }
  int alive[2] = {-1, -1};
  if (make_directory(keeper->kept) != 0) goto unmap;
  if (pipe2(alive, O_CLOEXEC) != 0 || (keeper->pid = fork()) < 0) {
    say("cannot start the process that cleans up: %s", strerror(errno));
    goto remove;
  }
  if (keeper->pid == 0) {
    close(alive[1]);
    keep(keeper, alive[0]);
  }
  setpgid(keeper->pid, keeper->pid);
  close(alive[0]);
  keeper->alive = alive[1];
  return 0;

remove:
  if (alive[0] >= 0) close(alive[0]), close(alive[1]);
  rmdir(keeper->kept->directory);
unmap:
  munmap(keeper->kept, keeper->size_bytes);
  return -1;
}

void keeper_end(struct keeper *keeper) {
  int status = -1;
  close(keeper->alive);
  /* It may have been killed, and reaped among the ranks: then its work is ours. */
  if (waitpid(keeper->pid, &status, 0) != keeper->pid || status != 0) clean_up(keeper->kept, rank_count(keeper));
  munmap(keeper->kept, keeper->size_bytes);
}
