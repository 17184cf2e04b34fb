/* SPDX-License-Identifier: Apache-2.0
 * Compares the sharded run with the unsharded one, in units in the last place, and says what was found. */
#include "transformer_trainer.h"
#include "verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int job_create(job *work) {
  for (int r = 0; r < work->todo.ranks; r++) {
    rank_run *run = &work->runs[r];
    run->memory = TPFSDP_INIT(tpfsdp_memory_info);
    run->counters = TPFSDP_INIT(tpfsdp_counters);
    run->losses = calloc((size_t)work->todo.steps, sizeof(float));
    run->values = calloc((size_t)values_count(&work->todo.s), sizeof(float));
    if (!run->losses || !run->values) return -1;
  }
  return 0;
}

void job_free(job *work) {
  for (int r = 0; r < MAX_RANKS; r++) free(work->runs[r].losses), free(work->runs[r].values);
}

static void print_bits(const job *work, const double bits[2]) {
  printf("held-out text: %.3f bits a character before, %.3f after, %.3f for who knows only how often each is\n",
         bits[0], bits[1], text_unigram_bits(work->todo.data));
}

static void print_losses(const float *losses, int steps) {
  printf("\"losses\": [");
  for (int i = 0; i < steps; i++) printf("%s\"%a\"", i ? ", " : "", (double)losses[i]);
  printf("]");
}

/* ulp -1: not compared. The names are those of the Python example. */
static void print_json(const job *work, const rank_run *run, int64_t ulp) {
  const tpfsdp_counters *c = &run->counters;
  printf("{\"mode\": \"c-transformer%s%s\", \"ranks\": %d, \"backend\": \"%s\", ", work->mode_suffix,
         work->todo.recompute ? "-recompute" : "", work->todo.ranks, run->backend);
  print_losses(run->losses, work->todo.steps);
  if (ulp < 0)
    printf(", \"max_ulp\": null");
  else
    printf(", \"max_ulp\": %lld", (long long)ulp);
  printf(", \"bits_before\": %.6f, \"bits_after\": %.6f, \"unigram_bits\": %.6f, ", run->bits[0], run->bits[1],
         text_unigram_bits(work->todo.data));
  printf("\"peak_bytes_measured\": %lld, \"kept_activation_bytes\": %lld, ",
         (long long)(run->memory.peak_bytes + run->optimizer_bytes), (long long)run->kept_bytes);
  printf(
      "\"counts\": {\"all_gathers\": %lld, \"reduce_scatters\": %lld, \"all_reduces\": %lld, \"wire_bytes\": %lld, "
      "\"copies\": %lld, \"prefetch_hits\": %lld}}\n",
      (long long)c->all_gathers, (long long)c->reduce_scatters, (long long)c->all_reduces, (long long)c->wire_bytes,
      (long long)c->copies, (long long)c->prefetch_hits);
}

int job_report(job *work, int first, int last, int compare) {
  const plan *todo = &work->todo;
  const rank_run *run = &work->runs[first];
  float *losses = calloc((size_t)todo->steps, sizeof(float));
  float *values = calloc((size_t)values_count(&todo->s), sizeof(float));
  double bits[2];
  int64_t ulp = -1;
  int failed = 0;
  print_bits(work, run->bits);
  if (!losses || !values || (compare && reference_train(todo, losses, values, bits))) {
    fprintf(stderr, "transformer: no memory\n");
    free(losses), free(values);
    return 2;
  }
  if (compare) {
    ulp = 0;
    for (int r = first; r <= last; r++) {
      ulp = max_ulp(ulp, work->runs[r].losses, losses, todo->steps);
      ulp = max_ulp(ulp, work->runs[r].values, values, values_count(&todo->s));
    }
    printf("largest difference from the unsharded run: max_ulp %lld\n", (long long)ulp);
    if (ulp != 0) fprintf(stderr, "transformer: losses or parameters differ from the unsharded run\n");
    failed = ulp != 0;
  }
  if (!(run->bits[1] < run->bits[0])) {
    fprintf(stderr, "transformer: nothing was learned\n");
    failed = 1;
  }
  print_json(work, run, ulp);
  free(losses), free(values);
  return failed;
}

int job_reference(job *work) {
  rank_run *run = &work->runs[0];
  if (reference_train(&work->todo, run->losses, run->values, run->bits)) {
    fprintf(stderr, "transformer: no memory\n");
    return 2;
  }
  print_bits(work, run->bits);
  printf("{\"mode\": \"c-transformer-unsharded\", \"ranks\": %d, ", work->todo.ranks);
  print_losses(run->losses, work->todo.steps);
  printf(", \"bits_before\": %.6f, \"bits_after\": %.6f}\n", run->bits[0], run->bits[1]);
  return !(run->bits[1] < run->bits[0]);
}
