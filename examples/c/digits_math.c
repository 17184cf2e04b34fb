/* SPDX-License-Identifier: Apache-2.0
 * Forward, backward and AdamW in plain loops. Every sum has one order, so equal inputs give equal bits. */
#include "digits.h"

#include <math.h>

const layer_size layer_sizes[LAYERS] = {{"fc1", PIXELS, 128}, {"fc2", 128, 64}, {"fc3", 64, CLASSES}};

int weight_offset(int layer) {
  int offset = 0;
  for (int l = 0; l < layer; l++) offset += layer_sizes[l].out * (layer_sizes[l].in + 1);
  return offset;
}

int bias_offset(int layer) { return weight_offset(layer) + layer_sizes[layer].out * layer_sizes[layer].in; }

int values_count(void) { return weight_offset(LAYERS); }

void initial_values(float *values) {
  uint64_t state = 2463534242u;
  for (int l = 0; l < LAYERS; l++) {
    const float bound = sqrtf(6.0f / (float)layer_sizes[l].in);
    for (int i = weight_offset(l); i < bias_offset(l); i++) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      values[i] = ((float)(state % 20001) / 10000.0f - 1.0f) * bound;
    }
    for (int i = bias_offset(l); i < weight_offset(l + 1); i++) values[i] = 0;
  }
}

void linear(float *y, const float *x, const float *weight, const float *bias, int rows, int in, int out) {
  for (int i = 0; i < rows; i++)
    for (int o = 0; o < out; o++) {
      float sum = bias[o];
      for (int k = 0; k < in; k++) sum += x[i * in + k] * weight[o * in + k];
      y[i * out + o] = sum;
    }
}

void linear_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                     int rows, int in, int out) {
  for (int o = 0; o < out; o++) {
    dbias[o] = 0;
    for (int k = 0; k < in; k++) dweight[o * in + k] = 0;
    for (int i = 0; i < rows; i++) {
      const float d = dy[i * out + o];
      dbias[o] += d;
      for (int k = 0; k < in; k++) dweight[o * in + k] += d * x[i * in + k];
    }
  }
  if (!dx) return;
  for (int i = 0; i < rows; i++) {
    for (int k = 0; k < in; k++) dx[i * in + k] = 0;
    for (int o = 0; o < out; o++)
      for (int k = 0; k < in; k++) dx[i * in + k] += dy[i * out + o] * weight[o * in + k];
  }
}

void relu(float *x, int count) {
  for (int i = 0; i < count; i++) x[i] = x[i] > 0 ? x[i] : 0;
}

void relu_backward(float *dx, const float *activated, int count) {
  for (int i = 0; i < count; i++) dx[i] = activated[i] > 0 ? dx[i] : 0;
}

float cross_entropy(float *logits, const int *labels, int rows) {
  float loss = 0;
  for (int i = 0; i < rows; i++) {
    float *row = logits + (int64_t)i * CLASSES, most = row[0], sum = 0, target;
    for (int c = 1; c < CLASSES; c++) most = row[c] > most ? row[c] : most;
    target = row[labels[i]] - most;
    for (int c = 0; c < CLASSES; c++) sum += row[c] = expf(row[c] - most);
    loss += logf(sum) - target;
    for (int c = 0; c < CLASSES; c++) row[c] = (row[c] / sum - (float)(c == labels[i])) / (float)rows;
  }
  return loss / (float)rows;
}

void adamw_begin_step(adamw *optimizer) {
  if (optimizer->step++ == 0) optimizer->power1 = optimizer->power2 = 1;
  optimizer->power1 *= 0.9;
  optimizer->power2 *= 0.999;
}

void adamw_update(const adamw *optimizer, float *values, const float *grads, float *first, float *second,
                  int64_t count) {
  const float rate = 2e-3f, decay = 1 - rate * 0.01f;
  const float unbias1 = (float)(1 - optimizer->power1), unbias2 = (float)(1 - optimizer->power2);
  for (int64_t i = 0; i < count; i++) {
    first[i] = 0.9f * first[i] + 0.1f * grads[i];
    second[i] = 0.999f * second[i] + 0.001f * (grads[i] * grads[i]);
    values[i] = values[i] * decay - rate * (first[i] / unbias1 / (sqrtf(second[i] / unbias2) + 1e-8f));
  }
}
