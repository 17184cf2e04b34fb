/* SPDX-License-Identifier: Apache-2.0
 * The unsharded run: the micro-batches of all ranks in rank order, gradients summed left to right in float, scaled
 * once. */
#include "transformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
  activations a;
  param_set values[MAX_UNITS], grads[MAX_UNITS];
} model;

static float forward(model *m) {
  activations *a = &m->a;
  embed(a, &m->values[0]);
  for (int b = 0; b < a->s.blocks; b++) block_forward(a, b, a->x[b + 1], &m->values[1 + b]);
  return head(a, &m->values[0]);
}

/* The gradient of the positions must be zero before. */
static void backward(model *m) {
  activations *a = &m->a;
  head_backward(a, &m->values[0], &m->grads[0]);
  for (int b = a->s.blocks; b-- > 0;) block_backward(a, b, &m->values[1 + b], &m->grads[1 + b]);
  embed_backward(a, &m->grads[0]);
}

static double held_out_bits(model *m, const plan *todo) {
  activations *a = &m->a;
  double nats = 0;
  for (int first = 0; first < todo->held_out_pieces; first += todo->pieces) {
    const int left = todo->held_out_pieces - first;
    a->pieces = left < todo->pieces ? left : todo->pieces;
    a->rows = a->pieces * a->s.length;
    text_held_out(todo->data, first, a->pieces, a->s.length, a->tokens, a->targets);
    nats += (double)forward(m) * a->pieces;
  }
  a->pieces = todo->pieces;
  a->rows = a->pieces * a->s.length;
  return nats / todo->held_out_pieces / log(2);
}

int reference_train(const plan *todo, float *losses, float *values, double bits[2]) {
  const shape *s = &todo->s;
  const int64_t count = values_count(s);
  const float scale = (float)(1.0 / todo->ranks);
  adamw optimizer = {0, 0};
  model *m = calloc(1, sizeof *m);
  float *memory = calloc((size_t)count * 4, sizeof *memory);
  float *grads = memory, *sums = memory + count, *first = sums + count, *second = first + count;
  if (!m || !memory || activations_create(&m->a, s, todo->pieces, 0)) {
    free(m), free(memory);
    return -1;
  }
  initial_values(s, values);
  param_sets_over(s, values, m->values);
  param_sets_over(s, grads, m->grads);
  bits[0] = held_out_bits(m, todo);
  for (int step = 0; step < todo->steps; step++) {
    losses[step] = 0;
    for (int rank = 0; rank < todo->ranks; rank++) {
      float loss;
      text_micro_batch(todo->data, step, rank, todo->pieces, s->length, m->a.tokens, m->a.targets);
      loss = forward(m);
      losses[step] = rank == 0 ? loss : losses[step] + loss;
      memset(grads, 0, sizeof(float) * (size_t)count);
      backward(m);
      for (int64_t i = 0; i < count; i++) sums[i] = rank == 0 ? grads[i] : sums[i] + grads[i];
    }
    losses[step] *= scale;
    for (int64_t i = 0; i < count; i++) sums[i] *= scale;
    adamw_begin_step(&optimizer, learning_rate(step, todo->steps));
    adamw_update(&optimizer, values, sums, first, second, count);
  }
  bits[1] = held_out_bits(m, todo);
  activations_free(&m->a);
  free(m), free(memory);
  return 0;
}
