// SPDX-License-Identifier: Apache-2.0
// Every kind of collective gives the right bytes: inline and in place, unequal and empty parts, one rank to many.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

std::vector<int64_t> uneven(int world, int64_t base) {
  std::vector<int64_t> counts;
  for (int r = 0; r < world; ++r) counts.push_back(r % 3 == 1 ? 0 : base + r);
  return counts;
}

int64_t total(const std::vector<int64_t> &counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

class Kinds : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t base() const { return std::get<1>(GetParam()); }
};

TEST_P(Kinds, AllGather) {
  const std::vector<int64_t> counts = uneven(world(), base());
  run_ranks(world(), [&](Rank &rank) {
    for (int round = 0; round < 20; ++round) {
      const int64_t own = counts[static_cast<size_t>(rank.rank)];
      std::vector<float> input(static_cast<size_t>(own), static_cast<float>(100 * round + rank.rank));
      std::vector<float> output(static_cast<size_t>(total(counts)) + 1, -1);
      Op op = all_gather(rank, input.data(), output.data(), counts);
      ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
      size_t at = 0;
      for (int r = 0; r < world(); ++r)
        for (int64_t i = 0; i < counts[static_cast<size_t>(r)]; ++i)
          ASSERT_EQ(output[at++], static_cast<float>(100 * round + r)) << "rank " << rank.rank << " from " << r;
      ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST_P(Kinds, ReduceScatterStoresAndAccumulates) {
  const std::vector<int64_t> counts = uneven(world(), base());
  run_ranks(world(), [&](Rank &rank) {
    const size_t own = static_cast<size_t>(counts[static_cast<size_t>(rank.rank)]);
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + rank.rank, int64_t{0});
    std::vector<float> output(own + 1, 0);
    float expected = 0;
    for (int round = 0; round < 10; ++round) {
      std::vector<float> input(static_cast<size_t>(total(counts)) + 1);
      for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(static_cast<int>(i) * (rank.rank + 1));
      Op op = reduce_scatter(rank, input.data(), output.data(), counts);
      op.pieces[0].accumulate = round % 2;
      ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
      for (size_t i = 0; i < own; ++i) {
        expected =
            static_cast<float>((first + static_cast<int64_t>(i)) * world() * (world() + 1) / 2 * (1 + round % 2));
        ASSERT_EQ(output[i], expected);
      }
      ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST_P(Kinds, AllReduceInPlaceAndApart) {
  run_ranks(world(), [&](Rank &rank) {
    for (int round = 0; round < 10; ++round) {
      const size_t count = static_cast<size_t>(base() * world());
      std::vector<float> input(count), apart(count, -1);
      for (size_t i = 0; i < count; ++i) input[i] = static_cast<float>(rank.rank + static_cast<int>(i) + round);
      float *output = round % 2 == 0 ? input.data() : apart.data();
      Op op = all_reduce(input.data(), output, static_cast<int64_t>(count));
      ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(output[i], static_cast<float>(world() * (world() - 1) / 2 + world() * (static_cast<int>(i) + round)));
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST_P(Kinds, BroadcastFromEveryRank) {
  run_ranks(world(), [&](Rank &rank) {
    for (int root = 0; root < world(); ++root) {
      const size_t count = static_cast<size_t>(base());
      std::vector<float> data(count + 1, static_cast<float>(rank.rank));
      Op op = broadcast(root, root == rank.rank ? data.data() : nullptr, data.data(), base());
      ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<float>(root));
      ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    }
    for (int i = 0; i < 30; ++i) ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Kinds,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(0, 1, 16, 1000)));
INSTANTIATE_TEST_SUITE_P(Large, Kinds, ::testing::Values(std::tuple{2, 700000}, std::tuple{64, 20}));

}  // namespace
}  // namespace host_test
