// SPDX-License-Identifier: Apache-2.0
// bf16 and f16 in integer code: round to nearest even, subnormals kept, NaNs quiet with the top of their payload.
// Branch free, so that compilers turn loops over them into vectors.
//
// Everything has internal linkage and no template of the standard library is used: these functions are compiled once
// for each instruction set, and the linker must not fold an AVX copy into code that runs on any CPU.
#pragma once

#include <cstdint>

namespace tpfsdp {
namespace {

#if defined(TPFSDP_MUTANT_TRUNCATING_BF16)
constexpr uint32_t kBf16Half = 0, kBf16Odd = 0;
#else
constexpr uint32_t kBf16Half = 0x7fff, kBf16Odd = 1;  // half a unit of the last place but one; ties go to even
#endif
constexpr uint32_t kF32Sign = 0x80000000, kF32Infinity = 0x7f800000;
constexpr uint32_t kF32Nan = 0x7fc00000;
constexpr uint64_t kF64Nan = 0x7ff8000000000000;

static inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
static inline float f32_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Memory of hosts: read and written by bytes, so that its alignment does not matter.
template <class T>
static inline T load(const void *source, int64_t index) {
  T value;
  __builtin_memcpy(&value, static_cast<const char *>(source) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
static inline void store(void *target, int64_t index, T value) {
  __builtin_memcpy(static_cast<char *>(target) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Reductions give one quiet NaN, whatever NaNs went in: which of two payloads survives an addition depends on the order
// in which a compiler writes its operands.
static inline float one_nan(float value) { return value == value ? value : f32_of(kF32Nan); }
static inline double one_nan(double value) { return value == value ? value : __builtin_bit_cast(double, kF64Nan); }

static inline float f32_from_bf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  const uint32_t quiet = (bits & ~kF32Sign) > kF32Infinity ? 0x400000u : 0u;
  return f32_of(bits | quiet);
}

static inline uint16_t bf16_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + kBf16Half + ((bits >> 16) & kBf16Odd)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & ~kF32Sign) > kF32Infinity ? nan : rounded);
}

static inline float f32_from_f16(uint16_t value) {
  const uint32_t sign = (uint32_t{value} & 0x8000) << 16;
  const uint32_t magnitude = uint32_t{value} & 0x7fff;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);  // rebias 15 -> 127
  const uint32_t special = shifted | kF32Infinity | (magnitude > 0x7c00 ? 0x400000u : 0u);
  // A subnormal is an integer of units of 2^-24: exact in f32.
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x400 ? subnormal : normal;
  return f32_of(sign | bits);
}

static inline uint16_t f16_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits & kF32Sign) >> 16;
  const uint32_t magnitude = bits & ~kF32Sign;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: adding 0.5 puts units of 2^-24 at the end of the mantissa, rounded by the addition itself.
  const uint32_t subnormal = bits_of(f32_of(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  // 65520 and more round to infinity.
  const uint32_t result = magnitude > kF32Infinity ? nan : magnitude >= 0x477ff000 ? 0x7c00u : finite;
  return static_cast<uint16_t>(sign | result);
}

}  // namespace
}  // namespace tpfsdp
