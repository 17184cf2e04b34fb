/* SPDX-License-Identifier: Apache-2.0
 * What each position takes from itself and those before it, and how much of each. A row of qkv has queries, keys and
 * values, each head by head. */
#include "transformer.h"

#include <math.h>
#include <string.h>

static float product(const float *a, const float *b, int count) {
  float sum = 0;
  for (int k = 0; k < count; k++) sum += a[k] * b[k];
  return sum;
}

static void add_scaled(float *sum, float scale, const float *x, int count) {
  for (int k = 0; k < count; k++) sum[k] += scale * x[k];
}

/* Turns the first count scores into shares of 1; those who come later get none. */
static void softmax(float *row, int count, int length) {
  float most = row[0], sum = 0;
  for (int u = 1; u < count; u++) most = row[u] > most ? row[u] : most;
  for (int u = 0; u < count; u++) sum += row[u] = expf(row[u] - most);
  for (int u = 0; u < count; u++) row[u] /= sum;
  for (int u = count; u < length; u++) row[u] = 0;
}

void attention(float *y, float *shares, const float *qkv, const shape *s, int pieces) {
  const int w = s->width, part = w / s->heads;
  const float scale = (float)pow(part, -0.5);
  memset(y, 0, sizeof(float) * (size_t)(pieces * s->length) * (size_t)w);
  for (int i = 0; i < pieces; i++, qkv += (int64_t)s->length * 3 * w, y += (int64_t)s->length * w)
    for (int h = 0; h < s->heads; h++)
      for (int t = 0; t < s->length; t++, shares += s->length) {
        const float *q = qkv + (int64_t)t * 3 * w + h * part, *k = qkv + w + h * part, *v = k + w;
        for (int u = 0; u <= t; u++) shares[u] = product(q, k + (int64_t)u * 3 * w, part) * scale;
        softmax(shares, t + 1, s->length);
        for (int u = 0; u <= t; u++) add_scaled(y + (int64_t)t * w + h * part, shares[u], v + (int64_t)u * 3 * w, part);
      }
}

void attention_backward(float *dqkv, const float *dy, const float *qkv, const float *shares, const shape *s,
                        int pieces) {
  const int w = s->width, part = w / s->heads;
  const int64_t row = 3 * w;
  const float scale = (float)pow(part, -0.5);
  memset(dqkv, 0, sizeof(float) * (size_t)(pieces * s->length) * (size_t)row);
  for (int i = 0; i < pieces; i++, qkv += s->length * row, dqkv += s->length * row, dy += (int64_t)s->length * w)
    for (int h = 0; h < s->heads; h++)
      for (int t = 0; t < s->length; t++, shares += s->length) {
        const float *q = qkv + h * part, *k = q + w, *v = k + w, *d = dy + (int64_t)t * w + h * part;
        float *dq = dqkv + h * part, *dk = dq + w, *dv = dk + w;
        float dshares[MAX_LENGTH], taken = 0;
        for (int u = 0; u <= t; u++) {
          dshares[u] = product(d, v + u * row, part);
          taken += dshares[u] * shares[u];
          add_scaled(dv + u * row, shares[u], d, part);
        }
        for (int u = 0; u <= t; u++) {
          const float dscore = shares[u] * (dshares[u] - taken) * scale;
          add_scaled(dq + t * row, dscore, k + u * row, part);
          add_scaled(dk + u * row, dscore, q + t * row, part);
        }
      }
}
