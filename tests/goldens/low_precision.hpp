// SPDX-License-Identifier: Apache-2.0
// Arithmetic of a host that computes in bf16: every operation sums exactly and rounds once, which is what PyTorch does
// on CPU for sums that float holds. Values are kept as float or double, and are bf16 numbers.
#pragma once

#include "support/numbers.hpp"
#include "support/toy_host.hpp"

namespace goldens {

template <class T>
std::vector<T> values_of(const tpfsdp_view &view) {
  const numbers::Numbers values = numbers::read(view);
  return {values.begin(), values.end()};
}

template <class T>
void store(const std::vector<T> &values, const tpfsdp_view &view) {
  numbers::write(view.dtype, view.data, {values.begin(), values.end()});
}

inline double rounded_to_bf16(double value) { return numbers::rounded(TPFSDP_DTYPE_BF16, value); }

template <class T>
class Arithmetic {
 public:
  explicit Arithmetic(bool in_bf16) : in_bf16_(in_bf16) {}

  void round(std::vector<T> &values) const {
    for (T &value : values) value = in_bf16_ ? static_cast<T>(rounded_to_bf16(value)) : value;
  }
  void add(std::vector<T> &to, const std::vector<T> &values) const {
    for (size_t i = 0; i < to.size(); ++i) to[i] += values[i];
    round(to);
  }
  std::vector<T> linear(const std::vector<T> &x, const std::vector<T> &weight, const std::vector<T> &bias, int64_t rows,
                        int64_t in, int64_t out) const {
    std::vector<T> y(static_cast<size_t>(rows * out));
    if (in_bf16_) {
      std::vector<double> wide(y.size());
      toy::linear_forward(of(x).data(), of(weight).data(), bias.empty() ? nullptr : of(bias).data(), wide.data(), rows,
                          in, out);
      narrow(wide, y);
    } else {
      toy::linear_forward(x.data(), weight.data(), bias.empty() ? nullptr : bias.data(), y.data(), rows, in, out);
    }
    return y;
  }
  void linear_backward(const std::vector<T> &x, const std::vector<T> &weight, const std::vector<T> &dy,
                       std::vector<T> &dx, std::vector<T> &dweight, std::vector<T> &dbias, int64_t rows, int64_t in,
                       int64_t out) const {
    if (!in_bf16_) {
      toy::linear_backward(x.data(), weight.data(), dy.data(), dx.data(), dweight.data(), dbias.data(), rows, in, out);
      return;
    }
    std::vector<double> wide_dx(dx.size()), wide_dweight(dweight.size()), wide_dbias(dbias.size());
    toy::linear_backward(of(x).data(), of(weight).data(), of(dy).data(), wide_dx.data(), wide_dweight.data(),
                         wide_dbias.data(), rows, in, out);
    narrow(wide_dx, dx);
    narrow(wide_dweight, dweight);
    narrow(wide_dbias, dbias);
  }

 private:
  // Exact as long as the sums are.
  static std::vector<double> of(const std::vector<T> &values) { return {values.begin(), values.end()}; }
  static void narrow(const std::vector<double> &wide, std::vector<T> &out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(rounded_to_bf16(wide[i]));
  }

  bool in_bf16_;
};

}  // namespace goldens
