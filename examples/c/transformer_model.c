/* SPDX-License-Identifier: Apache-2.0
 * The parts of the model, forward and backward, and the memory of what a forward keeps. */
#include "transformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Hands out `count` floats; without memory it only counts them. */
static float *take(float *memory, int64_t *taken, int64_t count) {
  float *here = memory ? memory + *taken : NULL;
  *taken += count;
  return here;
}

static void lay_out_block(saved_block *b, float *memory, int64_t *taken, const shape *s, int64_t rows) {
  const int64_t w = s->width;
  b->normed1 = take(memory, taken, rows * w);
  b->factor1 = take(memory, taken, rows);
  b->a = take(memory, taken, rows * w);
  b->qkv = take(memory, taken, rows * 3 * w);
  b->shares = take(memory, taken, rows * s->heads * s->length);
  b->mixed = take(memory, taken, rows * w);
  b->normed2 = take(memory, taken, rows * w);
  b->factor2 = take(memory, taken, rows);
  b->b = take(memory, taken, rows * w);
  b->up = take(memory, taken, rows * 4 * w);
  b->tanhs = take(memory, taken, rows * 4 * w);
  b->active = take(memory, taken, rows * 4 * w);
}

static int64_t lay_out(activations *a, float *memory, int64_t rows, int recompute) {
  const shape *s = &a->s;
  int64_t taken = 0;
  for (int b = 0; b < s->blocks; b++) a->x[b] = take(memory, &taken, rows * s->width);
  for (int b = 0; b < s->blocks; b++)
    if (b > 0 && recompute)
      a->saved[b] = a->saved[0];
    else
      lay_out_block(&a->saved[b], memory, &taken, s, rows);
  a->kept_bytes = taken * (int64_t)sizeof(float);
  a->x[s->blocks] = take(memory, &taken, rows * s->width);
  a->normed = take(memory, &taken, rows * s->width);
  a->factor = take(memory, &taken, rows);
  a->y = take(memory, &taken, rows * s->width);
  a->dlogits = take(memory, &taken, rows * s->symbols);
  a->dx = take(memory, &taken, rows * s->width);
  a->out = take(memory, &taken, rows * s->width);
  a->narrow = take(memory, &taken, rows * s->width);
  a->wide = take(memory, &taken, rows * 4 * s->width);
  return taken;
}

int activations_create(activations *a, const shape *s, int pieces, int recompute) {
  const int64_t rows = (int64_t)pieces * s->length;
  int64_t floats;
  memset(a, 0, sizeof *a);
  a->s = *s;
  floats = lay_out(a, NULL, rows, recompute);
  a->memory = malloc((size_t)floats * sizeof(float) + (size_t)rows * 2 * sizeof(int));
  if (!a->memory) return -1;
  lay_out(a, a->memory, rows, recompute);
  a->tokens = (int *)((float *)a->memory + floats);
  a->targets = a->tokens + rows;
  a->pieces = pieces;
  a->rows = (int)rows;
  return 0;
}

void activations_free(activations *a) { free(a->memory), a->memory = NULL; }

void embed(activations *a, const param_set *p) {
  const int w = a->s.width;
  for (int i = 0; i < a->rows; i++) {
    const float *token = p->p[TOKENS] + (int64_t)a->tokens[i] * w;
    const float *position = p->p[POSITIONS] + (int64_t)(i % a->s.length) * w;
    for (int k = 0; k < w; k++) a->x[0][(int64_t)i * w + k] = token[k] + position[k];
  }
}

void embed_backward(activations *a, param_set *g) {
  const int w = a->s.width;
  for (int i = 0; i < a->rows; i++) {
    const float *d = a->dx + (int64_t)i * w;
    float *token = g->p[TOKENS] + (int64_t)a->tokens[i] * w;
    float *position = g->p[POSITIONS] + (int64_t)(i % a->s.length) * w;
    for (int k = 0; k < w; k++) token[k] += d[k], position[k] += d[k];
  }
}

void block_forward(activations *a, int block, float *y, const param_set *set) {
  const int w = a->s.width, rows = a->rows;
  const int64_t count = (int64_t)rows * w;
  const float *x = a->x[block];
  float *const *p = set->p;
  saved_block *s = &a->saved[block];
  norm(s->a, s->normed1, s->factor1, x, p[NORM1_WEIGHT], p[NORM1_BIAS], rows, w);
  linear(s->qkv, s->a, p[QKV_WEIGHT], p[QKV_BIAS], rows, w, 3 * w);
  attention(s->mixed, s->shares, s->qkv, &a->s, a->pieces);
  linear(y, s->mixed, p[PROJ_WEIGHT], p[PROJ_BIAS], rows, w, w);
  for (int64_t i = 0; i < count; i++) y[i] += x[i];
  norm(s->b, s->normed2, s->factor2, y, p[NORM2_WEIGHT], p[NORM2_BIAS], rows, w);
  linear(s->up, s->b, p[UP_WEIGHT], p[UP_BIAS], rows, w, 4 * w);
  gelu(s->active, s->tanhs, s->up, 4 * count);
  linear(a->narrow, s->active, p[DOWN_WEIGHT], p[DOWN_BIAS], rows, 4 * w, w);
  for (int64_t i = 0; i < count; i++) y[i] += a->narrow[i];
}

void block_backward(activations *a, int block, const param_set *set, param_set *grads) {
  const int w = a->s.width, rows = a->rows;
  float *const *p = set->p, *const *g = grads->p;
  const saved_block *s = &a->saved[block];
  linear_backward(a->wide, g[DOWN_WEIGHT], g[DOWN_BIAS], a->dx, s->active, p[DOWN_WEIGHT], rows, 4 * w, w);
  gelu_backward(a->wide, s->up, s->tanhs, (int64_t)rows * 4 * w);
  linear_backward(a->narrow, g[UP_WEIGHT], g[UP_BIAS], a->wide, s->b, p[UP_WEIGHT], rows, w, 4 * w);
  norm_backward(a->dx, g[NORM2_WEIGHT], g[NORM2_BIAS], a->narrow, s->normed2, s->factor2, p[NORM2_WEIGHT], rows, w);
  linear_backward(a->narrow, g[PROJ_WEIGHT], g[PROJ_BIAS], a->dx, s->mixed, p[PROJ_WEIGHT], rows, w, w);
  attention_backward(a->wide, a->narrow, s->qkv, s->shares, &a->s, a->pieces);
  linear_backward(a->narrow, g[QKV_WEIGHT], g[QKV_BIAS], a->wide, s->a, p[QKV_WEIGHT], rows, w, 3 * w);
  norm_backward(a->dx, g[NORM1_WEIGHT], g[NORM1_BIAS], a->narrow, s->normed1, s->factor1, p[NORM1_WEIGHT], rows, w);
}

float head(activations *a, const param_set *set) {
  const int n = a->s.symbols;
  float *const *p = set->p;
  float loss = 0;
  norm(a->y, a->normed, a->factor, a->x[a->s.blocks], p[NORM_WEIGHT], p[NORM_BIAS], a->rows, a->s.width);
  linear(a->dlogits, a->y, p[TOKENS], NULL, a->rows, a->s.width, n);
  for (int i = 0; i < a->rows; i++) {
    float *row = a->dlogits + (int64_t)i * n, most = row[0], sum = 0, target;
    for (int c = 1; c < n; c++) most = row[c] > most ? row[c] : most;
    target = row[a->targets[i]] - most;
    for (int c = 0; c < n; c++) sum += row[c] = expf(row[c] - most);
    loss += logf(sum) - target;
    for (int c = 0; c < n; c++) row[c] = (row[c] / sum - (float)(c == a->targets[i])) / (float)a->rows;
  }
  return loss / (float)a->rows;
}

void head_backward(activations *a, const param_set *set, param_set *grads) {
  const int w = a->s.width;
  float *const *p = set->p, *const *g = grads->p;
  linear_backward(a->narrow, g[TOKENS], NULL, a->dlogits, a->y, p[TOKENS], a->rows, w, a->s.symbols);
  memset(a->dx, 0, sizeof(float) * (size_t)a->rows * (size_t)w);
  norm_backward(a->dx, g[NORM_WEIGHT], g[NORM_BIAS], a->narrow, a->normed, a->factor, p[NORM_WEIGHT], a->rows, w);
}
