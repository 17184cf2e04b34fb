/* SPDX-License-Identifier: Apache-2.0
 * The unsharded run: the micro-batches of all ranks in rank order, gradients summed left to right in float, scaled
 * once. */
#include "digits.h"

#include <stdlib.h>

typedef struct micro_batch {
  float in[LAYERS + 1][BATCH * WIDEST]; /* what goes into each layer; at last the logits */
  float down[2][BATCH * WIDEST];        /* gradients of it, in turn */
  int labels[BATCH];
} micro_batch;

static float loss_and_grads(micro_batch *m, const float *values, float *grads) {
  float loss;
  const float *dy;
  for (int l = 0; l < LAYERS; l++) {
    const layer_size *size = &layer_sizes[l];
    linear(m->in[l + 1], m->in[l], values + weight_offset(l), values + bias_offset(l), BATCH, size->in, size->out);
    if (l + 1 < LAYERS) relu(m->in[l + 1], BATCH * size->out);
  }
  loss = cross_entropy(m->in[LAYERS], m->labels, BATCH);
  dy = m->in[LAYERS];
  for (int l = LAYERS; l-- > 0;) {
    const layer_size *size = &layer_sizes[l];
    float *dx = l > 0 ? m->down[l % 2] : NULL;
    linear_backward(dx, grads + weight_offset(l), grads + bias_offset(l), dy, m->in[l], values + weight_offset(l),
                    BATCH, size->in, size->out);
    if (dx) relu_backward(dx, m->in[l], BATCH * size->in);
    dy = dx;
  }
  return loss;
}

int reference_train(const digits *data, int world_size, int steps, float *losses, float *values) {
  const int count = values_count();
  const float scale = (float)(1.0 / world_size);
  adamw optimizer = {0, 0, 0};
  micro_batch *m = malloc(sizeof *m);
  float *memory = calloc((size_t)count * 4, sizeof *memory);
  float *grads = memory, *sums = memory + count, *first = sums + count, *second = first + count;
  if (!m || !memory) {
    free(m), free(memory);
    return -1;
  }
  initial_values(values);
  for (int step = 0; step < steps; step++) {
    losses[step] = 0;
    for (int rank = 0; rank < world_size; rank++) {
      float loss;
      digits_micro_batch(data, step, rank, world_size, m->in[0], m->labels);
      loss = loss_and_grads(m, values, grads);
      losses[step] = rank == 0 ? loss : losses[step] + loss;
      for (int i = 0; i < count; i++) sums[i] = rank == 0 ? grads[i] : sums[i] + grads[i];
    }
    losses[step] *= scale;
    for (int i = 0; i < count; i++) sums[i] *= scale;
    adamw_begin_step(&optimizer);
    adamw_update(&optimizer, values, sums, first, second, count);
  }
  free(m), free(memory);
  return 0;
}
