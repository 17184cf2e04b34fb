// SPDX-License-Identifier: Apache-2.0
// Who owns which rows and where they lie: uneven, empty and huge parameters, alignment, padding.
#include "fsdp/shard_layout.hpp"

#include "base/error.hpp"
#include "memory/buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace tpfsdp {
namespace {

using testing::HasSubstr;
using Counts = std::vector<int64_t>;

Counts counts_of(int64_t rows, int32_t world) {
  Counts counts;
  for (int32_t rank = 0; rank < world; ++rank) counts.push_back(rows_of_rank(rows, world, rank).count());
  return counts;
}

Counts begins_of(int64_t rows, int32_t world) {
  Counts begins;
  for (int32_t rank = 0; rank < world; ++rank) begins.push_back(rows_of_rank(rows, world, rank).begin);
  return begins;
}

std::string refusal(Status status, const std::vector<ParamSpec> &specs) {
  try {
    const ShardLayout layout(specs, 2);
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), status) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(ShardLayout, RowsAreCutInEqualChunksFromTheFront) {
  EXPECT_EQ(counts_of(8, 4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(counts_of(5, 4), (Counts{2, 2, 1, 0}));
  EXPECT_EQ(counts_of(3, 4), (Counts{1, 1, 1, 0}));
  EXPECT_EQ(counts_of(1, 4), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(counts_of(9, 4), (Counts{3, 3, 3, 0}));
  EXPECT_EQ(counts_of(7, 1), (Counts{7}));
  EXPECT_EQ(counts_of(0, 3), (Counts{0, 0, 0}));
}

TEST(ShardLayout, B004_TenRowsOverFourRanksAreThreeThreeThreeOne) {
  EXPECT_EQ(counts_of(10, 4), (Counts{3, 3, 3, 1}));
  EXPECT_EQ(begins_of(10, 4), (Counts{0, 3, 6, 9}));
}

TEST(ShardLayout, AnEmptyShardBeginsAtTheEndOfTheWhole) {
  EXPECT_EQ(begins_of(5, 4), (Counts{0, 2, 4, 5}));
  EXPECT_EQ(begins_of(18, 8), (Counts{0, 3, 6, 9, 12, 15, 18, 18}));
  Counts of_512 = counts_of(512, 30);
  EXPECT_EQ(of_512[27], 18);
  EXPECT_EQ(of_512[28], 8);
  EXPECT_EQ(of_512[29], 0);
  EXPECT_EQ(rows_of_rank(512, 30, 29).begin, 512);
}

TEST(ShardLayout, RangesOfAllRanksCoverEveryRowOnce) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const int64_t rows = random() % 200;
    const int32_t world = 1 + static_cast<int32_t>(random() % 40);
    int64_t end = 0;
    for (int32_t rank = 0; rank < world; ++rank) {
      const RowRange range = rows_of_rank(rows, world, rank);
      ASSERT_EQ(range.begin, end) << rows << " rows, rank " << rank << " of " << world;
      ASSERT_GE(range.count(), 0);
      ASSERT_LE(range.count(), (rows + world - 1) / world);
      end = range.end;
    }
    ASSERT_EQ(end, rows);
  }
}

TEST(ShardLayout, B017_SizesAreSixtyFourBitsWide) {
  constexpr int64_t kRows = 2147483656;
  EXPECT_EQ(counts_of(kRows, 4), (Counts{536870914, 536870914, 536870914, 536870914}));
  EXPECT_EQ(begins_of(kRows, 4), (Counts{0, 536870914, 1073741828, 1610612742}));
  const ShardLayout layout({{{3, 5}, TPFSDP_DTYPE_F32, true}, {{kRows}, TPFSDP_DTYPE_F64, true}}, 4);
  EXPECT_EQ(layout.params[1].full_bytes() / layout.params[1].rows, 8);
  EXPECT_EQ(layout.params[1].full_bytes(), 17179869248);
  EXPECT_EQ(layout.params[1].full_offset, 256);
  EXPECT_EQ(layout.full_bytes, 17179869504);
  EXPECT_EQ(layout.grad_bytes, 17179869504);
  EXPECT_EQ(layout.logical_bytes, 17179869308);
  EXPECT_EQ(layout.shard_places(0).size_bytes, 256 + 536870914LL * 8);
  EXPECT_EQ(layout.shard_places(3).size_bytes, 536870914LL * 8);
}

TEST(ShardLayout, SizesThatDoNotFitAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 61;
  EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, {{{kHuge, 8}, TPFSDP_DTYPE_U8, false}}), HasSubstr("int64_t"));
  EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, {{{kHuge}, TPFSDP_DTYPE_F32, true}}), HasSubstr("more bytes"));
  EXPECT_THAT(
      refusal(TPFSDP_ERR_INVALID_ARGUMENT, {{{kHuge}, TPFSDP_DTYPE_F16, true}, {{kHuge}, TPFSDP_DTYPE_F16, true}}),
      HasSubstr("more bytes"));
}

TEST(ShardLayout, RowsOfPartBytesCannotBeCut) {
  const std::string text = refusal(TPFSDP_ERR_UNSUPPORTED, {{{4, 3}, TPFSDP_DTYPE_F4_E2M1FN, false}});
  EXPECT_THAT(text, HasSubstr("rows of 3"));
  EXPECT_THAT(text, HasSubstr("f4_e2m1fn"));
  const ShardLayout layout({{{3, 4}, TPFSDP_DTYPE_F4_E2M1FN, false}}, 2);
  EXPECT_EQ(layout.params[0].full_bytes() / layout.params[0].rows, 2);
  EXPECT_EQ(layout.gather_dtype, TPFSDP_DTYPE_U8);
}

TEST(ShardLayout, TensorsLieBackToBackAtAlignedPlaces) {
  // 60 bytes, 12 bytes, nothing, 128 KiB.
  const ShardLayout layout({{{5, 3}, TPFSDP_DTYPE_F32, true},
                            {{3}, TPFSDP_DTYPE_F32, false},
                            {{0, 7}, TPFSDP_DTYPE_F32, true},
                            {{512, 64}, TPFSDP_DTYPE_F32, true}},
                           4);
  EXPECT_EQ(layout.params[0].full_offset, 0);
  EXPECT_EQ(layout.params[1].full_offset, 64);
  EXPECT_EQ(layout.params[2].full_offset, 128);
  EXPECT_EQ(layout.params[3].full_offset, 256);
  EXPECT_EQ(layout.full_bytes, 256 + 131072);
  EXPECT_EQ(layout.logical_bytes, 60 + 12 + 131072);
  EXPECT_EQ(layout.gather_dtype, TPFSDP_DTYPE_F32);
  EXPECT_EQ(layout.params[0].grad_offset, 0);
  EXPECT_EQ(layout.params[1].grad_offset, -1);
  EXPECT_EQ(layout.params[2].grad_offset, 64);
  EXPECT_EQ(layout.params[3].grad_offset, 256);
  EXPECT_EQ(layout.grad_bytes, 256 + 131072);

  // Rank 0 owns 2, 1, 0 and 128 rows: 24, 4, 0 and 32768 bytes. Rank 3 owns none, none, none and 128.
  EXPECT_EQ(layout.shard_places(0).offsets, (Counts{0, 64, 128, 128}));
  EXPECT_EQ(layout.shard_places(0).size_bytes, 128 + 32768);
  EXPECT_EQ(layout.shard_places(3).offsets, (Counts{0, 0, 0, 0}));
  EXPECT_EQ(layout.shard_places(3).size_bytes, 32768);
  EXPECT_EQ(layout.grad_shard_places(0).offsets, (Counts{0, -1, 64, 64}));
  EXPECT_EQ(layout.grad_shard_places(3).offsets, (Counts{0, -1, 0, 0}));
}

TEST(ShardLayout, SeveralDtypesAreGatheredAsBytes) {
  const ShardLayout layout({{{4}, TPFSDP_DTYPE_F32, true}, {{4}, TPFSDP_DTYPE_I64, false}}, 2);
  EXPECT_EQ(layout.gather_dtype, TPFSDP_DTYPE_U8);
  EXPECT_EQ(layout.logical_bytes, 48);
}

TEST(ShardLayout, AUnitOfEmptyParametersTakesNothing) {
  const ShardLayout layout({{{0}, TPFSDP_DTYPE_F32, true}, {{4, 0}, TPFSDP_DTYPE_F32, true}}, 3);
  EXPECT_EQ(layout.full_bytes, 0);
  EXPECT_EQ(layout.grad_bytes, 0);
  EXPECT_EQ(layout.logical_bytes, 0);
  EXPECT_EQ(layout.shard_places(1).size_bytes, 0);
}

TEST(ShardLayout, B018_PaddingIsBoundedByTheAlignment) {
  std::mt19937 random(18);
  const std::vector<int64_t> sizes{18, 16, 7, 18432, 16384, 7168, 1, 13};
  for (int i = 0; i < 500; ++i) {
    std::vector<ParamSpec> specs;
    int64_t bound = 0;
    const int32_t world = 1 + static_cast<int32_t>(random() % 8);
    for (size_t n = 1 + random() % 6; n > 0; --n) {
      specs.push_back({{static_cast<int64_t>(random() % 40), sizes[random() % sizes.size()]}, TPFSDP_DTYPE_F32, true});
      bound += alignment_for(dtype_bytes(TPFSDP_DTYPE_F32, element_count(specs.back().shape))) - 1;
    }
    const ShardLayout layout(specs, world);
    ASSERT_LE(layout.full_bytes - layout.logical_bytes, bound);
    ASSERT_LE(layout.grad_bytes - layout.logical_bytes, bound);
    int64_t shards = 0;
    for (int32_t rank = 0; rank < world; ++rank) {
      const ShardPlaces places = layout.shard_places(rank);
      ASSERT_LE(places.size_bytes, layout.full_bytes + 255 * static_cast<int64_t>(specs.size()));
      shards += places.size_bytes;
      for (size_t p = 0; p < specs.size(); ++p) {
        const int64_t size = dtype_bytes(layout.params[p].dtype, layout.owned(p, rank).count());
        ASSERT_EQ(places.offsets[p] % alignment_for(size), 0);
        if (p + 1 < specs.size()) {
          ASSERT_LE(places.offsets[p] + size, places.offsets[p + 1]);
        }
      }
      ASSERT_EQ(layout.grad_shard_places(rank).offsets, places.offsets);
    }
    ASSERT_LE(shards - layout.logical_bytes, 255 * world * static_cast<int64_t>(specs.size()));
    for (size_t p = 0; p < specs.size(); ++p)
      ASSERT_EQ(layout.params[p].full_offset % alignment_for(layout.params[p].full_bytes()), 0);
  }
}

// ---- CONTIGUOUS --------------------------------------------------------------------------------------------------

Counts owned(const ShardLayout &layout, size_t param) {
  Counts counts;
  for (int32_t rank = 0; rank < layout.world_size; ++rank) counts.push_back(layout.owned(param, rank).count());
  return counts;
}

TEST(ContiguousLayout, TheSequenceOfParametersIsCutInEqualSlices) {
  const std::vector<ParamSpec> specs{{{2, 3}, TPFSDP_DTYPE_F32, true}, {{4}, TPFSDP_DTYPE_F32, true}};
  // Ten elements over four ranks: 40 bytes, cut at 10, 20 and 30.
  const ShardLayout elements(specs, 4, {true, 0});
  EXPECT_EQ(owned(elements, 0), (Counts{2, 3, 1, 0}));
  EXPECT_EQ(owned(elements, 1), (Counts{0, 0, 1, 3}));
  EXPECT_EQ(elements.owned(0, 2).begin, 5);
  EXPECT_EQ(elements.owned(1, 3).begin, 1);
  // Rows of three and of one: the nearest ends.
  const ShardLayout rows(specs, 4, {true, 1});
  EXPECT_EQ(owned(rows, 0), (Counts{3, 3, 0, 0}));
  EXPECT_EQ(owned(rows, 1), (Counts{0, 0, 1, 3}));
  EXPECT_EQ(rows.owned_rows(0, 1).begin, 1);
  EXPECT_EQ(rows.owned_rows(1, 2).end, 1);
  // Blocks of four rows: each parameter is one.
  const ShardLayout blocks(specs, 4, {true, 4});
  EXPECT_EQ(owned(blocks, 0), (Counts{0, 6, 0, 0}));
  EXPECT_EQ(owned(blocks, 1), (Counts{0, 0, 0, 4}));
}

TEST(ContiguousLayout, WideElementsCountAsManyBytes) {
  const ShardLayout layout({{{4}, TPFSDP_DTYPE_F64, true}, {{4}, TPFSDP_DTYPE_F32, false}}, 3, {true, 1});
  EXPECT_EQ(owned(layout, 0), (Counts{2, 2, 0}));
  EXPECT_EQ(owned(layout, 1), (Counts{0, 0, 4}));
}

TEST(ContiguousLayout, ParametersWithoutElementsAreTheFirstRanks) {
  const ShardLayout layout({{{3, 0}, TPFSDP_DTYPE_F32, true}, {{0}, TPFSDP_DTYPE_F32, true}}, 2, {true, 1});
  EXPECT_EQ(layout.owned_rows(0, 0).count(), 3);
  EXPECT_EQ(layout.owned_rows(0, 1).count(), 0);
  EXPECT_EQ(layout.owned_rows(0, 1).begin, 3);
  EXPECT_EQ(owned(layout, 1), (Counts{0, 0}));
}

TEST(ContiguousLayout, GranulesOfPartBytesCannotBeCut) {
  const std::vector<ParamSpec> specs{{{4, 4}, TPFSDP_DTYPE_F4_E2M1FN, false}};
  EXPECT_NO_THROW(ShardLayout(specs, 2, {true, 1}));
  EXPECT_THROW(ShardLayout(specs, 2, {true, 0}), Failure);
}

// Each element is somebody's, in order; slices are as large as each other but for a granule at each end.
TEST(ContiguousLayout, SlicesCoverTheSequenceAndAreEqualToAGranule) {
  std::mt19937 random(4);
  for (int i = 0; i < 1000; ++i) {
    const int32_t world = 1 + static_cast<int32_t>(random() % 8);
    const int64_t granule_rows = static_cast<int64_t>(random() % 4);
    std::vector<ParamSpec> specs;
    int64_t largest = 4, total = 0;
    for (size_t n = 1 + random() % 5; n > 0; --n) {
      specs.push_back(
          {{static_cast<int64_t>(random() % 20), 1 + static_cast<int64_t>(random() % 9)}, TPFSDP_DTYPE_F32, true});
      const Shape &shape = specs.back().shape;
      total += 4 * element_count(shape);
      if (granule_rows > 0) largest = std::max(largest, 4 * std::min(granule_rows, shape[0]) * shape[1]);
    }
    const ShardLayout layout(specs, world, {true, granule_rows});
    for (size_t p = 0; p < specs.size(); ++p) {
      int64_t end = 0;
      for (int32_t rank = 0; rank < world; ++rank) {
        const ElementRange range = layout.owned(p, rank);
        ASSERT_EQ(range.begin, range.count() > 0 ? end : element_count(specs[p].shape));
        ASSERT_GE(range.count(), 0);
        if (range.count() == 0) continue;
        ASSERT_TRUE(granule_rows == 0 || range.begin % specs[p].shape[1] == 0);
        end = range.end;
      }
      ASSERT_EQ(end, element_count(specs[p].shape));
    }
    for (int32_t rank = 0; rank < world; ++rank) {
      int64_t bytes = 0;
      for (size_t p = 0; p < specs.size(); ++p) bytes += 4 * layout.owned(p, rank).count();
      ASSERT_LE(std::abs(bytes - total / world), largest + 4);
    }
  }
}

}  // namespace
}  // namespace tpfsdp
