// SPDX-License-Identifier: Apache-2.0
// A host for tests: linear layers with forward and backward by hand, in plain loops, so that every bit is known. It
// drives the library by the hooks of manual mode, in the order in which an autograd would reach them.
#pragma once

#include "support/api.hpp"

#include <algorithm>
#include <cmath>

namespace toy {

template <class T>
constexpr tpfsdp_dtype dtype_of() {
  return sizeof(T) == 8 ? TPFSDP_DTYPE_F64 : TPFSDP_DTYPE_F32;
}

// y = x W^T + b over `rows` rows; without bias: null.
template <class T>
void linear_forward(const T *x, const T *weight, const T *bias, T *y, int64_t rows, int64_t in, int64_t out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      T sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
      y[r * out + o] = bias ? sum + bias[o] : sum;
    }
  }
}

template <class T>
void linear_backward(const T *x, const T *weight, const T *dy, T *dx, T *dweight, T *dbias, int64_t rows, int64_t in,
                     int64_t out) {
  for (int64_t r = 0; dx && r < rows; ++r) {
    for (int64_t i = 0; i < in; ++i) {
      T sum = 0;
      for (int64_t o = 0; o < out; ++o) sum += dy[r * out + o] * weight[o * in + i];
      dx[r * in + i] = sum;
    }
  }
  for (int64_t o = 0; dweight && o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      T sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += dy[r * out + o] * x[r * in + i];
      dweight[o * in + i] = sum;
    }
  }
  for (int64_t o = 0; dbias && o < out; ++o) {
    T sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += dy[r * out + o];
    dbias[o] = sum;
  }
}

// One layer of a chain: its unit's module, its parameters, and what backward needs.
template <class T>
struct Layer {
  std::string name;
  tpfsdp_module *module = nullptr;  // whose hooks frame it; null: part of the module around it
  tpfsdp_param *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  bool relu = false;      // of the output
  bool residual = false;  // output is added to the input
  bool weight_trains = true, bias_trains = true;
  std::vector<T> x, y;  // input, and output before the residual
};

template <class T>
const T *full(tpfsdp_param *param) {
  return static_cast<const T *>(api::face(param, TPFSDP_FACE_FULL).data);
}

template <class T>
T *grad_buffer(tpfsdp_param *param) {
  tpfsdp_view view{};
  API(tpfsdp_param_get_grad_buffer, param, 0, &view);
  return static_cast<T *>(view.data);
}

template <class T>
std::vector<T> forward(Layer<T> &layer, const std::vector<T> &x, int64_t rows) {
  if (layer.module) API(tpfsdp_module_pre_forward, layer.module);
  layer.x = x;
  layer.y.assign(static_cast<size_t>(rows * layer.out), 0);
  linear_forward(x.data(), full<T>(layer.weight), full<T>(layer.bias), layer.y.data(), rows, layer.in, layer.out);
  if (layer.relu) {
    for (T &value : layer.y) value = std::max(value, T{0});
  }
  std::vector<T> out = layer.y;
  if (layer.residual) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += x[i];
  }
  if (layer.module) API(tpfsdp_module_post_forward, layer.module);
  return out;
}

// The gradient of the input. Its own hooks are the caller's: pre_backward comes before, post_backward after.
template <class T>
std::vector<T> backward(Layer<T> &layer, const std::vector<T> &dout, int64_t rows) {
  std::vector<T> dy = dout;
  if (layer.relu) {
    for (size_t i = 0; i < dy.size(); ++i) dy[i] = layer.y[i] > 0 ? dy[i] : T{0};
  }
  std::vector<T> dx(layer.x.size());
  T *dweight = layer.weight_trains ? grad_buffer<T>(layer.weight) : nullptr;
  T *dbias = layer.bias_trains ? grad_buffer<T>(layer.bias) : nullptr;
  linear_backward(layer.x.data(), full<T>(layer.weight), dy.data(), dx.data(), dweight, dbias, rows, layer.in,
                  layer.out);
  if (layer.weight_trains) API(tpfsdp_param_grad_ready, layer.weight);
  if (layer.bias_trains) API(tpfsdp_param_grad_ready, layer.bias);
  if (layer.residual) {
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += dout[i];
  }
  return dx;
}

}  // namespace toy
