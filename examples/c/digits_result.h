/* SPDX-License-Identifier: Apache-2.0
 * What the sharded run of digits.c leaves behind, and the verdict on it. */
#ifndef DIGITS_RESULT_H
#define DIGITS_RESULT_H

#include "digits.h"

#include <tpfsdp/tpfsdp.h>

enum { MAX_SAMPLES = 4096 };

typedef struct rank_run {
  float *losses, *values;
  char backend[32];
  int hits;
  int64_t acquires, live_bytes, peak_live_bytes; /* of full parameters in this program's memory */
  int64_t samples[MAX_SAMPLES];                  /* live_bytes after each request */
  int sample_count, step_sample_count;           /* all, and those of the last step */
  int64_t step_peak_bytes;                       /* of training, without what evaluation needs */
  int64_t optimizer_bytes;
  tpfsdp_memory_info memory;
  tpfsdp_counters counters;
} rank_run;

typedef struct job {
  const digits *data;
  int ranks, steps;
  rank_run runs[MAX_RANKS];
} job;

/* 0, or -1 without memory. */
int job_create(job *work, const digits *data, int ranks, int steps);
void job_free(job *work);
/* Runs the reference, prints the comparison, writes the result. 0 when all is equal and the accuracy is good. */
int job_report(const job *work, const char *path);

#endif
