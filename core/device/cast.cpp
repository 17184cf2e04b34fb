// SPDX-License-Identifier: Apache-2.0
// Casts between all number types. The pairs that training uses go by the kernel table, the rest element by element.
#include "device/element.hpp"
#include "device/float_environment.hpp"
#include "device/float_formats.hpp"
#include "device/kernel_table.hpp"
#include "device/kernels.hpp"

#include <limits>

namespace tpfsdp {
namespace {

// f64 to f32, rounded to odd: the last bit says that something was cut off, so that a second rounding to a narrower
// type gives what one rounding would.
float f32_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value || (bits_of(nearest) & 1) != 0) return nearest;
  const bool is_larger = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  return f32_of(is_larger ? bits_of(nearest) - 1 : bits_of(nearest) + 1);
}

// A 64-bit integer as f64 for a narrower type: what does not fit in 53 bits is kept as one sticky bit.
template <class Integer>
double f64_sticky(Integer value) {
  const bool is_negative = value < 0;
  const uint64_t magnitude = is_negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  double result;
  if (magnitude < uint64_t{1} << 53) {
    result = static_cast<double>(magnitude);
  } else {
    result = static_cast<double>((magnitude >> 12) | ((magnitude & 0xfff) != 0 ? 1 : 0)) * 4096.0;
  }
  return is_negative ? -result : result;
}

template <class Integer>
Integer saturated(double value) {
  using Limits = std::numeric_limits<Integer>;
  if (value != value) return 0;
  // The bounds as doubles: the lower is exact, the upper is rounded up to one past the largest for 64 bits.
  constexpr double kLowest = static_cast<double>(Limits::min());
  constexpr double kPast = static_cast<double>(Limits::max() / 2 + 1) * 2.0;
  if (value <= kLowest) return Limits::min();
  if (value >= kPast) return Limits::max();
  return static_cast<Integer>(value);
}

template <class Target>
Target from_f64(double value) {
  if constexpr (std::is_same_v<Target, Bf16>)
    return {bf16_from_f32(f32_to_odd(value))};
  else if constexpr (std::is_same_v<Target, F16>)
    return {f16_from_f32(f32_to_odd(value))};
  else if constexpr (std::is_integral_v<Target>)
    return saturated<Target>(value);
  else
    return static_cast<Target>(value);
}

template <class Target, class Source>
Target convert(Source value) {
  if constexpr (std::is_integral_v<Source>) {
    if constexpr (std::is_arithmetic_v<Target>)
      return static_cast<Target>(value);
    else
      return from_f64<Target>(f64_sticky(value));
  } else if constexpr (std::is_same_v<Source, double>) {
    return from_f64<Target>(value);
  } else {
    return from_f64<Target>(static_cast<double>(f32_value(value)));
  }
}

ConvertKernel hot_kernel(tpfsdp_dtype target, tpfsdp_dtype source) {
  const KernelTable &table = kernels();
  if (target == TPFSDP_DTYPE_F32 && source == TPFSDP_DTYPE_BF16) return table.f32_from_bf16;
  if (target == TPFSDP_DTYPE_F32 && source == TPFSDP_DTYPE_F16) return table.f32_from_f16;
  if (target == TPFSDP_DTYPE_BF16 && source == TPFSDP_DTYPE_F32) return table.bf16_from_f32;
  if (target == TPFSDP_DTYPE_F16 && source == TPFSDP_DTYPE_F32) return table.f16_from_f32;
  return nullptr;
}

}  // namespace

void cast(void *target, tpfsdp_dtype target_dtype, const void *source, tpfsdp_dtype source_dtype, int64_t count) {
  if (target_dtype == source_dtype) {
    copy_bytes(target, source, dtype_bytes(source_dtype, count));
    return;
  }
  if (!is_reducible(target_dtype) || !is_reducible(source_dtype))
    fail(TPFSDP_ERR_UNSUPPORTED, "no cast from ", dtype_name(source_dtype), " to ", dtype_name(target_dtype),
         "; f64, f32, f16, bf16 and integers of 8 to 64 bits can be cast");
  const FloatEnvironment environment;
  if (const ConvertKernel kernel = hot_kernel(target_dtype, source_dtype)) {
    kernel(target, source, count);
    return;
  }
  with_element(source_dtype, [&]<class Source>(Source) {
    with_element(target_dtype, [&]<class Target>(Target) {
      for (int64_t i = 0; i < count; ++i) store<Target>(target, i, convert<Target>(load<Source>(source, i)));
    });
  });
}

}  // namespace tpfsdp
