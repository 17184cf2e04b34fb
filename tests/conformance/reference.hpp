// SPDX-License-Identifier: Apache-2.0
// What a reduction must give, computed element by element in the plainest way: the rule of DESIGN 8, independent of the
// library's kernels.
#pragma once

#include <tpfsdp/base.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace reference {

inline int bits_of(tpfsdp_dtype dtype) {
  switch (dtype) {
    case TPFSDP_DTYPE_F64:
    case TPFSDP_DTYPE_I64:
    case TPFSDP_DTYPE_U64:
    case TPFSDP_DTYPE_C64: return 64;
    case TPFSDP_DTYPE_F32:
    case TPFSDP_DTYPE_I32:
    case TPFSDP_DTYPE_U32: return 32;
    case TPFSDP_DTYPE_F16:
    case TPFSDP_DTYPE_BF16:
    case TPFSDP_DTYPE_I16:
    case TPFSDP_DTYPE_U16: return 16;
    case TPFSDP_DTYPE_C128: return 128;
    case TPFSDP_DTYPE_F6_E2M3FN: return 6;
    case TPFSDP_DTYPE_F4_E2M1FN: return 4;
    default: return 8;
  }
}

inline float widen(uint16_t half, bool is_bf16) {
  if (is_bf16) return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// Round to nearest even by trying: the candidate below and above, and the even one of a tie.
inline uint16_t narrow(float value, bool is_bf16) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const uint16_t infinity = is_bf16 ? 0x7f80 : 0x7c00;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | (is_bf16 ? 0x7fc0 : 0x7e00));
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return sign | infinity;
  uint32_t low = 0, high = infinity;  // the largest code that is not above
  while (low + 1 < high) {
    const uint32_t middle = (low + high) / 2;
    (widen(static_cast<uint16_t>(middle), is_bf16) <= magnitude ? low : high) = middle;
  }
  const double below = widen(static_cast<uint16_t>(low), is_bf16);
  const double step = low + 1 < infinity ? widen(static_cast<uint16_t>(low + 1), is_bf16) - below
                                         : below - widen(static_cast<uint16_t>(low - 1), is_bf16);
  const double rest = (magnitude - below) / step;
  const bool up = rest > 0.5 || (rest == 0.5 && (low & 1));
  return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
}

template <class T>
T minmax(tpfsdp_reduce_op op, T a, T b) {
  if (a != a || b != b) return std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : a;
  if constexpr (std::is_floating_point_v<T>) {
    if (a == 0 && b == 0) return op == TPFSDP_REDUCE_MIN ? (std::signbit(a) ? a : b) : (std::signbit(a) ? b : a);
  }
  return op == TPFSDP_REDUCE_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

template <class T>
T reduce_float(tpfsdp_reduce_op op, const std::vector<T> &values) {
  T sum = values[0];
  for (size_t i = 1; i < values.size(); ++i)
    sum = op == TPFSDP_REDUCE_SUM || op == TPFSDP_REDUCE_AVG ? sum + values[i] : minmax(op, sum, values[i]);
  return op == TPFSDP_REDUCE_AVG ? sum * static_cast<T>(1.0 / static_cast<double>(values.size())) : sum;
}

template <class T>
T reduce_integer(tpfsdp_reduce_op op, const std::vector<T> &values) {
  using Unsigned = std::make_unsigned_t<T>;
  T sum = values[0];
  for (size_t i = 1; i < values.size(); ++i)
    sum = op == TPFSDP_REDUCE_SUM || op == TPFSDP_REDUCE_AVG
              ? static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(sum) + static_cast<Unsigned>(values[i])))
              : minmax(op, sum, values[i]);
  if (op != TPFSDP_REDUCE_AVG) return sum;
  if constexpr (std::is_signed_v<T>)
    return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(values.size()));
  return static_cast<T>(static_cast<uint64_t>(sum) / values.size());
}

// Whether `got` is the reduction of element `index` over the inputs of all ranks, bit for bit; any quiet NaN for a NaN.
inline bool is_reduction(tpfsdp_reduce_op op, tpfsdp_dtype dtype, const std::vector<std::vector<uint8_t>> &inputs,
                         int64_t index, const uint8_t *got) {
  const size_t bytes = static_cast<size_t>(bits_of(dtype)) / 8;
  const auto exact = [&]<class T>(T (*rule)(tpfsdp_reduce_op, const std::vector<T> &)) {
    std::vector<T> values;
    for (const auto &input : inputs) {
      T value;
      std::memcpy(&value, input.data() + static_cast<size_t>(index) * bytes, sizeof value);
      values.push_back(value);
    }
    const T expected = rule(op, values);
    T actual;
    std::memcpy(&actual, got, sizeof actual);
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(expected)) {
        using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
        const Bits quiet = Bits{1} << (sizeof(T) == 8 ? 51 : 22);
        return std::isnan(actual) && (std::bit_cast<Bits>(actual) & quiet) != 0;
      }
    }
    return std::memcmp(&expected, &actual, sizeof expected) == 0;
  };
  switch (dtype) {
    case TPFSDP_DTYPE_F64: return exact(&reduce_float<double>);
    case TPFSDP_DTYPE_F32: return exact(&reduce_float<float>);
    case TPFSDP_DTYPE_I8: return exact(&reduce_integer<int8_t>);
    case TPFSDP_DTYPE_I16: return exact(&reduce_integer<int16_t>);
    case TPFSDP_DTYPE_I32: return exact(&reduce_integer<int32_t>);
    case TPFSDP_DTYPE_I64: return exact(&reduce_integer<int64_t>);
    case TPFSDP_DTYPE_U8: return exact(&reduce_integer<uint8_t>);
    case TPFSDP_DTYPE_U16: return exact(&reduce_integer<uint16_t>);
    case TPFSDP_DTYPE_U32: return exact(&reduce_integer<uint32_t>);
    case TPFSDP_DTYPE_U64: return exact(&reduce_integer<uint64_t>);
    default: break;
  }
  const bool is_bf16 = dtype == TPFSDP_DTYPE_BF16;
  std::vector<float> values;
  for (const auto &input : inputs) {
    uint16_t half;
    std::memcpy(&half, input.data() + static_cast<size_t>(index) * 2, 2);
    values.push_back(widen(half, is_bf16));
  }
  const float expected = reduce_float(op, values);
  uint16_t actual;
  std::memcpy(&actual, got, 2);
  if (std::isnan(expected)) return std::isnan(widen(actual, is_bf16)) && (actual & (is_bf16 ? 0x40 : 0x200)) != 0;
  return actual == narrow(expected, is_bf16);
}

}  // namespace reference
