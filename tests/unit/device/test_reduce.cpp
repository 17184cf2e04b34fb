// SPDX-License-Identifier: Apache-2.0
// What a reduction computes, by hand: order, one scale, one rounding, one cast.
#include "device/kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tpfsdp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Output, class Input>
std::vector<Output> reduced(tpfsdp_reduce_op op, const std::vector<std::vector<Input>> &inputs, tpfsdp_dtype dtype,
                            tpfsdp_dtype reduce_dtype, tpfsdp_dtype output_dtype, double divisor,
                            std::vector<Output> output = {}) {
  const bool accumulate = !output.empty();
  output.resize(inputs.front().size());
  std::vector<const void *> pointers;
  for (const auto &input : inputs) pointers.push_back(input.data());
  reduce(op, pointers.data(), static_cast<int32_t>(inputs.size()), dtype, reduce_dtype, output.data(), output_dtype,
         static_cast<int64_t>(output.size()), divisor, accumulate);
  return output;
}

std::vector<float> f32(tpfsdp_reduce_op op, const std::vector<std::vector<float>> &inputs, double divisor = 0,
                       std::vector<float> output = {}) {
  return reduced<float>(op, inputs, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, divisor, std::move(output));
}

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Reduce, AddsRanksLeftToRight) {
  // (1e8 + -1e8) + 1 is 1; from the right it would be 0.
  EXPECT_EQ(f32(TPFSDP_REDUCE_SUM, {{1e8f}, {-1e8f}, {1.0f}}), std::vector<float>{1.0f});
  EXPECT_EQ(f32(TPFSDP_REDUCE_SUM, {{1.0f}, {-1e8f}, {1e8f}}), std::vector<float>{0.0f});
}

TEST(Reduce, AverageMultipliesOnceByTheReciprocal) {
  // 7 * (float)(1.0 / 3.0) is 2.3333335, one unit more than 7 / 3.
  const float expected = 7.0f * static_cast<float>(1.0 / 3.0);
  EXPECT_EQ(f32(TPFSDP_REDUCE_AVG, {{1.0f}, {2.0f}, {4.0f}}, 3.0), std::vector<float>{expected});
  EXPECT_EQ(f32(TPFSDP_REDUCE_AVG, {{1.0f, 3.0f}, {2.0f, 5.0f}}, 2.0), (std::vector<float>{1.5f, 4.0f}));
}

TEST(Reduce, AverageOfF64UsesTheF64Reciprocal) {
  const std::vector<std::vector<double>> inputs{{1.0}, {2.0}, {4.0}};
  EXPECT_EQ(reduced<double>(TPFSDP_REDUCE_AVG, inputs, TPFSDP_DTYPE_F64, TPFSDP_DTYPE_F64, TPFSDP_DTYPE_F64, 3.0),
            std::vector<double>{7.0 * (1.0 / 3.0)});
}

TEST(Reduce, SumIgnoresTheDivisor) {
  EXPECT_EQ(f32(TPFSDP_REDUCE_SUM, {{1.0f}, {2.0f}}, 0.0), std::vector<float>{3.0f});
}

TEST(Reduce, AccumulateAddsToTheOutput) {
  EXPECT_EQ(f32(TPFSDP_REDUCE_SUM, {{1.0f, 2.0f}, {10.0f, 20.0f}}, 0, {100.0f, 200.0f}),
            (std::vector<float>{111.0f, 222.0f}));
}

TEST(Reduce, Bf16SumsInF32AndRoundsOnce) {
  // 1 + 2^-8 + 2^-8: in bf16 each addition would be lost, in f32 the sum is 1 + 2^-7.
  const std::vector<std::vector<uint16_t>> inputs{{0x3f80}, {0x3b80}, {0x3b80}};
  EXPECT_EQ(reduced<uint16_t>(TPFSDP_REDUCE_SUM, inputs, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, 0),
            std::vector<uint16_t>{0x3f81});
  EXPECT_EQ(reduced<float>(TPFSDP_REDUCE_SUM, inputs, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, 0),
            std::vector<float>{1.0f + 0x1p-7f});
}

TEST(Reduce, Bf16RoundsUpFromAboveTheHalf) {
  // 1 + 2^-8 + 2^-16 lies above the half between 1 and 1 + 2^-7.
  const std::vector<std::vector<uint16_t>> inputs{{0x3f80}, {0x3b80}, {0x3780}};
  EXPECT_EQ(reduced<uint16_t>(TPFSDP_REDUCE_SUM, inputs, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, 0),
            std::vector<uint16_t>{0x3f81});
}

TEST(Reduce, InputWiderThanTheReduceTypeIsRoundedFirst) {
  // 1 + 2^-8 rounds to 1 in bf16, so two of them give 2; summed first they would give 2 + 2^-7.
  EXPECT_EQ((reduced<float, float>(TPFSDP_REDUCE_SUM, {{1.0f + 0x1p-8f}, {1.0f + 0x1p-8f}, {0x1p-6f}}, TPFSDP_DTYPE_F32,
                                   TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32, 0)),
            std::vector<float>{2.0f + 0x1p-6f});
  // f16 holds 1 + 2^-10, bf16 does not: as wide, yet rounded.
  EXPECT_EQ((reduced<float, uint16_t>(TPFSDP_REDUCE_SUM, {{0x3c01}, {0x0000}}, TPFSDP_DTYPE_F16, TPFSDP_DTYPE_BF16,
                                      TPFSDP_DTYPE_F32, 0)),
            std::vector<float>{1.0f});
}

TEST(Reduce, F64InputInF32IsRoundedFirst) {
  EXPECT_EQ((reduced<float, double>(TPFSDP_REDUCE_SUM, {{1.0 + 0x1p-25}, {0x1p-24}}, TPFSDP_DTYPE_F64, TPFSDP_DTYPE_F32,
                                    TPFSDP_DTYPE_F32, 0)),
            std::vector<float>{1.0f});
}

TEST(Reduce, RoundsToTheReduceTypeBeforeTheOutputType) {
  // The f32 sum is 1 + 2^-8; bf16 as the reduce type makes it 1 before it becomes f32 again.
  EXPECT_EQ((reduced<float, uint16_t>(TPFSDP_REDUCE_SUM, {{0x3f80}, {0x3b80}}, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16,
                                      TPFSDP_DTYPE_F32, 0)),
            std::vector<float>{1.0f});
}

TEST(Reduce, AccumulatesIntoBf16InItsOwnType) {
  // 256 + (1 + 1): bf16 has 8 bits, so 258 is exact, while 257 would be lost twice.
  EXPECT_EQ((reduced<uint16_t, uint16_t>(TPFSDP_REDUCE_SUM, {{0x3f80}, {0x3f80}}, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32,
                                         TPFSDP_DTYPE_BF16, 0, {0x4380})),
            std::vector<uint16_t>{0x4381});
}

TEST(Reduce, NanComesOutAsTheOneQuietNan) {
  const std::vector<std::vector<uint32_t>> inputs{{0x7f800001, 0x7f800000, 0xffc00005},
                                                  {0x3f800000, 0xff800000, 0x7f812345}};
  const auto result =
      reduced<uint32_t>(TPFSDP_REDUCE_SUM, inputs, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32, 0);
  EXPECT_EQ(result, (std::vector<uint32_t>{0x7fc00000, 0x7fc00000, 0x7fc00000}));
  const std::vector<std::vector<uint16_t>> halves{{0x7f81}};
  EXPECT_EQ(reduced<uint16_t>(TPFSDP_REDUCE_SUM, halves, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16, 0),
            std::vector<uint16_t>{0x7fc0});
}

TEST(Reduce, MinAndMaxPropagateNanFromAnyRank) {
  for (const auto op : {TPFSDP_REDUCE_MIN, TPFSDP_REDUCE_MAX}) {
    const auto result = f32(op, {{kNan, 1.0f, 1.0f}, {1.0f, kNan, 2.0f}, {2.0f, 2.0f, 3.0f}});
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_TRUE(std::isnan(result[1]));
    EXPECT_EQ(result[2], op == TPFSDP_REDUCE_MIN ? 1.0f : 3.0f);
  }
}

TEST(Reduce, MinAndMaxKeepTheFirstOfTwoZeros) {
  EXPECT_EQ(bits(f32(TPFSDP_REDUCE_MIN, {{0.0f}, {-0.0f}})[0]), 0x00000000u);
  EXPECT_EQ(bits(f32(TPFSDP_REDUCE_MAX, {{-0.0f}, {0.0f}})[0]), 0x80000000u);
  EXPECT_EQ(f32(TPFSDP_REDUCE_MAX, {{-kInfinity}, {kInfinity}})[0], kInfinity);
}

TEST(Reduce, KeepsSubnormalsAndTheSignOfZero) {
  EXPECT_EQ(f32(TPFSDP_REDUCE_SUM, {{0x1p-149f}, {0x1p-149f}}), std::vector<float>{0x1p-148f});
  EXPECT_EQ(bits(f32(TPFSDP_REDUCE_SUM, {{-0.0f}})[0]), 0x80000000u);
  EXPECT_EQ(bits(f32(TPFSDP_REDUCE_SUM, {{-0.0f}, {-0.0f}})[0]), 0x80000000u);
}

TEST(Reduce, IntegersWrapAndAveragesTruncate) {
  EXPECT_EQ((reduced<int8_t, int8_t>(TPFSDP_REDUCE_SUM, {{100, -100}, {100, -100}}, TPFSDP_DTYPE_I8, TPFSDP_DTYPE_I8,
                                     TPFSDP_DTYPE_I8, 0)),
            (std::vector<int8_t>{-56, 56}));
  EXPECT_EQ((reduced<int32_t, int32_t>(TPFSDP_REDUCE_AVG, {{-3, 3, INT32_MAX}, {-4, 4, 1}}, TPFSDP_DTYPE_I32,
                                       TPFSDP_DTYPE_I32, TPFSDP_DTYPE_I32, 2)),
            (std::vector<int32_t>{-3, 3, INT32_MIN / 2}));
  EXPECT_EQ((reduced<uint64_t, uint64_t>(TPFSDP_REDUCE_AVG, {{UINT64_MAX}, {0}}, TPFSDP_DTYPE_U64, TPFSDP_DTYPE_U64,
                                         TPFSDP_DTYPE_U64, 2)),
            std::vector<uint64_t>{UINT64_MAX / 2});
  EXPECT_EQ((reduced<uint8_t, uint8_t>(TPFSDP_REDUCE_AVG, {{200}, {100}}, TPFSDP_DTYPE_U8, TPFSDP_DTYPE_U8,
                                       TPFSDP_DTYPE_U8, 300)),
            std::vector<uint8_t>{0})
      << "the sum wraps to 44 before it is divided";
  EXPECT_EQ((reduced<int64_t, int64_t>(TPFSDP_REDUCE_MAX, {{-5}, {-7}}, TPFSDP_DTYPE_I64, TPFSDP_DTYPE_I64,
                                       TPFSDP_DTYPE_I64, 0)),
            std::vector<int64_t>{-5});
  EXPECT_EQ((reduced<uint16_t, uint16_t>(TPFSDP_REDUCE_MIN, {{5}, {65535}}, TPFSDP_DTYPE_U16, TPFSDP_DTYPE_U16,
                                         TPFSDP_DTYPE_U16, 0, {3})),
            std::vector<uint16_t>{8});
}

TEST(Reduce, ManyRanksAndManyElements) {
  // More inputs than one group of a block and more elements than one block, so that every loop turns over.
  constexpr int kRanks = 70, kCount = 2500;
  std::vector<std::vector<uint16_t>> inputs(kRanks, std::vector<uint16_t>(kCount, 0x3f80));  // bf16 1.0
  const auto result = reduced<uint16_t>(TPFSDP_REDUCE_AVG, inputs, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16,
                                        TPFSDP_DTYPE_BF16, 70.0 / 64.0);
  EXPECT_EQ(result, std::vector<uint16_t>(kCount, 0x4280)) << "70 / (70 / 64) is 64";
}

TEST(Reduce, WhatCannotBeReducedIsRefusedByName) {
  const unsigned char data[16] = {};
  unsigned char out[16] = {};
  const void *inputs[] = {data};
  const auto refused = [&](tpfsdp_reduce_op op, tpfsdp_dtype in, tpfsdp_dtype mid, tpfsdp_dtype to, double divisor,
                           int32_t count) -> tpfsdp_status {
    try {
      reduce(op, inputs, count, in, mid, out, to, 1, divisor, false);
      return TPFSDP_OK;
    } catch (const Failure &failure) {
      return failure.status();
    }
  };
  const auto f = TPFSDP_DTYPE_F32, i = TPFSDP_DTYPE_I32, b = TPFSDP_DTYPE_BOOL;
  EXPECT_EQ(refused(TPFSDP_REDUCE_SUM, b, b, b, 0, 1), TPFSDP_ERR_UNSUPPORTED);
  EXPECT_EQ(refused(TPFSDP_REDUCE_SUM, i, f, f, 0, 1), TPFSDP_ERR_UNSUPPORTED);
  EXPECT_EQ(refused(TPFSDP_REDUCE_AVG, i, i, i, 1.5, 1), TPFSDP_ERR_UNSUPPORTED);
  EXPECT_EQ(refused(TPFSDP_REDUCE_AVG, f, f, f, 0, 1), TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refused(TPFSDP_REDUCE_UNSPECIFIED, f, f, f, 0, 1), TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refused(TPFSDP_REDUCE_SUM, f, f, f, 0, 0), TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refused(TPFSDP_REDUCE_SUM, f, f, f, 0, 1), TPFSDP_OK);
}

TEST(Add, RoundsOnceToTheTarget) {
  // bf16 256 + f32 1.5 is 257.5, nearest even 258; a source rounded to bf16 first would be 1.5 too, but f32 1 + 2^-9
  // added to bf16 1 gives 2 + 2^-9, which rounds to 2.
  uint16_t target[] = {0x4380, 0x3f80};
  const float source[] = {1.5f, 1.0f + 0x1p-9f};
  add(target, TPFSDP_DTYPE_BF16, source, TPFSDP_DTYPE_F32, 2);
  EXPECT_EQ(target[0], 0x4381);
  EXPECT_EQ(target[1], 0x4000);
  double wide[] = {1.0};
  const float tiny[] = {0x1p-40f};
  add(wide, TPFSDP_DTYPE_F64, tiny, TPFSDP_DTYPE_F32, 1);
  EXPECT_EQ(wide[0], 1.0 + 0x1p-40);
  float sums[] = {1.0f, 2.0f};
  const uint16_t halves[] = {0x3f80, 0x4000};
  add(sums, TPFSDP_DTYPE_F32, halves, TPFSDP_DTYPE_BF16, 2);
  EXPECT_EQ(sums[0], 2.0f);
  EXPECT_EQ(sums[1], 4.0f);
}

TEST(Add, RefusesIntegers) {
  int32_t target[1] = {1};
  const int32_t source[1] = {1};
  EXPECT_THROW(add(target, TPFSDP_DTYPE_I32, source, TPFSDP_DTYPE_I32, 1), Failure);
  EXPECT_EQ(target[0], 1);
}

}  // namespace
}  // namespace tpfsdp
