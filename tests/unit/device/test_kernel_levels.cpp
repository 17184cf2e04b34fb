// SPDX-License-Identifier: Apache-2.0
// Every instruction set gives the bits of the baseline: over all 16-bit patterns, subnormals, zeros, infinities, NaN
// payloads, lengths 0 to 67 and heads that are not aligned.
#include "device/float_environment.hpp"
#include "device/kernel_table.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tpfsdp {
namespace {

using Bytes = std::vector<unsigned char>;

class Levels : public testing::TestWithParam<const char *> {
 protected:
  const KernelTable &level() const { return *kernels_of_level(GetParam()); }
  const KernelTable &baseline() const { return *kernels_of_level("baseline"); }
};

// What this CPU can run; the baseline against itself keeps the tests themselves in use everywhere.
std::vector<const char *> runnable_levels() {
  std::vector<const char *> levels;
  for (const char *name : {"baseline", "avx2", "avx512"}) {
    if (kernels_of_level(name)) levels.push_back(name);
  }
  return levels;
}

INSTANTIATE_TEST_SUITE_P(All, Levels, testing::ValuesIn(runnable_levels()),
                         [](const auto &level) { return std::string(level.param); });

// Values that differ in what can go wrong: exponents at both ends, halves of a last place, NaNs of both kinds.
uint32_t awkward_f32(std::mt19937_64 &random) {
  static constexpr uint32_t kSpecial[] = {
      0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
      0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345, 0xff812345, 0x3f800000, 0x3f808000,
      0x3f818000, 0x3f80ffff, 0x33000000, 0x33000001, 0x38800000, 0x387fffff, 0x387fe000, 0x387ff000,
      0x477fe000, 0x477fefff, 0x477ff000, 0x7f7f8000, 0x7f7f7fff, 0x00008000, 0x00018000, 0x00007fff};
  const uint64_t bits = random();
  if (bits % 3 == 0) return kSpecial[(bits >> 8) % std::size(kSpecial)];
  if (bits % 3 == 1) return static_cast<uint32_t>(bits >> 32);
  return 0x3f800000 + static_cast<uint32_t>((bits >> 32) & 0x01ffffff);  // near one: sums that round
}

template <class Word>
Bytes words(const std::vector<Word> &values, size_t head) {
  Bytes bytes(head + values.size() * sizeof(Word) + 64, 0xee);
  if (!values.empty()) std::memcpy(bytes.data() + head, values.data(), values.size() * sizeof(Word));
  return bytes;
}

template <class Word, class Make>
std::vector<Bytes> make_inputs(int count, int64_t length, size_t head, Make &&make) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < count; ++rank) {
    std::vector<Word> values(static_cast<size_t>(length));
    for (Word &value : values) value = make();
    inputs.push_back(words(values, head + static_cast<size_t>(rank)));  // each rank's at another alignment
  }
  return inputs;
}

template <class Real, class Word, class Make>
void compare_sums(SumKernel<Real> ours, SumKernel<Real> reference, Make &&make) {
  for (int64_t length = 0; length <= 67; ++length) {
    for (const int count : {1, 2, 3, 5}) {
      for (const size_t head : {size_t{0}, size_t{1}, sizeof(Word), size_t{60}}) {
        const auto inputs = make_inputs<Word>(count, length, head, make);
        std::vector<const void *> pointers;
        for (int rank = 0; rank < count; ++rank) pointers.push_back(inputs[rank].data() + head + rank);
        for (const bool accumulate : {false, true}) {
          Bytes expected(head + static_cast<size_t>(length) * sizeof(Real) + 64, 0x41), got = expected;
          const Real scale = static_cast<Real>(1.0 / 3.0);
          reference(pointers.data(), count, scale, accumulate, expected.data() + head, length);
          ours(pointers.data(), count, scale, accumulate, got.data() + head, length);
          ASSERT_EQ(got, expected) << "length " << length << ", " << count << " inputs, head " << head;
        }
      }
    }
  }
}

TEST_P(Levels, SumsOfF32AreTheBaselines) {
  std::mt19937_64 random(1);
  const FloatEnvironment environment;
  compare_sums<float, uint32_t>(level().sum_f32, baseline().sum_f32, [&] { return awkward_f32(random); });
}

TEST_P(Levels, SumsOfBf16AreTheBaselines) {
  std::mt19937_64 random(2);
  const FloatEnvironment environment;
  compare_sums<float, uint16_t>(level().sum_bf16, baseline().sum_bf16,
                                [&] { return static_cast<uint16_t>(awkward_f32(random) >> 16); });
}

TEST_P(Levels, SumsOfF16AreTheBaselines) {
  std::mt19937_64 random(3);
  const FloatEnvironment environment;
  compare_sums<float, uint16_t>(level().sum_f16, baseline().sum_f16, [&] { return static_cast<uint16_t>(random()); });
}

TEST_P(Levels, SumsOfF64AreTheBaselines) {
  std::mt19937_64 random(4);
  const FloatEnvironment environment;
  compare_sums<double, uint64_t>(level().sum_f64, baseline().sum_f64, [&]() -> uint64_t {
    static constexpr uint64_t kSpecial[] = {0,
                                            1ull << 63,
                                            1,
                                            0x7ff0000000000000,
                                            0xfff0000000000000,
                                            0x7ff8000000000001,
                                            0x7ff0000000000001,
                                            0x000fffffffffffff};
    const uint64_t bits = random();
    return bits % 2 ? kSpecial[(bits >> 8) % std::size(kSpecial)] : 0x3ff0000000000000 + (bits >> 12);
  });
}

void compare_conversion(ConvertKernel ours, ConvertKernel reference, const Bytes &source, int64_t count,
                        size_t target_size) {
  Bytes expected(static_cast<size_t>(count) * target_size), got(expected.size());
  reference(expected.data(), source.data(), count);
  ours(got.data(), source.data(), count);
  ASSERT_EQ(got, expected);
}

TEST_P(Levels, EveryPatternWidensAsTheBaseline) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const Bytes source = words(all, 0);
  const FloatEnvironment environment;
  compare_conversion(level().f32_from_bf16, baseline().f32_from_bf16, source, 65536, 4);
  compare_conversion(level().f32_from_f16, baseline().f32_from_f16, source, 65536, 4);
}

TEST_P(Levels, NarrowingIsTheBaselines) {
  // Around every bf16 value, and so around every f16 value: the neighbours and the halves between.
  std::vector<uint32_t> values;
  for (uint32_t top = 0; top < 65536; ++top) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u,
                               0xefffu, 0xf000u, 0xffffu})
      values.push_back(top << 16 | low);
  }
  const Bytes source = words(values, 0);
  const auto count = static_cast<int64_t>(values.size());
  const FloatEnvironment environment;
  compare_conversion(level().bf16_from_f32, baseline().bf16_from_f32, source, count, 2);
  compare_conversion(level().f16_from_f32, baseline().f16_from_f32, source, count, 2);
}

TEST_P(Levels, ConversionsOfShortAndUnalignedRunsAreTheBaselines) {
  std::mt19937_64 random(5);
  const FloatEnvironment environment;
  for (int64_t count = 0; count <= 67; ++count) {
    for (const size_t head : {size_t{0}, size_t{1}, size_t{2}, size_t{6}}) {
      Bytes source(head + 4 * static_cast<size_t>(count) + 8);
      for (auto &byte : source) byte = static_cast<unsigned char>(random());
      const auto check = [&](ConvertKernel ours, ConvertKernel reference) {
        Bytes expected(head + 4 * static_cast<size_t>(count) + 64, 0x55), got = expected;
        reference(expected.data() + head, source.data() + head, count);
        ours(got.data() + head, source.data() + head, count);
        ASSERT_EQ(got, expected) << count << " elements, head " << head;
      };
      check(level().f32_from_bf16, baseline().f32_from_bf16);
      check(level().f32_from_f16, baseline().f32_from_f16);
      check(level().bf16_from_f32, baseline().bf16_from_f32);
      check(level().f16_from_f32, baseline().f16_from_f32);
    }
  }
}

TEST_P(Levels, StreamsCopyExactlyTheBytesAsked) {
  std::mt19937_64 random(6);
  Bytes source(4096 + 128);
  for (auto &byte : source) byte = static_cast<unsigned char>(random());
  for (const int64_t size : {0, 1, 31, 63, 64, 65, 255, 256, 257, 1000, 4096}) {
    for (const size_t from : {0, 1, 17}) {
      for (const size_t to : {0, 1, 33, 63}) {
        Bytes target(4096 + 128, 0x77), expected = target;
        std::memcpy(expected.data() + to, source.data() + from, static_cast<size_t>(size));
        level().stream_bytes(target.data() + to, source.data() + from, size);
        ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace tpfsdp
