// SPDX-License-Identifier: Apache-2.0
// bf16 and f16 against values written by hand and against a slow definition in exact arithmetic.
#include "device/kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tpfsdp {
namespace {

uint16_t to_bf16(float value) {
  uint16_t result;
  cast(&result, TPFSDP_DTYPE_BF16, &value, TPFSDP_DTYPE_F32, 1);
  return result;
}
uint16_t to_f16(float value) {
  uint16_t result;
  cast(&result, TPFSDP_DTYPE_F16, &value, TPFSDP_DTYPE_F32, 1);
  return result;
}
float from(tpfsdp_dtype dtype, uint16_t bits) {
  float result;
  cast(&result, TPFSDP_DTYPE_F32, &bits, dtype, 1);
  return result;
}
float f32(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(to_bf16(f32(0x3f807fff)), 0x3f80);  // just below the half
  EXPECT_EQ(to_bf16(f32(0x3f808000)), 0x3f80);  // the half: even stays
  EXPECT_EQ(to_bf16(f32(0x3f808001)), 0x3f81);  // just above
  EXPECT_EQ(to_bf16(f32(0x3f818000)), 0x3f82);  // the half: odd goes up
  EXPECT_EQ(to_bf16(f32(0xbf818000)), 0xbf82);
  EXPECT_EQ(to_bf16(f32(0x7f7f8000)), 0x7f80);  // past the largest
}

TEST(Bf16, KeepsSubnormalsZerosAndInfinities) {
  EXPECT_EQ(to_bf16(f32(0x00010000)), 0x0001);
  EXPECT_EQ(to_bf16(f32(0x00008001)), 0x0001);
  EXPECT_EQ(to_bf16(f32(0x80008000)), 0x8000);
  EXPECT_EQ(to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(to_bf16(-INFINITY), 0xff80);
  EXPECT_EQ(std::bit_cast<uint32_t>(from(TPFSDP_DTYPE_BF16, 0x0001)), 0x00010000u);
}

TEST(Bf16, MakesNanQuietAndKeepsItsTop) {
  EXPECT_EQ(to_bf16(f32(0x7f800001)), 0x7fc0);  // all payload bits lost: still a NaN
  EXPECT_EQ(to_bf16(f32(0xff920000)), 0xffd2);
  EXPECT_EQ(std::bit_cast<uint32_t>(from(TPFSDP_DTYPE_BF16, 0x7f81)), 0x7fc10000u);
}

TEST(F16, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0f), 0x3c00);
  EXPECT_EQ(to_f16(f32(0x3f801000)), 0x3c00);
  EXPECT_EQ(to_f16(f32(0x3f801001)), 0x3c01);
  EXPECT_EQ(to_f16(f32(0x3f803000)), 0x3c02);
  EXPECT_EQ(to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_f16(-1e30f), 0xfc00);
}

TEST(F16, KeepsSubnormals) {
  EXPECT_EQ(to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f), 0x0000);         // half of the smallest: to even
  EXPECT_EQ(to_f16(f32(0x33000001)), 0x0001);  // a little more than half
  EXPECT_EQ(to_f16(0x1.8p-24f), 0x0002);       // one and a half: to even
  EXPECT_EQ(to_f16(f32(0x387fffff)), 0x0400);  // rounds up into the normals
  EXPECT_EQ(to_f16(-0x1p-149f), 0x8000);
  EXPECT_EQ(from(TPFSDP_DTYPE_F16, 0x0001), 0x1p-24f);
  EXPECT_EQ(from(TPFSDP_DTYPE_F16, 0x03ff), 1023 * 0x1p-24f);
}

TEST(F16, MakesNanQuiet) {
  EXPECT_EQ(to_f16(f32(0x7f800001)), 0x7e00);
  EXPECT_EQ(std::bit_cast<uint32_t>(from(TPFSDP_DTYPE_F16, 0xfc01)), 0xffc02000u);
}

// The value of a finite pattern, from the definition.
double value_of(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

class Formats : public testing::TestWithParam<tpfsdp_dtype> {
 protected:
  int mantissa_bits() const { return GetParam() == TPFSDP_DTYPE_BF16 ? 7 : 10; }
  int bias() const { return GetParam() == TPFSDP_DTYPE_BF16 ? 127 : 15; }
  uint16_t infinity() const { return GetParam() == TPFSDP_DTYPE_BF16 ? 0x7f80 : 0x7c00; }
};
INSTANTIATE_TEST_SUITE_P(Both, Formats, testing::Values(TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F16));

TEST_P(Formats, EveryPatternHasItsValueAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float wide = from(GetParam(), bits);
    uint16_t back = 0;
    cast(&back, GetParam(), &wide, TPFSDP_DTYPE_F32, 1);
    if ((bits & 0x7fff) > infinity()) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_EQ(back, bits | (1 << (mantissa_bits() - 1)));
      continue;
    }
    if ((bits & 0x7fff) == infinity()) {
      EXPECT_EQ(wide, bits & 0x8000 ? -INFINITY : INFINITY);
    } else {
      ASSERT_EQ(wide, value_of(bits, mantissa_bits(), bias())) << bits;
    }
    ASSERT_EQ(back, bits);
  }
}

// From f64 there is one rounding too: a value a hair above the half between two neighbours goes up, although rounding
// to f32 first would put it on the half.
TEST_P(Formats, CastFromF64RoundsOnce) {
  for (uint16_t bits = 1; bits + 1 < infinity(); ++bits) {
    const double low = value_of(bits, mantissa_bits(), bias());
    const double high = value_of(static_cast<uint16_t>(bits + 1), mantissa_bits(), bias());
    const double half = low + (high - low) / 2;
    const double doubles[] = {half, std::nextafter(half, high), std::nextafter(half, low), -std::nextafter(half, high)};
    uint16_t got[4];
    cast(got, GetParam(), doubles, TPFSDP_DTYPE_F64, 4);
    ASSERT_EQ(got[0], bits + (bits & 1)) << bits;
    ASSERT_EQ(got[1], bits + 1);
    ASSERT_EQ(got[2], bits);
    ASSERT_EQ(got[3], (bits + 1) | 0x8000);
  }
}

}  // namespace
}  // namespace tpfsdp
