// SPDX-License-Identifier: Apache-2.0
// Casts between the number types: values by hand at the edges of each.
#include "device/kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tpfsdp {
namespace {

template <class Target, class Source>
Target cast_one(tpfsdp_dtype target, tpfsdp_dtype source, Source value) {
  Target result{};
  cast(&result, target, &value, source, 1);
  return result;
}

TEST(Cast, FloatsBecomeIntegersByTruncation) {
  EXPECT_EQ((cast_one<int32_t>(TPFSDP_DTYPE_I32, TPFSDP_DTYPE_F32, 2.9f)), 2);
  EXPECT_EQ((cast_one<int32_t>(TPFSDP_DTYPE_I32, TPFSDP_DTYPE_F32, -2.9f)), -2);
  EXPECT_EQ((cast_one<int8_t>(TPFSDP_DTYPE_I8, TPFSDP_DTYPE_F64, -128.9)), -128);
  EXPECT_EQ((cast_one<uint8_t>(TPFSDP_DTYPE_U8, TPFSDP_DTYPE_F64, 255.9)), 255);
}

TEST(Cast, FloatsOutOfRangeBecomeTheNearestInteger) {
  EXPECT_EQ((cast_one<int8_t>(TPFSDP_DTYPE_I8, TPFSDP_DTYPE_F32, 1e9f)), 127);
  EXPECT_EQ((cast_one<int64_t>(TPFSDP_DTYPE_I64, TPFSDP_DTYPE_F64, 0x1p63)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((cast_one<int64_t>(TPFSDP_DTYPE_I64, TPFSDP_DTYPE_F32, -INFINITY)), std::numeric_limits<int64_t>::min());
  EXPECT_EQ((cast_one<uint64_t>(TPFSDP_DTYPE_U64, TPFSDP_DTYPE_F64, 0x1p64)), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ((cast_one<uint64_t>(TPFSDP_DTYPE_U64, TPFSDP_DTYPE_F64, -1.0)), 0u);
  EXPECT_EQ((cast_one<uint32_t>(TPFSDP_DTYPE_U32, TPFSDP_DTYPE_F64, 4294967295.5)), 4294967295u);
  EXPECT_EQ((cast_one<int32_t>(TPFSDP_DTYPE_I32, TPFSDP_DTYPE_F64, std::nan(""))), 0);
}

TEST(Cast, IntegersWrapIntoNarrowerOnes) {
  EXPECT_EQ((cast_one<int8_t>(TPFSDP_DTYPE_I8, TPFSDP_DTYPE_I32, int32_t{384})), -128);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_U16, TPFSDP_DTYPE_I64, int64_t{-1})), 65535);
  EXPECT_EQ((cast_one<int64_t>(TPFSDP_DTYPE_I64, TPFSDP_DTYPE_I8, int8_t{-3})), -3);
}

TEST(Cast, LargeIntegersRoundOnce) {
  // 2^24 + 1 is a half in f32; with one more far down it is above the half.
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_I64, (int64_t{1} << 24) + 1)), 0x1p24f);
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_U64, (uint64_t{1} << 63) + (uint64_t{1} << 39) + 1)),
            0x1.000002p63f);
  // bf16 has 8 bits: 2^62 + 2^54 is the half between 2^62 and the next; plus one is above.
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_I64, (int64_t{1} << 62) + (int64_t{1} << 54))), 0x5e80);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_I64, (int64_t{1} << 62) + (int64_t{1} << 54) + 1)),
            0x5e81);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_I64, -(int64_t{1} << 62) - (int64_t{1} << 54) - 1)),
            0xde81);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_F16, TPFSDP_DTYPE_I32, 65519)), 0x7bff);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_F16, TPFSDP_DTYPE_I32, 65520)), 0x7c00);
}

TEST(Cast, F64ToF32RoundsToNearestEvenAndKeepsSubnormals) {
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64, 1.0 + 0x1p-24)), 1.0f);
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64, 1.0 + 0x1.8p-23)), 1.0f + 0x1p-22f);
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64, 0x1p-149)), 0x1p-149f);
  EXPECT_EQ((cast_one<float>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64, 1e300)), INFINITY);
  const auto nan = cast_one<uint32_t>(TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64, uint64_t{0x7ff0000000000001});
  EXPECT_EQ(nan & 0x7fc00000u, 0x7fc00000u) << "a quiet NaN";
}

TEST(Cast, BetweenTheHalfFormatsGoesByF32) {
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_F16, TPFSDP_DTYPE_BF16, uint16_t{0x3f81})), 0x3c08);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F16, uint16_t{0x3c01})), 0x3f80);
  EXPECT_EQ((cast_one<uint16_t>(TPFSDP_DTYPE_F16, TPFSDP_DTYPE_BF16, uint16_t{0x7f00})), 0x7c00);
}

TEST(Cast, EqualTypesCopyBitsWhateverTheyMean) {
  const uint32_t signalling[] = {0x7f800001, 0xff812345};
  uint32_t copy[2] = {};
  cast(copy, TPFSDP_DTYPE_F32, signalling, TPFSDP_DTYPE_F32, 2);
  EXPECT_EQ(copy[0], signalling[0]);
  EXPECT_EQ(copy[1], signalling[1]);
  unsigned char packed[3] = {0x12, 0x34, 0x05}, target[4] = {0, 0, 0, 0x99};
  cast(target, TPFSDP_DTYPE_F4_E2M1FN, packed, TPFSDP_DTYPE_F4_E2M1FN, 5);  // 5 elements are 3 bytes
  EXPECT_EQ(target[2], 0x05);
  EXPECT_EQ(target[3], 0x99);
}

TEST(Cast, OtherTypesAreRefusedByName) {
  const unsigned char source[16] = {};
  unsigned char target[16] = {};
  try {
    cast(target, TPFSDP_DTYPE_F32, source, TPFSDP_DTYPE_F8_E4M3FN, 1);
    FAIL() << "was not refused";
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(failure.what()).find("from f8_e4m3fn to f32"), std::string::npos) << failure.what();
  }
  EXPECT_THROW(cast(target, TPFSDP_DTYPE_BOOL, source, TPFSDP_DTYPE_U8, 1), Failure);
}

}  // namespace
}  // namespace tpfsdp
