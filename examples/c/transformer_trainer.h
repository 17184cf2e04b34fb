/* SPDX-License-Identifier: Apache-2.0
 * One rank of the sharded transformer: the tree in transformer_tree.c, steps in transformer_train.c, the verdict in
 * transformer_result.c. */
#ifndef TRANSFORMER_TRAINER_H
#define TRANSFORMER_TRAINER_H

#include "transformer.h"

#include <tpfsdp/tpfsdp.h>

/* A failure ends this rank; run_ranks, or the launcher, ends the others. */
#define TRY(...)                           \
  do {                                     \
    tpfsdp_status status_ = (__VA_ARGS__); \
    if (status_ < 0) return status_;       \
  } while (0)

typedef struct rank_run {
  float *losses, *values;
  double bits[2]; /* per held-out character, before and after */
  char backend[32];
  int64_t optimizer_bytes, kept_bytes;
  tpfsdp_memory_info memory;
  tpfsdp_counters counters;
} rank_run;

typedef struct job {
  plan todo;
  tpfsdp_unshard_mode mode;
  const char *mode_suffix;  /* in the result */
  rank_run runs[MAX_RANKS]; /* of processes only their own */
} job;

typedef struct trainer {
  const tpfsdp_rank_args *me;
  const job *work;
  rank_run *run;
  tpfsdp_group *group;
  tpfsdp_module *root;             /* owned; it keeps what is below, which is borrowed */
  tpfsdp_module *units[MAX_UNITS]; /* of them the first is the root */
  tpfsdp_param *params[MAX_UNITS][BLOCK_PARAMS];
  float *moments[MAX_UNITS][BLOCK_PARAMS]; /* first, then second */
  activations a;
  float grad_factor; /* 1, but for a planted fault */
} trainer;

/* ---- transformer_tree.c ---- */
tpfsdp_status tree_create(trainer *t);

/* ---- transformer_train.c ---- */
/* What a rank does; user is the job. */
tpfsdp_status rank_main(void *user, const tpfsdp_rank_args *me);

/* ---- transformer_result.c ---- */
/* 0, or -1 without memory. */
int job_create(job *work);
void job_free(job *work);
/* Prints the run of ranks from first to last, compared with the unsharded one if that is asked for; the last line is
 * JSON. 0 when all is equal and the text has become more likely. */
int job_report(job *work, int first, int last, int compare);
/* The unsharded run alone. */
int job_reference(job *work);

#endif
