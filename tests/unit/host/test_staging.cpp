// SPDX-License-Identifier: Apache-2.0
// Collectives on the caller's own memory that are too large for a record. Between processes they go through two small
// regions in windows; the results, and what a failure in the middle does, are those of memory that is read in place.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

constexpr int64_t WINDOW = (512 << 10) / 4;  // floats of one rank in an all-gather
constexpr int64_t LARGE = 3 * WINDOW + 17;

float value(int rank, int64_t i) { return static_cast<float>((3 * rank + 7 * i) % 64); }

std::vector<float> values(int rank, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = value(rank, i);
  return out;
}

float sum(int world, int64_t i) {
  float total = 0;
  for (int rank = 0; rank < world; ++rank) total += value(rank, i);
  return total;
}

TEST(Staging, EveryElementOfAnAllGatherArrives) {
  const std::vector<int64_t> counts = {LARGE, 0, 5, 2 * WINDOW};
  run_ranks(4, [&](Rank &rank) {
    const std::vector<float> in = values(rank.rank, counts[static_cast<size_t>(rank.rank)]);
    std::vector<float> out(static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})), -1);
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(rank.run(all_gather(rank, in.data(), out.data(), counts)), TPFSDP_OK) << rank.call.text;
      size_t at = 0;
      for (int r = 0; r < 4; ++r)
        for (int64_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) ASSERT_EQ(out[at++], value(r, i)) << r << " " << i;
      ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Staging, EveryElementOfAnInPlaceAllGatherArrives) {
  run_ranks(2, [](Rank &rank) {
    std::vector<float> all(2 * LARGE, -1);
    float *own = all.data() + rank.rank * LARGE;
    const std::vector<float> in = values(rank.rank, LARGE);
    std::copy(in.begin(), in.end(), own);
    ASSERT_EQ(rank.run(all_gather(rank, own, all.data(), {LARGE, LARGE})), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < 2 * LARGE; ++i)
      ASSERT_EQ(all[static_cast<size_t>(i)], value(static_cast<int>(i / LARGE), i % LARGE)) << i;
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Staging, EveryElementOfAReduceScatterIsReducedOnce) {
  const std::vector<int64_t> counts = {LARGE, 0, 100};
  run_ranks(3, [&](Rank &rank) {
    const int64_t total = LARGE + 100, own = counts[static_cast<size_t>(rank.rank)];
    const int64_t first = rank.rank == 2 ? LARGE : 0;
    const std::vector<float> in = values(rank.rank, total);
    std::vector<float> out(static_cast<size_t>(own) + 1, -1);
    ASSERT_EQ(rank.run(reduce_scatter(rank, in.data(), out.data(), counts)), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < own; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], sum(3, first + i)) << i;
    Op again = reduce_scatter(rank, in.data(), out.data(), counts);
    again.pieces[0].accumulate = 1;
    ASSERT_EQ(rank.run(again), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < own; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], 2 * sum(3, first + i)) << i;
    EXPECT_EQ(out.back(), -1) << "written beyond the end";
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Staging, EveryElementOfAnAllReduceAndABroadcastArrives) {
  run_ranks(3, [](Rank &rank) {
    std::vector<float> data = values(rank.rank, LARGE);
    ASSERT_EQ(rank.run(all_reduce(data.data(), data.data(), LARGE)), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < LARGE; ++i) ASSERT_EQ(data[static_cast<size_t>(i)], sum(3, i)) << i;
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    data = values(rank.rank, LARGE);
    ASSERT_EQ(rank.run(broadcast(1, data.data(), data.data(), LARGE)), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < LARGE; ++i) ASSERT_EQ(data[static_cast<size_t>(i)], value(1, i)) << i;
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

// Three collectives of one window each: between processes the third takes the memory of the first, which rank 1 has
// posted but not read.
TEST(Staging, SlotIsNotRefilledUnderAReader) {
  constexpr int64_t COUNT = 1000;
  std::atomic<bool> posted{false}, asked{false};
  run_ranks(2, [&](Rank &rank) {
    std::vector<std::vector<float>> in, out(3, std::vector<float>(2 * COUNT, -1));
    std::vector<Op> ops;
    std::vector<int64_t> sequences(3);
    for (int i = 0; i < 3; ++i) in.push_back(values(rank.rank + 10 * i, COUNT));
    for (size_t i = 0; i < 3; ++i) ops.push_back(all_gather(rank, in[i].data(), out[i].data(), {COUNT, COUNT}));
    const auto submit = [&](size_t i, bool may_wait) {
      const tpfsdp_status status = rank.submit(ops[i], may_wait);
      sequences[i] = rank.last;
      return status;
    };
    if (rank.rank == 1) {
      ASSERT_EQ(submit(0, true), TPFSDP_OK) << rank.call.text;
      posted = true;
      while (!asked) std::this_thread::yield();
      ASSERT_EQ(rank.complete(sequences[0]), TPFSDP_OK) << rank.call.text;
      for (size_t i = 1; i < 3; ++i) ASSERT_EQ(submit(i, true), TPFSDP_OK) << rank.call.text;
    } else {
      while (!posted) std::this_thread::yield();
      ASSERT_EQ(submit(0, true), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(rank.complete(sequences[0]), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(submit(1, true), TPFSDP_OK) << rank.call.text;
      const tpfsdp_status third = submit(2, false);
      asked = true;
      EXPECT_EQ(third, uses_shm() ? TPFSDP_PENDING : TPFSDP_OK) << rank.call.text;
      if (third == TPFSDP_PENDING) {
        ASSERT_EQ(submit(2, true), TPFSDP_OK) << rank.call.text;
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(rank.complete(sequences[i]), TPFSDP_OK) << rank.call.text;
      for (int64_t at = 0; at < 2 * COUNT; ++at)
        ASSERT_EQ(out[i][static_cast<size_t>(at)],
                  value(static_cast<int>(at / COUNT + 10 * static_cast<int64_t>(i)), at % COUNT));
    }
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Staging, UnequalRanksMoveNothingAndGoOn) {
  run_ranks(2, [](Rank &rank) {
    std::vector<float> data = values(rank.rank, LARGE + 64);
    const std::vector<float> before = data;
    const int64_t count = rank.rank == 0 ? LARGE : LARGE + 64;  // the first windows would be alike
    EXPECT_EQ(rank.run(all_reduce(data.data(), data.data(), count)), TPFSDP_ERR_MISMATCH);
    EXPECT_NE(rank.call.text.find(std::to_string(LARGE)), std::string::npos) << rank.call.text;
    EXPECT_EQ(data, before);
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(rank.run(all_reduce(data.data(), data.data(), LARGE)), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < LARGE; ++i) ASSERT_EQ(data[static_cast<size_t>(i)], sum(2, i)) << i;
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Staging, FailureBetweenWindowsIsHeardAndRepaired) {
  std::atomic<bool> stopped{false};
  run_ranks(2, [&](Rank &rank) {
    const std::vector<float> in = values(rank.rank, LARGE);
    std::vector<float> out(2 * LARGE, -1);
    Op op = all_gather(rank, in.data(), out.data(), {LARGE, LARGE});
    if (rank.rank == 1) {
      rank.submit(op, false);  // one window: the next waits for rank 0
      rank.fail(TPFSDP_ERR_CALLBACK, "stopped between windows");
      stopped = true;
    } else {
      while (!stopped) std::this_thread::yield();
      const tpfsdp_status status = rank.submit(op);
      const tpfsdp_status end = status == TPFSDP_OK ? rank.complete(rank.last) : status;
      // Of what is read in place rank 1 takes its memory back; of windows the second may still be complete.
      if (uses_shm() || end != TPFSDP_OK) {
        EXPECT_EQ(end, TPFSDP_ERR_REMOTE);
        EXPECT_NE(rank.call.text.find("stopped between windows"), std::string::npos) << rank.call.text;
      }
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < 2 * LARGE; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], value(static_cast<int>(i / LARGE), i % LARGE)) << i;
    ASSERT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

}  // namespace
}  // namespace host_test
