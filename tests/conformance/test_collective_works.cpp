// SPDX-License-Identifier: Apache-2.0
// Collectives that are not waited for: works end in any order, each with its own status.
#include "conformance/ranks.hpp"
#include "support/shared.hpp"

#include <algorithm>
#include <memory>
#include <random>

namespace {

using ranks::Error;
using ranks::Rank;

// Of `count` elements a rank, all of one value.
struct Gather {
  int64_t count, total;
  std::vector<int32_t> mine, all;
  tpfsdp_work *work = nullptr;

  Gather(const Rank &me, int32_t value, int64_t elements = 1)
      : count(elements),
        total(elements * me.world),
        mine(static_cast<size_t>(count), value),
        all(static_cast<size_t>(total), -1) {}
  tpfsdp_status start(const Rank &me) {
    const tpfsdp_view input = ranks::view(mine.data(), TPFSDP_DTYPE_I32, count);
    const tpfsdp_view output = ranks::view(all.data(), TPFSDP_DTYPE_I32, total);
    return tpfsdp_group_all_gather(me.group, &input, &output, nullptr, 0, nullptr, &work, nullptr);
  }
  void expect_right(int32_t base) const {
    std::vector<int32_t> expected;
    for (int64_t rank = 0; rank < total / count; ++rank)
      expected.insert(expected.end(), static_cast<size_t>(count), base + static_cast<int32_t>(rank));
    EXPECT_EQ(all, expected);
  }
};

class WorksOf : public testing::TestWithParam<int64_t> {};

TEST_P(WorksOf, WaitedForInAnyOrder) {
  const int64_t count = GetParam();
  const tpfsdp_status end = ranks::run_library(3, [&](const Rank &me) {
    std::vector<std::unique_ptr<Gather>> gathers;
    for (int32_t i = 0; i < 20; ++i) {  // more than can be in flight
      gathers.push_back(std::make_unique<Gather>(me, 100 * i + me.rank, count));
      EXPECT_EQ(gathers.back()->start(me), TPFSDP_OK);
    }
    std::vector<size_t> order(gathers.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(me.rank)));
    for (const size_t i : order) {
      EXPECT_EQ(tpfsdp_work_wait(gathers[i]->work, nullptr, nullptr), TPFSDP_OK);
      gathers[i]->expect_right(static_cast<int32_t>(100 * i));
      EXPECT_EQ(tpfsdp_work_wait(gathers[i]->work, nullptr, nullptr), TPFSDP_OK) << "again: no effect";
      tpfsdp_handle_release(gathers[i]->work);
    }
    return TPFSDP_OK;
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

// A few travel with the call, more are read where they lie, very many in parts.
INSTANTIATE_TEST_SUITE_P(Elements, WorksOf, testing::Values(1, 1000, 300007));

TEST(Works, ReleasedUnfinishedIsNotCancelled) {
  const tpfsdp_status end = ranks::run_library(3, [](const Rank &me) {
    Gather first(me, me.rank), second(me, 10 + me.rank);
    EXPECT_EQ(first.start(me), TPFSDP_OK);
    tpfsdp_handle_release(first.work);
    EXPECT_EQ(tpfsdp_work_test(first.work, nullptr), TPFSDP_ERR_INVALID_HANDLE);
    EXPECT_EQ(second.start(me), TPFSDP_OK);
    EXPECT_EQ(tpfsdp_work_wait(second.work, nullptr, nullptr), TPFSDP_OK);
    tpfsdp_handle_release(second.work);
    first.expect_right(0);
    second.expect_right(10);
    return tpfsdp_group_barrier(me.group, nullptr);
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

TEST(Works, TestTellsPendingUntilTheLastRankHasCome) {
  shared::Meeting late(3);
  const tpfsdp_status end = ranks::run_library(3, [&](const Rank &me) {
    Gather gather(me, me.rank);
    if (me.rank == 2) {
      late.arrive_and_wait();
      EXPECT_EQ(gather.start(me), TPFSDP_OK);
    } else {
      EXPECT_EQ(gather.start(me), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_work_test(gather.work, nullptr), TPFSDP_PENDING);
      late.arrive_and_wait();
    }
    tpfsdp_status status = TPFSDP_PENDING;
    while (status == TPFSDP_PENDING) status = tpfsdp_work_test(gather.work, nullptr);
    EXPECT_EQ(status, TPFSDP_OK);
    gather.expect_right(0);
    tpfsdp_handle_release(gather.work);
    return TPFSDP_OK;
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

TEST(Works, EachTellsItsOwnEnd) {
  // Rank 1 makes a mistake in the middle of three; the works around it are right on the other ranks.
  const tpfsdp_status end = ranks::run_library(3, [](const Rank &me) {
    Gather first(me, me.rank), bad(me, 10 + me.rank), last(me, 20 + me.rank);
    EXPECT_EQ(first.start(me), TPFSDP_OK);
    EXPECT_EQ(tpfsdp_work_wait(first.work, nullptr, nullptr), TPFSDP_OK);
    if (me.rank == 1) bad.total = 2;
    EXPECT_EQ(bad.start(me), me.rank == 1 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_OK);
    EXPECT_EQ(last.start(me), TPFSDP_OK);
    EXPECT_EQ(tpfsdp_work_wait(last.work, nullptr, nullptr), TPFSDP_OK);
    last.expect_right(20);
    if (me.rank != 1) {
      Error error;
      EXPECT_EQ(tpfsdp_work_wait(bad.work, nullptr, &error), TPFSDP_ERR_REMOTE);
      EXPECT_NE(error.text().find("output has 2 elements"), std::string::npos) << error.text();
      EXPECT_EQ(tpfsdp_work_test(bad.work, nullptr), TPFSDP_ERR_REMOTE) << "each time";
    }
    for (tpfsdp_work *work : {first.work, bad.work, last.work}) tpfsdp_handle_release(work);
    return TPFSDP_OK;
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

// Large enough for several windows where data is staged, and a multiple of them.
constexpr int64_t kLarge = 524288;

void expect_gathered(const Rank &me, int32_t value) {
  Gather gather(me, value + me.rank, kLarge);
  ASSERT_EQ(gather.start(me), TPFSDP_OK);
  EXPECT_EQ(tpfsdp_work_wait(gather.work, nullptr, nullptr), TPFSDP_OK);
  gather.expect_right(value);
  tpfsdp_handle_release(gather.work);
}

TEST(Works, AFailedOneLeavesLargeOnesBehindItRight) {
  EXPECT_EQ(ranks::run_host(2,
                            [](const Rank &me) -> tpfsdp_status {
                              Gather unequal(me, me.rank, me.rank == 0 ? 4 : 1000);
                              EXPECT_EQ(unequal.start(me), TPFSDP_OK);
                              expect_gathered(me, 10);
                              EXPECT_EQ(tpfsdp_work_wait(unequal.work, nullptr, nullptr), TPFSDP_ERR_MISMATCH);
                              tpfsdp_handle_release(unequal.work);
                              expect_gathered(me, 20);
                              expect_gathered(me, 30);
                              return TPFSDP_OK;
                            }),
            TPFSDP_OK);
}

TEST(Works, AFailedLargeOneWritesNothingLater) {
  EXPECT_EQ(ranks::run_host(2,
                            [](const Rank &me) -> tpfsdp_status {
                              std::vector<int32_t> in(kLarge, me.rank), out(2 * kLarge, -7);
                              const std::vector<int32_t> untouched = out;
                              const int64_t mine = kLarge, all = 2 * kLarge;
                              const tpfsdp_view input = ranks::view(in.data(), TPFSDP_DTYPE_I32, mine);
                              const tpfsdp_view output = ranks::view(out.data(), TPFSDP_DTYPE_I32, all);
                              const tpfsdp_status status =
                                  me.rank == 0 ? tpfsdp_group_all_gather(me.group, &input, &output, nullptr, 0, nullptr,
                                                                         nullptr, nullptr)
                                               : tpfsdp_group_barrier(me.group, nullptr);
                              EXPECT_EQ(status, TPFSDP_ERR_MISMATCH);
                              expect_gathered(me, 10);
                              expect_gathered(me, 20);
                              EXPECT_EQ(out, untouched);
                              return TPFSDP_OK;
                            }),
            TPFSDP_OK);
}

}  // namespace
