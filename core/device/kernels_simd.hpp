// SPDX-License-Identifier: Apache-2.0
// The vector kernels, written once over a set of registers `V` that each instruction set's file provides: types Float,
// Double and their loads, stores, additions and conversions. Included by those files only, each compiled with its own
// flags: hence internal linkage throughout, and nothing of the standard library.
#pragma once

#include "device/float_formats.hpp"
#include "device/kernel_table.hpp"

#include <cstddef>

namespace tpfsdp {
namespace {

static inline const char *byte_at(const void *data, int64_t offset) { return static_cast<const char *>(data) + offset; }
static inline char *byte_at(void *data, int64_t offset) { return static_cast<char *>(data) + offset; }

// How elements in memory become the numbers that are summed: a vector of them, and one.
template <class V>
struct AsF32 {
  using Real = float;
  static constexpr int64_t kBytes = 4, kLanes = V::kFloats;
  static typename V::Float read(const void *data, int64_t i) { return V::load_f32(byte_at(data, 4 * i)); }
  static float read_one(const void *data, int64_t i) { return load<float>(data, i); }
};
template <class V>
struct AsBf16 {
  using Real = float;
  static constexpr int64_t kBytes = 2, kLanes = V::kFloats;
  static typename V::Float read(const void *data, int64_t i) { return V::load_bf16(byte_at(data, 2 * i)); }
  static float read_one(const void *data, int64_t i) { return f32_from_bf16(load<uint16_t>(data, i)); }
};
template <class V>
struct AsF16 {
  using Real = float;
  static constexpr int64_t kBytes = 2, kLanes = V::kFloats;
  static typename V::Float read(const void *data, int64_t i) { return V::load_f16(byte_at(data, 2 * i)); }
  static float read_one(const void *data, int64_t i) { return f32_from_f16(load<uint16_t>(data, i)); }
};
template <class V>
struct AsF64 {
  using Real = double;
  static constexpr int64_t kBytes = 8, kLanes = V::kFloats / 2;
  static typename V::Double read(const void *data, int64_t i) { return V::load_f64(byte_at(data, 8 * i)); }
  static double read_one(const void *data, int64_t i) { return load<double>(data, i); }
};

// One pass over all inputs: four vectors of sums stay in registers while the ranks are added to them.
template <class V, class As>
void sum(const void *const *inputs, int32_t input_count, typename As::Real scale, bool accumulate, void *output,
         int64_t count) {
  using Real = typename As::Real;
  constexpr int64_t kLanes = As::kLanes, kStep = 4 * kLanes;
  constexpr auto kReal = static_cast<int64_t>(sizeof(Real));
  const auto scales = V::all(scale);
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    auto a = As::read(inputs[0], i), b = As::read(inputs[0], i + kLanes);
    auto c = As::read(inputs[0], i + 2 * kLanes), d = As::read(inputs[0], i + 3 * kLanes);
    for (int32_t rank = 1; rank < input_count; ++rank) {
      a = V::add(a, As::read(inputs[rank], i));
      b = V::add(b, As::read(inputs[rank], i + kLanes));
      c = V::add(c, As::read(inputs[rank], i + 2 * kLanes));
      d = V::add(d, As::read(inputs[rank], i + 3 * kLanes));
    }
    a = V::multiply(a, scales);
    b = V::multiply(b, scales);
    c = V::multiply(c, scales);
    d = V::multiply(d, scales);
    char *target = byte_at(output, kReal * i);
    if (accumulate) {
      a = V::add(V::load(scale, target), a);
      b = V::add(V::load(scale, target + kReal * kLanes), b);
      c = V::add(V::load(scale, target + kReal * 2 * kLanes), c);
      d = V::add(V::load(scale, target + kReal * 3 * kLanes), d);
    }
    V::store(target, V::one_nan(a));
    V::store(target + kReal * kLanes, V::one_nan(b));
    V::store(target + kReal * 2 * kLanes, V::one_nan(c));
    V::store(target + kReal * 3 * kLanes, V::one_nan(d));
  }
  for (; i < count; ++i) {
    Real total = As::read_one(inputs[0], i);
    for (int32_t rank = 1; rank < input_count; ++rank) total = total + As::read_one(inputs[rank], i);
    total = total * scale;
    if (accumulate) total = load<Real>(output, i) + total;
    store<Real>(output, i, one_nan(total));
  }
}

template <class V>
void f32_from_bf16_all(void *target, const void *source, int64_t count) {
  int64_t i = 0;
  for (; i + V::kFloats <= count; i += V::kFloats)
    V::store(byte_at(target, 4 * i), V::quiet_bf16(V::load_bf16(byte_at(source, 2 * i))));
  for (; i < count; ++i) store<float>(target, i, f32_from_bf16(load<uint16_t>(source, i)));
}

template <class V>
void f32_from_f16_all(void *target, const void *source, int64_t count) {
  int64_t i = 0;
  for (; i + V::kFloats <= count; i += V::kFloats)
    V::store(byte_at(target, 4 * i), V::load_f16(byte_at(source, 2 * i)));
  for (; i < count; ++i) store<float>(target, i, f32_from_f16(load<uint16_t>(source, i)));
}

template <class V>
void bf16_from_f32_all(void *target, const void *source, int64_t count) {
  int64_t i = 0;
  for (; i + V::kFloats <= count; i += V::kFloats)
    V::store_bf16(byte_at(target, 2 * i), V::load_f32(byte_at(source, 4 * i)));
  for (; i < count; ++i) store<uint16_t>(target, i, bf16_from_f32(load<float>(source, i)));
}

template <class V>
void f16_from_f32_all(void *target, const void *source, int64_t count) {
  int64_t i = 0;
  for (; i + V::kFloats <= count; i += V::kFloats)
    V::store_f16(byte_at(target, 2 * i), V::load_f32(byte_at(source, 4 * i)));
  for (; i < count; ++i) store<uint16_t>(target, i, f16_from_f32(load<float>(source, i)));
}

// Head and tail by bytes, whole vectors past the caches in between.
template <class V>
void stream_bytes(void *target, const void *source, int64_t size_bytes) {
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uint64_t>(target) % V::kStreamBytes);
  const int64_t head = past == 0 ? 0 : V::kStreamBytes - past;
  int64_t i = head < size_bytes ? head : size_bytes;
  __builtin_memcpy(target, source, static_cast<size_t>(i));
  for (; i + 4 * V::kStreamBytes <= size_bytes; i += 4 * V::kStreamBytes) {
    for (int64_t k = 0; k < 4; ++k)
      V::stream(byte_at(target, i + k * V::kStreamBytes), byte_at(source, i + k * V::kStreamBytes));
  }
  V::fence();
  __builtin_memcpy(byte_at(target, i), byte_at(source, i), static_cast<size_t>(size_bytes - i));
}

template <class V>
constexpr KernelTable simd_table(const char *level) {
  return {
      .level = level,
      .sum_f32 = sum<V, AsF32<V>>,
      .sum_bf16 = sum<V, AsBf16<V>>,
      .sum_f16 = sum<V, AsF16<V>>,
      .sum_f64 = sum<V, AsF64<V>>,
      .f32_from_bf16 = f32_from_bf16_all<V>,
      .f32_from_f16 = f32_from_f16_all<V>,
      .bf16_from_f32 = bf16_from_f32_all<V>,
      .f16_from_f32 = f16_from_f32_all<V>,
      .stream_bytes = stream_bytes<V>,
  };
}

}  // namespace
}  // namespace tpfsdp
