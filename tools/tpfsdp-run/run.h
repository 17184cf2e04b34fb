/* SPDX-License-Identifier: Apache-2.0
 * tpfsdp-run starts the ranks of one machine as processes, and ends them. main.c reads the command line; attempt.c
 * waits for the ranks and stops them together; start.c starts one; output.c passes on what they write to the standard
 * error; keeper.c owns the private directory and cleans up, also where this program was killed. */
#ifndef TPFSDP_RUN_H
#define TPFSDP_RUN_H

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

struct options {
  int ranks;
  int restarts;
  double grace_s;
  char **program; /* and its arguments */
};

double now_s(void); /* monotonic */

/* ---- output.c: one queue to our standard error, which never waits for its reader ------------------------------- */
enum { LINE_BYTES = 16384, KEPT_LINES = 20, KEPT_BYTES = 1024 };

/* What one rank writes to its standard error. A longer line is passed on in pieces. */
struct stream {
  int rank;
  int fd; /* -1: ended */
  size_t used;
  char line[LINE_BYTES];
  long lines;                        /* written so far */
  long place[KEPT_LINES];            /* of each kept line among those of all ranks */
  char kept[KEPT_LINES][KEPT_BYTES]; /* the last ones, line i at i % KEPT_LINES */
};

void output_open(void);
int output_poll_fd(void);       /* to wait on for writing; -1: nothing to write */
double output_deadline_s(void); /* when to look again though nothing happened; INFINITY: never */
int output_takes(void);         /* whether streams may be read now */
void output_write(void);
void output_flush(void);
long output_lines(void); /* of all ranks so far */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

int stream_read(struct stream *stream); /* how many bytes; 0: nothing now, -1: the end */
void stream_close(struct stream *stream);
int stream_is_last(const struct stream *stream); /* whether its kept lines are the last that any rank wrote */
void stream_repeat(const struct stream *stream);
int stream_kept(const struct stream *stream);

/* ---- keeper.c -------------------------------------------------------------------------------------------------- */
/* In memory shared with the keeper and the ranks. */
struct kept {
  char directory[4096];
  pid_t groups[]; /* process group of each rank; 0: none */
};
struct keeper {
  struct kept *kept;
  size_t size_bytes;
  pid_t pid;
  int alive; /* closed when this program ends, however it does */
};
int keeper_start(struct keeper *keeper, int ranks); /* 0, or -1: told */
void keeper_end(struct keeper *keeper);

/* ---- start.c --------------------------------------------------------------------------------------------------- */
struct start {
  const struct options *options;
  const char *run_id;
  int restart;
  struct kept *kept;
};
/* Signals that this program reads instead of being hit by them; the ranks get what it was started with. */
int signals_open(void); /* a signalfd, or -1 */
/* Starts a rank; *pid is 0 if that failed. Returns 0, or the exit code that says why not: told. */
int start_rank(const struct start *start, int rank, pid_t *pid, int *error_fd);

/* ---- attempt.c ------------------------------------------------------------------------------------------------- */
struct result {
  int code;       /* to exit with */
  int is_failure; /* a rank ended badly by itself: a restart may help */
};
struct result run_attempt(const struct start *start, int signals);

#endif
