// SPDX-License-Identifier: Apache-2.0
// The optimizers of the golden files, on shards.
#pragma once

#include "goldens/model.hpp"

#include <cmath>

namespace goldens {

// SGD: lr 1/8, no momentum. AdamW: lr 1/64, betas (0.5, 0.75), eps 1/1024, weight decay 1/16.
template <class T>
class Optimizer {
 public:
  explicit Optimizer(bool is_adamw) : is_adamw_(is_adamw) {}

  // `own` are the gradients of parameters that are in no unit.
  void step(const Model &model, const std::map<std::string, std::vector<T>> &own) {
    ++step_;
    for (const Param &param : model.params()) {
      const auto at = own.find(param.name);
      if (at != own.end()) {
        update(param.name, api::face(param.handle, TPFSDP_FACE_FULL), at->second.data());
      } else if (api::has_grad(param.handle)) {
        update(param.name, api::face(param.handle, TPFSDP_FACE_SHARD),
               static_cast<const T *>(api::face(param.handle, TPFSDP_FACE_GRAD).data));
      }
    }
  }

 private:
  struct Moments {
    std::vector<T> first, second;
  };

  void update(const std::string &name, const tpfsdp_view &values, const T *g) {
    T *p = static_cast<T *>(values.data);
    const auto count = static_cast<size_t>(api::count_of(values));
    Moments &moments = moments_[name];
    moments.first.resize(count);
    moments.second.resize(count);
    const T lr = T{1} / 64, b1 = T{0.5}, b2 = T{0.75}, steps = static_cast<T>(step_);
    for (size_t i = 0; i < count; ++i) {
      if (!is_adamw_) {
        p[i] -= g[i] / 8;
        continue;
      }
      T &m = moments.first[i], &v = moments.second[i];
      p[i] -= lr * (T{1} / 16) * p[i];
      m = b1 * m + (1 - b1) * g[i];
      v = b2 * v + (1 - b2) * g[i] * g[i];
      const T denominator = std::sqrt(v) / std::sqrt(1 - std::pow(b2, steps)) + T{1} / 1024;
      p[i] -= lr / (1 - std::pow(b1, steps)) * m / denominator;
    }
  }

  bool is_adamw_;
  int step_ = 0;
  std::map<std::string, Moments> moments_;
};

}  // namespace goldens
