// SPDX-License-Identifier: Apache-2.0
// Leaving: together, alone, by abort, and by a thread that ends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

using std::chrono::milliseconds;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(Close, ExitAtOnceIsNotLost) {
  for (int round = 0; round < 50; ++round)
    run_ranks(4, [](Rank &rank) {
      EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
      rank.leave();
    });
}

TEST(Close, LeftPeerIsLostToAWait) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 1) return rank.leave();
    const int64_t began = services().clock_ns();
    EXPECT_EQ(rank.barrier(), TPFSDP_ERR_PEER_LOST);
    EXPECT_LT(services().clock_ns() - began, 1'000'000'000);
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_TRUE(has(rank.call.text, "rank 1 is lost (left)") && has(rank.call.text, "restart the group"))
        << rank.call.text;
  });
}

TEST(Death, AfterPostIsNotLost) {
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
    if (rank.rank == 1) return rank.leave();
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_ERR_PEER_LOST);
  });
}

TEST(Thread, ScopeExitAborts) {
  run_ranks(3, [](Rank &rank) {
    if (rank.rank == 1) {
      // What the scope guard of a rank's thread does.
      table().comm_abort(rank.comm, TPFSDP_ERR_PEER_LOST, "its thread ended");
      return rank.leave();
    }
    EXPECT_EQ(rank.barrier(), TPFSDP_ERR_PEER_LOST);
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_TRUE(has(rank.call.text, "rank 1 is lost to comm 'world': its thread ended")) << rank.call.text;
    tpfsdp_backend_peer peer{};
    peer.struct_size = sizeof peer;
    do {
      ASSERT_EQ(table().comm_get_peer(rank.comm, 1, &peer), TPFSDP_OK);
    } while (std::string(peer.life) == "alive");
    EXPECT_STREQ(peer.life, "gone");
  });
}

TEST(Flags, AbortWakesEveryWaiter) {
  run_ranks(4, [](Rank &rank) {
    if (rank.rank == 3) {
      std::this_thread::sleep_for(milliseconds(30));
      std::thread other([&] { table().comm_abort(rank.comm, TPFSDP_ERR_ABORTED, "the host said stop"); });
      other.join();
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_ABORTED);
      EXPECT_TRUE(has(rank.call.text, "rank 3 aborted comm 'world': the host said stop")) << rank.call.text;
    }
    EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_ERR_ABORTED);
    EXPECT_EQ(rank.shutdown(), TPFSDP_ERR_ABORTED);
  });
}

TEST(Close, WaitsForAllAndCanBeInterrupted) {
  std::atomic<bool> interrupted{false};
  run_ranks(2, [&](Rank &rank) {
    if (rank.rank == 0) {
      rank.call.interrupted = true;
      EXPECT_EQ(rank.shutdown(), TPFSDP_ERR_CANCELLED);
      rank.call.interrupted = false;
      interrupted = true;
    } else {
      while (!interrupted) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << "again does nothing";
    EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_STATE);
  });
}

TEST(Close, NothingIsLeftBehind) {
  const size_t before = heap().live.size();
  run_ranks(3, [](Rank &rank) {
    void *data = nullptr;
    tpfsdp_backend_region *region = nullptr;
    ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, 5000, &data, &region), TPFSDP_OK);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
    table().region_destroy(region);
  });
  EXPECT_EQ(heap().live.size(), before);
}

}  // namespace
}  // namespace host_test
