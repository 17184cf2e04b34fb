// SPDX-License-Identifier: Apache-2.0
// From a dtype to the C++ type of its elements.
#pragma once

#include "device/float_formats.hpp"

#include <tpfsdp/backend.h>

#include <cstdint>
#include <type_traits>

namespace tpfsdp {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

static inline float f32_value(float value) { return value; }
static inline float f32_value(Bf16 value) { return f32_from_bf16(value.bits); }
static inline float f32_value(F16 value) { return f32_from_f16(value.bits); }

// Calls use(T{}) with the element type of a reducible dtype.
template <class Use>
void with_integer(tpfsdp_dtype dtype, Use &&use) {
  switch (dtype) {
    case TPFSDP_DTYPE_I8: return use(int8_t{});
    case TPFSDP_DTYPE_I16: return use(int16_t{});
    case TPFSDP_DTYPE_I32: return use(int32_t{});
    case TPFSDP_DTYPE_I64: return use(int64_t{});
    case TPFSDP_DTYPE_U8: return use(uint8_t{});
    case TPFSDP_DTYPE_U16: return use(uint16_t{});
    case TPFSDP_DTYPE_U32: return use(uint32_t{});
    default: return use(uint64_t{});
  }
}

template <class Use>
void with_element(tpfsdp_dtype dtype, Use &&use) {
  switch (dtype) {
    case TPFSDP_DTYPE_F64: return use(double{});
    case TPFSDP_DTYPE_F32: return use(float{});
    case TPFSDP_DTYPE_F16: return use(F16{});
    case TPFSDP_DTYPE_BF16: return use(Bf16{});
    default: return with_integer(dtype, use);
  }
}

}  // namespace tpfsdp
