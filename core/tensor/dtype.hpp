// SPDX-License-Identifier: Apache-2.0
// Element types: names, sizes, their DLPack codes, and what can be reduced.
#pragma once

#include <tpfsdp/backend.h>

namespace tpfsdp {

const char *dtype_name(tpfsdp_dtype dtype) noexcept;     // "bf16"; "unknown"
int32_t dtype_bits(tpfsdp_dtype dtype) noexcept;         // 0: unknown
int64_t dtype_bytes(tpfsdp_dtype dtype, int64_t count);  // rounded up; throws when it does not fit in int64_t
bool is_floating(tpfsdp_dtype dtype) noexcept;           // f64, f32, f16, bf16
bool is_integer(tpfsdp_dtype dtype) noexcept;            // of 8 to 64 bits; bool is none
bool is_reducible(tpfsdp_dtype dtype) noexcept;          // those two

// DLPack's numbers for an element; every type of ours has exactly one pair.
struct DlpackCode {
  uint8_t code;
  uint8_t bits;
};
DlpackCode dlpack_code(tpfsdp_dtype dtype);                           // throws INVALID_ARGUMENT for unknown numbers
tpfsdp_dtype dtype_from_dlpack(uint8_t code, uint8_t bits) noexcept;  // TPFSDP_DTYPE_UNKNOWN

}  // namespace tpfsdp
