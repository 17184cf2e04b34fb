/* SPDX-License-Identifier: Apache-2.0
 * The parameters of the model: names, sizes, where they lie, how they start. */
#include "transformer.h"

#include <math.h>

int unit_params(int unit) { return unit == 0 ? ROOT_PARAMS : BLOCK_PARAMS; }

static param_size sized(const char *layer, const char *name, int rows, int columns) {
  param_size size;
  size.layer = layer;
  size.name = name;
  size.rows = rows;
  size.columns = columns;
  return size;
}

static param_size affine(const char *layer, int is_bias, int rows, int columns) {
  return is_bias ? sized(layer, "bias", rows, 1) : sized(layer, "weight", rows, columns);
}

param_size param_size_of(const shape *s, int unit, int param) {
  const int w = s->width, is_bias = param % 2;
  if (unit == 0) {
    if (param == TOKENS) return sized("embed", "tokens", s->symbols, w);
    if (param == POSITIONS) return sized("embed", "positions", s->length, w);
    return affine("head.norm", is_bias, w, 1);
  }
  switch (param - is_bias) {
    case NORM1_WEIGHT: return affine("norm1", is_bias, w, 1);
    case QKV_WEIGHT: return affine("qkv", is_bias, 3 * w, w);
    case PROJ_WEIGHT: return affine("proj", is_bias, w, w);
    case NORM2_WEIGHT: return affine("norm2", is_bias, w, 1);
    case UP_WEIGHT: return affine("up", is_bias, 4 * w, w);
    default: return affine("down", is_bias, w, 4 * w);
  }
}

int64_t values_count(const shape *s) {
  int64_t count = 0;
  for (int u = 0; u <= s->blocks; u++)
    for (int p = 0; p < unit_params(u); p++) {
      const param_size size = param_size_of(s, u, p);
      count += (int64_t)size.rows * size.columns;
    }
  return count;
}

void param_sets_over(const shape *s, float *memory, param_set *sets) {
  for (int u = 0; u <= s->blocks; u++)
    for (int p = 0; p < unit_params(u); p++) {
      const param_size size = param_size_of(s, u, p);
      sets[u].p[p] = memory;
      memory += (int64_t)size.rows * size.columns;
    }
}

void initial_values(const shape *s, float *memory) {
  const uint32_t seed = 0;
  const double into_sum = pow(2 * s->blocks, -0.5); /* two terms of each block are added to the activations */
  generator g;
  ziggurat z;
  ziggurat_build(&z);
  generator_seed(&g, &seed, 1);
  for (int u = 0; u <= s->blocks; u++)
    for (int p = 0; p < unit_params(u); p++) {
      const param_size size = param_size_of(s, u, p);
      const int is_last = u > 0 && (p == PROJ_WEIGHT || p == DOWN_WEIGHT);
      const double scale = (is_last ? into_sum : 1) * pow(size.columns, -0.5);
      const int is_vector = size.columns == 1, is_bias = is_vector && p % 2;
      for (int64_t i = 0; i < (int64_t)size.rows * size.columns; i++)
        *memory++ = is_vector ? (float)!is_bias : (float)(scale * generator_normal(&g, &z));
    }
}
