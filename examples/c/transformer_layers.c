/* SPDX-License-Identifier: Apache-2.0
 * Linear, norm and GELU in plain loops, forward and backward. Every sum has one order, so equal inputs give equal
 * bits. */
#include "transformer.h"

#include <math.h>
#include <string.h>

/* Four outputs at a time: an addition need not wait for the one before it, and each sum keeps its order. */
static void four_products(float *y, const float *x, const float *weight, int in) {
  const float *w0 = weight, *w1 = w0 + in, *w2 = w1 + in, *w3 = w2 + in;
  float sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
  for (int k = 0; k < in; k++) {
    sum0 += x[k] * w0[k];
    sum1 += x[k] * w1[k];
    sum2 += x[k] * w2[k];
    sum3 += x[k] * w3[k];
  }
  y[0] = sum0, y[1] = sum1, y[2] = sum2, y[3] = sum3;
}

void linear(float *y, const float *x, const float *weight, const float *bias, int rows, int in, int out) {
  for (int i = 0; i < rows; i++, x += in, y += out) {
    int o = 0;
    for (; o + 4 <= out; o += 4) four_products(y + o, x, weight + (int64_t)o * in, in);
    for (; o < out; o++) {
      y[o] = 0;
      for (int k = 0; k < in; k++) y[o] += x[k] * weight[(int64_t)o * in + k];
    }
    for (o = 0; bias && o < out; o++) y[o] += bias[o];
  }
}

void linear_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                     int rows, int in, int out) {
  memset(dx, 0, sizeof(float) * (size_t)rows * (size_t)in);
  memset(dweight, 0, sizeof(float) * (size_t)out * (size_t)in);
  if (dbias) memset(dbias, 0, sizeof(float) * (size_t)out);
  for (int i = 0; i < rows; i++, x += in, dx += in, dy += out)
    for (int o = 0; o < out; o++) {
      const float d = dy[o], *w = weight + (int64_t)o * in;
      float *dw = dweight + (int64_t)o * in;
      if (dbias) dbias[o] += d;
      for (int k = 0; k < in; k++) {
        dw[k] += d * x[k];
        dx[k] += d * w[k];
      }
    }
}

void norm(float *y, float *normed, float *factor, const float *x, const float *weight, const float *bias, int rows,
          int width) {
  for (int i = 0; i < rows; i++, x += width, y += width, normed += width) {
    float mean = 0, variance = 0;
    for (int k = 0; k < width; k++) mean += x[k];
    mean /= (float)width;
    for (int k = 0; k < width; k++) variance += (x[k] - mean) * (x[k] - mean);
    variance /= (float)width;
    factor[i] = 1 / sqrtf(variance + 1e-5f);
    for (int k = 0; k < width; k++) {
      normed[k] = (x[k] - mean) * factor[i];
      y[k] = normed[k] * weight[k] + bias[k];
    }
  }
}

void norm_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *normed, const float *factor,
                   const float *weight, int rows, int width) {
  memset(dweight, 0, sizeof(float) * (size_t)width);
  memset(dbias, 0, sizeof(float) * (size_t)width);
  for (int i = 0; i < rows; i++, dx += width, dy += width, normed += width) {
    float mean = 0, along = 0;
    for (int k = 0; k < width; k++) {
      const float d = dy[k] * weight[k];
      mean += d;
      along += d * normed[k];
      dweight[k] += dy[k] * normed[k];
      dbias[k] += dy[k];
    }
    mean /= (float)width;
    along /= (float)width;
    for (int k = 0; k < width; k++) dx[k] += (dy[k] * weight[k] - mean - normed[k] * along) * factor[i];
  }
}

/* In its form with tanh. */
static const float ROOT_OF_2_BY_PI = 0.79788456080286535588f, CUBIC = 0.044715f;

void gelu(float *y, float *tanhs, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    tanhs[i] = tanhf(ROOT_OF_2_BY_PI * (x[i] + CUBIC * x[i] * x[i] * x[i]));
    y[i] = 0.5f * x[i] * (1 + tanhs[i]);
  }
}

void gelu_backward(float *dy, const float *x, const float *tanhs, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const float inner = ROOT_OF_2_BY_PI * (1 + 3 * CUBIC * x[i] * x[i]);
    dy[i] *= 0.5f * (1 + tanhs[i] + x[i] * (1 - tanhs[i] * tanhs[i]) * inner);
  }
}
