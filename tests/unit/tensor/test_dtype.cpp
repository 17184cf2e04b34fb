// SPDX-License-Identifier: Apache-2.0
// The table of element types, and its DLPack numbers.
#include "tensor/dtype.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

namespace tpfsdp {
namespace {

TEST(Dtype, NamesAndBits) {
  EXPECT_STREQ(dtype_name(TPFSDP_DTYPE_BF16), "bf16");
  EXPECT_STREQ(dtype_name(TPFSDP_DTYPE_F8_E4M3FN), "f8_e4m3fn");
  EXPECT_STREQ(dtype_name(TPFSDP_DTYPE_BOOL), "bool");
  EXPECT_EQ(dtype_bits(TPFSDP_DTYPE_C128), 128);
  EXPECT_EQ(dtype_bits(TPFSDP_DTYPE_F6_E2M3FN), 6);
  EXPECT_EQ(dtype_bits(TPFSDP_DTYPE_F4_E2M1FN), 4);
}

TEST(Dtype, OtherNumbersAreUnknown) {
  for (const tpfsdp_dtype dtype : {TPFSDP_DTYPE_UNKNOWN + 0, TPFSDP_DTYPE_DEFAULT + 0, 27, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(dtype_name(dtype), "unknown") << dtype;
    EXPECT_EQ(dtype_bits(dtype), 0) << dtype;
    EXPECT_FALSE(is_reducible(dtype)) << dtype;
    EXPECT_THROW(dtype_bytes(dtype, 1), Failure) << dtype;
    EXPECT_THROW(dlpack_code(dtype), Failure) << dtype;
  }
}

TEST(Dtype, EveryTypeGoesToDlpackAndBack) {
  std::set<std::string> names;
  for (tpfsdp_dtype dtype = 1; dtype <= 26; ++dtype) {
    const DlpackCode code = dlpack_code(dtype);
    EXPECT_EQ(code.bits, dtype_bits(dtype));
    EXPECT_EQ(dtype_from_dlpack(code.code, code.bits), dtype);
    names.insert(dtype_name(dtype));
  }
  EXPECT_EQ(names.size(), 26u) << "each has a name of its own";
}

TEST(Dtype, DlpackNumbersAreTheStandards) {
  const auto is = [](tpfsdp_dtype dtype, int code, int bits) {
    return dlpack_code(dtype).code == code && dlpack_code(dtype).bits == bits;
  };
  EXPECT_TRUE(is(TPFSDP_DTYPE_I8, 0, 8));
  EXPECT_TRUE(is(TPFSDP_DTYPE_U64, 1, 64));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F16, 2, 16));
  EXPECT_TRUE(is(TPFSDP_DTYPE_BF16, 4, 16));
  EXPECT_TRUE(is(TPFSDP_DTYPE_C64, 5, 64));
  EXPECT_TRUE(is(TPFSDP_DTYPE_BOOL, 6, 8));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F8_E3M4, 7, 8));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F8_E8M0FNU, 14, 8));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F6_E2M3FN, 15, 6));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F6_E3M2FN, 16, 6));
  EXPECT_TRUE(is(TPFSDP_DTYPE_F4_E2M1FN, 17, 4));
  EXPECT_EQ(dtype_from_dlpack(2, 128), TPFSDP_DTYPE_UNKNOWN);
  EXPECT_EQ(dtype_from_dlpack(3, 64), TPFSDP_DTYPE_UNKNOWN) << "opaque handles are no numbers";
  EXPECT_EQ(dtype_from_dlpack(0, 4), TPFSDP_DTYPE_UNKNOWN);
}

TEST(Dtype, BytesAreRoundedUpPerTensor) {
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F32, 0), 0);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F32, 3), 12);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F4_E2M1FN, 5), 3);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F6_E2M3FN, 3), 3);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F6_E2M3FN, 4), 3);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F6_E2M3FN, 9), 7);
}

// Case B017: counts past 32 bits, up to the last that fits.
TEST(Dtype, BytesDoNotOverflowSilently) {
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F32, 2147483656), 8589934624);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_U8, INT64_MAX), INT64_MAX);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F4_E2M1FN, INT64_MAX), INT64_MAX / 2 + 1);
  EXPECT_EQ(dtype_bytes(TPFSDP_DTYPE_F64, INT64_MAX / 8), INT64_MAX - 7);
  EXPECT_THROW(dtype_bytes(TPFSDP_DTYPE_F64, INT64_MAX / 8 + 1), Failure);
  EXPECT_THROW(dtype_bytes(TPFSDP_DTYPE_F32, -1), Failure);
}

TEST(Dtype, WhatCanBeReduced) {
  int floating = 0, integers = 0, reducible = 0;
  for (tpfsdp_dtype dtype = 1; dtype <= 26; ++dtype) {
    floating += is_floating(dtype);
    integers += is_integer(dtype);
    reducible += is_reducible(dtype);
  }
  EXPECT_EQ(floating, 4);
  EXPECT_EQ(integers, 8);
  EXPECT_EQ(reducible, 12);
  EXPECT_FALSE(is_reducible(TPFSDP_DTYPE_BOOL));
}

}  // namespace
}  // namespace tpfsdp
