// SPDX-License-Identifier: Apache-2.0
// The numbers that the toy models start from, as README.md has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace goldens {

// Elements formula(i), in exact fractions.
template <class T, class Formula>
std::vector<T> filled(size_t count, Formula &&formula) {
  std::vector<T> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = formula(static_cast<int64_t>(i));
  return out;
}

// Of the parameter number `index`, before sharding.
template <class T>
std::vector<T> parameter_values(int64_t index, size_t count) {
  return filled<T>(count, [&](int64_t i) { return static_cast<T>((7 * index + 5 * i + i / 3) % 17 - 8) / 16; });
}

template <class T>
std::vector<T> input(int64_t rank, int64_t it, int64_t mb, size_t count) {
  return filled<T>(count, [&](int64_t i) { return static_cast<T>((3 * rank + 5 * it + 11 * mb + 7 * i) % 9 - 4) / 4; });
}

template <class T>
std::vector<T> target(int64_t rank, int64_t it, int64_t mb, size_t count) {
  return filled<T>(count, [&](int64_t i) { return static_cast<T>((2 * rank + 3 * it + 5 * mb + 4 * i) % 7 - 3) / 4; });
}

// Of sum((y - t)^2) / 16, which is added to *loss.
template <class T>
std::vector<T> gradient_of_loss(const std::vector<T> &y, const std::vector<T> &t, T *loss) {
  T sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += (y[i] - t[i]) * (y[i] - t[i]);
  *loss += sum / 16;
  return filled<T>(y.size(), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    return 2 * (y[at] - t[at]) / 16;
  });
}

}  // namespace goldens
