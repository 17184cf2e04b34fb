/* SPDX-License-Identifier: Apache-2.0
 * Compares the sharded run with the reference, in units in the last place, and writes both down. */
#include "digits_result.h"
#include "verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int job_create(job *work, const digits *data, int ranks, int steps) {
  memset(work, 0, sizeof *work);
  work->data = data;
  work->ranks = ranks;
  work->steps = steps;
  for (int r = 0; r < ranks; r++) {
    rank_run *run = &work->runs[r];
    run->memory = TPFSDP_INIT(tpfsdp_memory_info);
    run->counters = TPFSDP_INIT(tpfsdp_counters);
    run->losses = calloc((size_t)steps, sizeof(float));
    run->values = calloc((size_t)values_count(), sizeof(float));
    if (!run->losses || !run->values) return -1;
  }
  return 0;
}

void job_free(job *work) {
  for (int r = 0; r < work->ranks; r++) free(work->runs[r].losses), free(work->runs[r].values);
}

static void write_run(FILE *file, const char *mode, const job *work, const float *losses, int64_t ulp, double accuracy,
                      int is_sharded) {
  const rank_run *run = &work->runs[0];
  fprintf(file, "{\"mode\": \"%s\", \"ranks\": %d, \"backend\": \"%s\", \"max_ulp\": %lld", mode, work->ranks,
          is_sharded ? run->backend : "none", (long long)ulp);
  fprintf(file, ",\n \"losses\": [");
  for (int i = 0; i < work->steps; i++) fprintf(file, "%s\"%a\"", i ? ", " : "", (double)losses[i]);
  fprintf(file, "]");
  if (is_sharded) {
    fprintf(file, ",\n \"library_peak_bytes\": %lld, \"host_peak_bytes\": %lld, ", (long long)run->memory.peak_bytes,
            (long long)run->step_peak_bytes);
    fprintf(file, "\"optimizer_bytes\": %lld, \"accuracy\": %.6f", (long long)run->optimizer_bytes, accuracy);
    fprintf(file, ",\n \"counts\": {\"all_gathers\": %lld, \"reduce_scatters\": %lld, \"all_reduces\": %lld, ",
            (long long)run->counters.all_gathers, (long long)run->counters.reduce_scatters,
            (long long)run->counters.all_reduces);
    fprintf(file, "\"wire_bytes\": %lld, \"copies\": %lld, \"acquires\": %lld}", (long long)run->counters.wire_bytes,
            (long long)run->counters.copies, (long long)run->acquires);
    fprintf(file, ",\n \"host_bytes_over_step\": [");
    for (int i = 0; i < run->step_sample_count; i++) fprintf(file, "%s%lld", i ? ", " : "", (long long)run->samples[i]);
    fprintf(file, "]");
  }
  fprintf(file, "}");
}

int job_report(const job *work, const char *path) {
  float *losses = calloc((size_t)work->steps, sizeof(float)), *values = calloc((size_t)values_count(), sizeof(float));
  int64_t ulp = 0;
  int hits = 0;
  double accuracy;
  FILE *file = fopen(path, "w");
  if (!losses || !values || !file || reference_train(work->data, work->ranks, work->steps, losses, values)) {
    fprintf(stderr, "digits: no memory, or cannot write %s\n", path);
    return 2;
  }
  for (int r = 0; r < work->ranks; r++) {
    ulp = max_ulp(ulp, work->runs[r].losses, losses, work->steps);
    ulp = max_ulp(ulp, work->runs[r].values, values, values_count());
    hits += work->runs[r].hits;
  }
  accuracy = (double)hits / work->data->test.count;
  fprintf(file, "[");
  write_run(file, "c-reference", work, losses, 0, 0, 0);
  fprintf(file, ",\n");
  write_run(file, "c-host-storage", work, work->runs[0].losses, ulp, accuracy, 1);
  fprintf(file, "]\n");
  fclose(file);
  free(losses), free(values);
  printf("  held-out accuracy %.2f %%, largest difference from the unsharded run %lld ulp\n", 100 * accuracy,
         (long long)ulp);
  if (ulp != 0) fprintf(stderr, "digits: losses or parameters differ from the unsharded run\n");
  if (accuracy < 0.95) fprintf(stderr, "digits: the accuracy is below 95 %%\n");
  return ulp != 0 || accuracy < 0.95;
}
