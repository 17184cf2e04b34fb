// SPDX-License-Identifier: Apache-2.0
// A host's rounding mode, flush-to-zero switches and status flags change no result, and are as before afterwards.
#include "device/float_environment.hpp"
#include "device/kernel_table.hpp"
#include "device/kernels.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace tpfsdp {
namespace {

float sum_of(float a, float b) {
  const void *inputs[] = {&a, &b};
  float out = 0;
  reduce(TPFSDP_REDUCE_SUM, inputs, 2, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, &out, TPFSDP_DTYPE_F32, 1, 0, false);
  return out;
}

TEST(FloatState, RoundingModeOfTheHostDoesNotMatter) {
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    ASSERT_EQ(std::fesetround(mode), 0);
    const float got = sum_of(1.0f, 0x1.8p-24f);  // nearest is up, 1 + 2^-23
    const float tie = sum_of(1.0f, 0x1p-24f);    // nearest even is 1
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(after, mode);
    EXPECT_EQ(got, 1.0f + 0x1p-23f);
    EXPECT_EQ(tie, 1.0f);
  }
}

#if defined(__x86_64__)
TEST(FloatState, FlushToZeroOfTheHostDoesNotMatter) {
  const unsigned before = _mm_getcsr();
  const unsigned flushing = (before | 0x8040) & ~0x3fu;  // FTZ and DAZ on, no status flags
  _mm_setcsr(flushing);
  const float got = sum_of(0x1p-149f, 0x1p-149f);
  uint16_t narrow = 0;
  const uint32_t subnormal = 0x00018000;
  cast(&narrow, TPFSDP_DTYPE_BF16, &subnormal, TPFSDP_DTYPE_F32, 1);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, flushing) << "status flags included";
  uint32_t bits = 0;
  std::memcpy(&bits, &got, sizeof bits);  // comparing floats here would be the host's arithmetic
  EXPECT_EQ(bits, 2u);
  EXPECT_EQ(narrow, 0x0002);
}
#endif

TEST(KernelLevel, IsOneThatThisCpuCanRun) {
  ASSERT_NE(kernels_of_level(kernel_level()), nullptr);
  EXPECT_EQ(kernels_of_level(kernel_level()), &kernels());
  EXPECT_EQ(kernels_of_level("sse9"), nullptr);
  if (const char *wanted = std::getenv("TPFSDP_ISA"); wanted && kernels_of_level(wanted)) {
    EXPECT_STREQ(kernel_level(), wanted);
  }
}

TEST(CopyBytes, LargeCopiesMoveEveryByte) {
  std::vector<unsigned char> source((5u << 20) + 13), target(source.size() + 1, 0x5a);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 2654435761u >> 24);
  copy_bytes(target.data(), source.data(), static_cast<int64_t>(source.size()));
  EXPECT_EQ(std::memcmp(target.data(), source.data(), source.size()), 0);
  EXPECT_EQ(target.back(), 0x5a);
  zero_bytes(target.data(), 3);
  EXPECT_EQ(target[0] | target[1] | target[2], 0);
  EXPECT_EQ(target[3], source[3]);
}

}  // namespace
}  // namespace tpfsdp
