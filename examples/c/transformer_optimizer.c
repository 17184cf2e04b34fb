/* SPDX-License-Identifier: Apache-2.0
 * AdamW, and its rate. */
#include "transformer.h"

#include <math.h>

double learning_rate(int step, int steps) {
  const double peak = 3e-3, rising = 20, up = (step + 1) / rising;
  return peak * (up < 1 ? up : 1) * (0.525 + 0.475 * cos(acos(-1) * step / steps));
}

void adamw_begin_step(adamw *optimizer, double rate) {
  optimizer->step++;
  optimizer->rate = rate;
}

void adamw_update(const adamw *optimizer, float *values, const float *grads, float *first, float *second,
                  int64_t count) {
  const float rate = (float)optimizer->rate, decay = (float)(1 - optimizer->rate * 0.01);
  const float unbias1 = (float)(1 - pow(0.9, optimizer->step)), unbias2 = (float)(1 - pow(0.999, optimizer->step));
  for (int64_t i = 0; i < count; i++) {
    first[i] = 0.9f * first[i] + 0.1f * grads[i];
    second[i] = 0.999f * second[i] + 0.001f * (grads[i] * grads[i]);
    values[i] = values[i] * decay - rate * (first[i] / unbias1 / (sqrtf(second[i] / unbias2) + 1e-8f));
  }
}
