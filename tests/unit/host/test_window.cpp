// SPDX-License-Identifier: Apache-2.0
// All ranks apply a step or none does.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "ranks.hpp"

namespace host_test {
namespace {

TEST(Window, OpensWhenAllHaveSaidSo) {
  run_ranks(3, [](Rank &rank) {
    for (int step = 0; step < 100; ++step) {
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

TEST(Window, AgreesWithHostFailureAfterLastOp) {
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      rank.fail(TPFSDP_ERR_CALLBACK, "the loss is NaN");
    } else {
      EXPECT_EQ(rank.window(), TPFSDP_ERR_REMOTE) << "rank 1 did not reach its end of backward";
      EXPECT_EQ(rank.call.at_fault, 1);
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Window, InterruptPostsNothing) {
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.barrier(), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.call.interrupted = true;
      EXPECT_EQ(rank.window(), TPFSDP_ERR_CANCELLED);
      rank.call.interrupted = false;
      EXPECT_EQ(table().wait_step(rank.call.handle(), rank.comm, 1), TPFSDP_OK) << rank.call.text;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      EXPECT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.barrier(), TPFSDP_OK);
    EXPECT_EQ(rank.last, 2);
  });
}

TEST(Window, StepWithOpenCollectivesIsABugOfTheCaller) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 1) return;
    ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
    table().publish_step(rank.comm);
    EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_ERR_INTERNAL);
    EXPECT_NE(rank.call.text.find("WINDOW_AGREED"), std::string::npos) << rank.call.text;
  });
}

}  // namespace
}  // namespace host_test
