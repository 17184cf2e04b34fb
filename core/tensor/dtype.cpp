// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.hpp"

#include "base/error.hpp"

#include <array>

namespace tpfsdp {
namespace {

enum class Family : uint8_t { kOther, kFloating, kInteger };

struct Row {
  tpfsdp_dtype dtype;
  const char *name;
  uint8_t code;  // DLPack: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 7-14 f8, 15-16 f6, 17 f4
  uint8_t bits;
  Family family;
};

constexpr std::array<Row, 26> kRows = {{
    {TPFSDP_DTYPE_F32, "f32", 2, 32, Family::kFloating},
    {TPFSDP_DTYPE_F64, "f64", 2, 64, Family::kFloating},
    {TPFSDP_DTYPE_F16, "f16", 2, 16, Family::kFloating},
    {TPFSDP_DTYPE_BF16, "bf16", 4, 16, Family::kFloating},
    {TPFSDP_DTYPE_I8, "i8", 0, 8, Family::kInteger},
    {TPFSDP_DTYPE_I16, "i16", 0, 16, Family::kInteger},
    {TPFSDP_DTYPE_I32, "i32", 0, 32, Family::kInteger},
    {TPFSDP_DTYPE_I64, "i64", 0, 64, Family::kInteger},
    {TPFSDP_DTYPE_U8, "u8", 1, 8, Family::kInteger},
    {TPFSDP_DTYPE_U16, "u16", 1, 16, Family::kInteger},
    {TPFSDP_DTYPE_U32, "u32", 1, 32, Family::kInteger},
    {TPFSDP_DTYPE_U64, "u64", 1, 64, Family::kInteger},
    {TPFSDP_DTYPE_BOOL, "bool", 6, 8, Family::kOther},
    {TPFSDP_DTYPE_C64, "c64", 5, 64, Family::kOther},
    {TPFSDP_DTYPE_C128, "c128", 5, 128, Family::kOther},
    {TPFSDP_DTYPE_F8_E3M4, "f8_e3m4", 7, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E4M3, "f8_e4m3", 8, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E4M3B11FNUZ, "f8_e4m3b11fnuz", 9, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E4M3FN, "f8_e4m3fn", 10, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E4M3FNUZ, "f8_e4m3fnuz", 11, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E5M2, "f8_e5m2", 12, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E5M2FNUZ, "f8_e5m2fnuz", 13, 8, Family::kOther},
    {TPFSDP_DTYPE_F8_E8M0FNU, "f8_e8m0fnu", 14, 8, Family::kOther},
    {TPFSDP_DTYPE_F6_E2M3FN, "f6_e2m3fn", 15, 6, Family::kOther},
    {TPFSDP_DTYPE_F6_E3M2FN, "f6_e3m2fn", 16, 6, Family::kOther},
    {TPFSDP_DTYPE_F4_E2M1FN, "f4_e2m1fn", 17, 4, Family::kOther},
}};

// Looked up by index: the numbers run from 1 without a gap, and no two rows share a DLPack pair.
constexpr bool is_sound() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].dtype != static_cast<tpfsdp_dtype>(i + 1)) return false;
    for (size_t j = 0; j < i; ++j) {
      if (kRows[i].code == kRows[j].code && kRows[i].bits == kRows[j].bits) return false;
    }
  }
  return true;
}
static_assert(is_sound());

const Row *find(tpfsdp_dtype dtype) noexcept {
  return dtype >= 1 && static_cast<size_t>(dtype) <= kRows.size() ? &kRows[static_cast<size_t>(dtype - 1)] : nullptr;
}

}  // namespace

const char *dtype_name(tpfsdp_dtype dtype) noexcept {
  const Row *row = find(dtype);
  return row ? row->name : "unknown";
}

int32_t dtype_bits(tpfsdp_dtype dtype) noexcept {
  const Row *row = find(dtype);
  return row ? row->bits : 0;
}

int64_t dtype_bytes(tpfsdp_dtype dtype, int64_t count) {
  const Row *row = find(dtype);
  if (!row) fail(TPFSDP_ERR_INVALID_ARGUMENT, "dtype ", dtype, " is not an element type");
  if (count < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "an element count is ", count, "; it cannot be negative");
  // In two parts, so that only a result that is too large overflows.
  const int64_t bits = row->bits, eights = count / 8, rest = count % 8;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(eights, bits, &bytes) || __builtin_add_overflow(bytes, (rest * bits + 7) / 8, &bytes))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, count, " elements of ", row->name, " have more bytes than fit in int64_t");
  return bytes;
}

bool is_floating(tpfsdp_dtype dtype) noexcept {
  const Row *row = find(dtype);
  return row && row->family == Family::kFloating;
}

bool is_integer(tpfsdp_dtype dtype) noexcept {
  const Row *row = find(dtype);
  return row && row->family == Family::kInteger;
}

bool is_reducible(tpfsdp_dtype dtype) noexcept { return is_floating(dtype) || is_integer(dtype); }

DlpackCode dlpack_code(tpfsdp_dtype dtype) {
  const Row *row = find(dtype);
  if (!row) fail(TPFSDP_ERR_INVALID_ARGUMENT, "dtype ", dtype, " is not an element type");
  return {row->code, row->bits};
}

tpfsdp_dtype dtype_from_dlpack(uint8_t code, uint8_t bits) noexcept {
  for (const Row &row : kRows) {
    if (row.code == code && row.bits == bits) return row.dtype;
  }
  return TPFSDP_DTYPE_UNKNOWN;
}

}  // namespace tpfsdp
