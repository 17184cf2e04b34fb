// SPDX-License-Identifier: Apache-2.0
// Numbers of f64, f32, f16 and bf16 as double, each rounded to its dtype: what a test compares with memory of any of
// them.
#pragma once

#include "support/api.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace numbers {

using Numbers = std::vector<double>;

inline double rounded(tpfsdp_dtype dtype, double value) {
  if (dtype == TPFSDP_DTYPE_F64 || value == 0) return value;
  if (dtype == TPFSDP_DTYPE_F32) return static_cast<float>(value);
  const int bits = dtype == TPFSDP_DTYPE_F16 ? 11 : 8, least = dtype == TPFSDP_DTYPE_F16 ? -24 : -133;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last = std::max(exponent - bits, least);
  return std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
}

inline int64_t size_of(tpfsdp_dtype dtype) { return dtype == TPFSDP_DTYPE_F64 ? 8 : dtype == TPFSDP_DTYPE_F32 ? 4 : 2; }

inline uint16_t half_bits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);
  if (exponent < -13) return sign | static_cast<uint16_t>(std::ldexp(std::abs(value), 24));
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + static_cast<int>(std::ldexp(fraction, 11)) - 1024);
}
inline double of_half_bits(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

inline void write(tpfsdp_dtype dtype, void *memory, const Numbers &values) {
  auto *at = static_cast<std::byte *>(memory);
  for (const double value : values) {
    const auto single = static_cast<float>(value);
    uint32_t wide;
    std::memcpy(&wide, &single, sizeof wide);
    const uint16_t narrow = dtype == TPFSDP_DTYPE_F16 ? half_bits(value) : static_cast<uint16_t>(wide >> 16);
    const void *bytes = dtype == TPFSDP_DTYPE_F64   ? static_cast<const void *>(&value)
                        : dtype == TPFSDP_DTYPE_F32 ? static_cast<const void *>(&single)
                                                    : &narrow;
    std::memcpy(at, bytes, static_cast<size_t>(size_of(dtype)));
    at += size_of(dtype);
  }
}

inline Numbers read(const tpfsdp_view &view) {
  Numbers out;
  const auto count = static_cast<size_t>(api::count_of(view));
  for (size_t i = 0; i < count; ++i) {
    if (view.dtype == TPFSDP_DTYPE_F64) out.push_back(static_cast<const double *>(view.data)[i]);
    if (view.dtype == TPFSDP_DTYPE_F32) out.push_back(static_cast<const float *>(view.data)[i]);
    if (view.dtype == TPFSDP_DTYPE_F16) out.push_back(of_half_bits(static_cast<const uint16_t *>(view.data)[i]));
    if (view.dtype != TPFSDP_DTYPE_BF16) continue;
    const uint32_t wide = uint32_t{static_cast<const uint16_t *>(view.data)[i]} << 16;
    float single;
    std::memcpy(&single, &wide, sizeof single);
    out.push_back(single);
  }
  return out;
}

// a + b as a kernel adds into `dtype`.
inline double added(tpfsdp_dtype dtype, double a, double b) {
  if (dtype == TPFSDP_DTYPE_F64) return a + b;
  return rounded(dtype, static_cast<float>(a) + static_cast<float>(b));
}

}  // namespace numbers
