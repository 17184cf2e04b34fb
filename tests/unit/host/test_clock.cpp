// SPDX-License-Identifier: Apache-2.0
// The two clocks, the interrupt, and what a long wait says.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

using std::chrono::milliseconds;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

Options short_clocks(int32_t arrival_ms, int32_t progress_ms) {
  Options options;
  options.arrival_ms = arrival_ms;
  options.progress_ms = progress_ms;
  return options;
}

TEST(Clock, MissingRankTimesOutAndSticks) {
  std::atomic<int> over{0};
  run_ranks(
      3,
      [&](Rank &rank) {
        if (rank.rank == 2) {
          while (over < 2) std::this_thread::sleep_for(milliseconds(5));
        } else {
          EXPECT_EQ(rank.barrier(), TPFSDP_ERR_TIMEOUT);
          ++over;
          EXPECT_EQ(rank.call.at_fault, 2);
          EXPECT_TRUE(has(rank.call.text, "rank 2 (last posted 0)") && has(rank.call.text, "restart the group"))
              << rank.call.text;
        }
        EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_TIMEOUT) << "it sticks on every rank";
        EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_ERR_TIMEOUT);
      },
      short_clocks(200, 200));
}

TEST(Clock, PrefetchedPeerIsNotStalled) {
  run_ranks(
      2,
      [&](Rank &rank) {
        std::vector<float> in(100, 1), out(200);
        Op op = all_gather(rank, in.data(), out.data(), {100, 100});
        ASSERT_EQ(rank.submit(op), TPFSDP_OK);
        // Posted ahead, it computes: longer than the progress clock, which must not count it.
        if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(500));
        EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.wait_read(1), TPFSDP_OK) << rank.call.text;
      },
      short_clocks(10000, 150));
}

TEST(Clock, HeldInCopyIsProgress) {
  static thread_local bool held = false;
  std::atomic<bool> over{false};
  hooks().copy = [&](void *target, const void *source, int64_t bytes) {
    if (held)
      while (!over) std::this_thread::sleep_for(milliseconds(5));
    std::memcpy(target, source, static_cast<size_t>(bytes));
  };
  run_ranks(
      2,
      [&](Rank &rank) {
        held = rank.rank == 1;
        void *in = nullptr;
        tpfsdp_backend_region *region = nullptr;
        ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, 400, &in, &region), TPFSDP_OK);
        std::vector<float> out(200);
        Op op = all_gather(rank, static_cast<float *>(in), out.data(), {100, 100}, region);
        ASSERT_EQ(rank.submit(op), TPFSDP_OK);
        EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
        if (rank.rank == 0) {
          std::thread free_it([&] {
            std::this_thread::sleep_for(milliseconds(600));
            over = true;
          });
          EXPECT_EQ(rank.wait_read(1), TPFSDP_ERR_TIMEOUT);
          EXPECT_TRUE(has(rank.call.text, "rank 1 has moved no byte of sequence 1")) << rank.call.text;
          free_it.join();
        }
        table().region_destroy(region);
      },
      short_clocks(60000, 200));
  hooks() = {};
}

TEST(Clock, SlowButMovingIsNotATimeOut) {
  hooks().copy = [](void *target, const void *source, int64_t bytes) {
    std::this_thread::sleep_for(milliseconds(60));
    std::memcpy(target, source, static_cast<size_t>(bytes));
  };
  run_ranks(
      2,
      [](Rank &rank) {
        const int64_t count = 2 << 20;  // eight chunks a rank
        std::vector<float> in(static_cast<size_t>(count), 1), out(static_cast<size_t>(2 * count));
        Op op = all_gather(rank, in.data(), out.data(), {count, count});
        ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.wait_read(1), TPFSDP_OK) << rank.call.text;
      },
      short_clocks(60000, 400));
  hooks() = {};
}

TEST(Clock, InterruptCancelsAndTheWaitCanGoOn) {
  std::atomic<bool> cancelled{false};
  run_ranks(2, [&](Rank &rank) {
    if (rank.rank == 0) {
      rank.call.interrupted = true;
      ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_CANCELLED);
      EXPECT_TRUE(has(rank.call.text, "interrupted in barrier at sequence 1")) << rank.call.text;
      rank.call.interrupted = false;
      cancelled = true;
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
    } else {
      while (!cancelled) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    }
  });
}

TEST(Clock, LongWaitIsLoggedWithTheMissingRanks) {
  std::atomic<int64_t> offset{0};
  hooks().clock_ns = [&] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
               .count() +
           offset;
  };
  Options options;
  options.arrival_ms = -1;
  run_ranks(
      2,
      [&](Rank &rank) {
        if (rank.rank == 1) {
          for (int i = 0; i < 5; ++i) {
            std::this_thread::sleep_for(milliseconds(150));
            offset += 31'000'000'000;
          }
          std::this_thread::sleep_for(milliseconds(150));
        }
        EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        if (rank.rank == 0) {
          ASSERT_EQ(rank.call.logs.size(), 3U) << "at 30 s, 60 s and 120 s";
          EXPECT_TRUE(has(rank.call.logs[0], "missing: rank 1 (last posted 0)")) << rank.call.logs[0];
          EXPECT_TRUE(has(rank.call.logs[0], "barrier at sequence 1 on comm 'world'")) << rank.call.logs[0];
        }
      },
      options);
  hooks() = {};
}

TEST(Clock, TwoWaitsPolledInTurnTimeOutToo) {
  std::atomic<bool> over{false};
  run_ranks(
      2,
      [&](Rank &rank) {
        void *in = nullptr;
        tpfsdp_backend_region *region = nullptr;
        ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, 400, &in, &region), TPFSDP_OK);
        std::vector<float> out(200);
        Op op = all_gather(rank, static_cast<float *>(in), out.data(), {100, 100}, region);
        ASSERT_EQ(rank.submit(op), TPFSDP_OK);
        if (rank.rank == 1) {
          while (!over) std::this_thread::sleep_for(milliseconds(5));  // reads nothing, posts nothing more
        } else {
          ASSERT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
          ASSERT_EQ(rank.submit(op), TPFSDP_OK);
          tpfsdp_status status = TPFSDP_PENDING;
          const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (status == TPFSDP_PENDING && std::chrono::steady_clock::now() < until) {
            status = rank.wait_read(1, false);
            if (status == TPFSDP_PENDING) status = rank.complete(2, false);
          }
          EXPECT_EQ(status, TPFSDP_ERR_TIMEOUT) << rank.call.text;
          over = true;
        }
        table().region_destroy(region);
      },
      short_clocks(300, 60000));
}

TEST(Clock, JoinTimesOut) {
  Store store;
  Rank alone(0, 2, &store);
  Options options;
  options.join_ms = 150;
  EXPECT_EQ(alone.join(options), TPFSDP_ERR_TIMEOUT);
  EXPECT_TRUE(has(alone.call.text, "joining comm 'world'") && has(alone.call.text, "rank 1")) << alone.call.text;
  Rank late(1, 2, &store);
  // Threads find the segment gone; processes find nobody who listens, as with what an earlier job left.
  EXPECT_EQ(late.join(options), uses_shm() ? TPFSDP_ERR_TIMEOUT : TPFSDP_ERR_PEER_LOST) << late.call.text;
  Store empty;
  Rank lonely(1, 2, &empty);
  EXPECT_EQ(lonely.join(options), TPFSDP_ERR_TIMEOUT) << lonely.call.text;
}

}  // namespace
}  // namespace host_test
