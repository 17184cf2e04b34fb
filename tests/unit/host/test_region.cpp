// SPDX-License-Identifier: Apache-2.0
// Memory that peers may read outlives every reader, and the caller's own memory is never read once it is taken back.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "memory.hpp"
#include "ranks.hpp"

namespace host_test {
namespace {

using std::chrono::milliseconds;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

/// Holds the copies of one rank until it is opened.
class Gate {
 public:
  Gate() {
    hooks().copy = [this](void *target, const void *source, int64_t bytes) {
      if (held_here()) {
        inside = true;
        while (!open) std::this_thread::sleep_for(milliseconds(1));
      }
      std::memcpy(target, source, static_cast<size_t>(bytes));
    };
  }
  ~Gate() { hooks() = {}; }
  static bool &held_here() {
    static thread_local bool held = false;
    return held;
  }
  std::atomic<bool> inside{false};
  std::atomic<bool> open{false};
};

float *region_of(Rank &rank, int64_t floats, tpfsdp_backend_region **region) {
  void *data = nullptr;
  EXPECT_EQ(table().region_create(rank.call.handle(), rank.comm, floats * 4, &data, region), TPFSDP_OK);
  return static_cast<float *>(data);
}

TEST(Region, IsZeroedAlignedAndProtected) {
  run_ranks(2, [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 3000, &region);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0U);
    for (int i = 0; i < 3000; ++i) ASSERT_EQ(data[i], 0.0F);
    ASSERT_EQ(table().region_protect(rank.call.handle(), region, 1), TPFSDP_OK);
    std::vector<float> out(6000, 1);
    Op op = all_gather(rank, data, out.data(), {3000, 3000}, region);
    EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(table().region_protect(rank.call.handle(), region, 0), TPFSDP_OK);
    data[0] = 1;
    table().region_destroy(region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

/// Of threads; what processes share the kernel keeps, and what was read shows whether it did.
bool is_freed(const void *data) { return !uses_shm() && !heap().is_live(data); }

TEST(Region, OutlivesOwner) {
  Gate gate;
  std::atomic<bool> left{false};
  run_ranks(2, [&](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 100, &region);
    for (int i = 0; i < 100; ++i) data[i] = static_cast<float>(rank.rank + 5);
    std::vector<float> out(200);
    Op op = all_gather(rank, data, out.data(), {100, 100}, region);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 1) {
      Gate::held_here() = true;
      std::thread opener([&] {
        while (!left || !gate.inside) std::this_thread::sleep_for(milliseconds(1));
        EXPECT_FALSE(is_freed(op.op.input));
        gate.open = true;
      });
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(out[0], 5.0F);
      opener.join();
      table().region_destroy(region);
    } else {
      while (!gate.inside) std::this_thread::sleep_for(milliseconds(1));
      table().region_destroy(region);
      EXPECT_FALSE(is_freed(data)) << "freed under a reader";
      rank.leave();
      EXPECT_FALSE(is_freed(data)) << "freed under a reader";
      left = true;
    }
  });
}

TEST(Gather, PrivateSourceNotSlot) {
  // Rank 0 has its group whole, gives it up and refills the slot with the next one while rank 1 still copies the first.
  constexpr int64_t PART = 700'000;
  Gate gate;
  run_ranks(2, [&](Rank &rank) {
    tpfsdp_backend_region *regions[2];
    float *shards[2];
    for (int g = 0; g < 2; ++g) {
      shards[g] = region_of(rank, PART, &regions[g]);
      std::fill(shards[g], shards[g] + PART, static_cast<float>(10 * (g + 1) + rank.rank));
    }
    std::vector<float> slot(2 * PART, -1);
    Op first = all_gather(rank, shards[0], slot.data(), {PART, PART}, regions[0]);
    Op second = all_gather(rank, shards[1], slot.data(), {PART, PART}, regions[1]);
    const auto holds = [&](float of_rank_0) {
      return std::all_of(slot.begin(), slot.begin() + PART, [&](float v) { return v == of_rank_0; }) &&
             std::all_of(slot.begin() + PART, slot.end(), [&](float v) { return v == of_rank_0 + 1; });
    };
    Gate::held_here() = rank.rank == 1;
    ASSERT_EQ(rank.submit(first), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_TRUE(holds(10));
      while (!gate.inside) std::this_thread::sleep_for(milliseconds(1));
      std::fill(slot.begin(), slot.end(), -9.0F);  // reshard, poisoned
      ASSERT_EQ(rank.submit(second), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(rank.wait_read(1, false), TPFSDP_PENDING) << "rank 1 was held, and is not";
      gate.open = true;
    } else {
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_TRUE(holds(10)) << "read a slot of rank 0, not its shard";
      ASSERT_EQ(rank.submit(second), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.complete(2), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(20));
    EXPECT_EQ(rank.wait_read(2), TPFSDP_OK) << rank.call.text;
    for (auto *region : regions) table().region_destroy(region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Region, NotFreedOnAbort) {
  Gate gate;
  run_ranks(2, [&](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 100, &region);
    std::fill(data, data + 100, 3.0F);
    std::vector<float> out(200);
    Op op = all_gather(rank, data, out.data(), {100, 100}, region);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 1) {
      Gate::held_here() = true;
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(out[0], 3.0F) << "freed under a reader";
      table().region_destroy(region);
    } else {
      while (!gate.inside) std::this_thread::sleep_for(milliseconds(1));
      table().comm_abort(rank.comm, TPFSDP_ERR_ABORTED, "stop");
      table().region_destroy(region);
      const bool live = !is_freed(data);
      EXPECT_TRUE(live) << "freed under a reader";
      if (!live) out.clear();
      gate.open = true;
      while (live && rank.wait_read(1) == TPFSDP_PENDING) {
      }
    }
  });
}

TEST(Region, IsFreedOnceReadersHavePassed) {
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.barrier(), TPFSDP_OK);
    const int64_t blocks = shared_blocks();
    for (int round = 0; round < 10; ++round) {
      tpfsdp_backend_region *region = nullptr;
      float *data = region_of(rank, 100, &region);
      std::vector<float> out(200);
      Op op = all_gather(rank, data, out.data(), {100, 100}, region);
      ASSERT_EQ(rank.run(op), TPFSDP_OK);
      table().region_destroy(region);
      ASSERT_EQ(rank.barrier(), TPFSDP_OK);
      tpfsdp_backend_region *next = nullptr;
      const int64_t freed = heap().freed;
      region_of(rank, 1, &next);  // sweeps
      table().region_destroy(next);
      if (!uses_shm()) {
        EXPECT_GT(heap().freed, freed);
      }
    }
    if (uses_shm()) {
      EXPECT_LT(shared_blocks(), blocks + 10 * 8) << "of 20 regions of a page some are kept for ever";
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

TEST(Withdrawal, WaitsForAReaderInTheMiddle) {
  Gate gate;
  run_ranks(2, [&](Rank &rank) {
    std::vector<float> in(100, static_cast<float>(rank.rank + 1)), out(200);
    Op op = all_gather(rank, in.data(), out.data(), {100, 100});
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 1) {
      Gate::held_here() = true;
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(out[0], 1.0F) << "read after it was taken back";
    } else {
      while (!gate.inside) std::this_thread::sleep_for(milliseconds(1));
      std::atomic<bool> back{false};
      std::thread opener([&] {
        std::this_thread::sleep_for(milliseconds(60));
        EXPECT_FALSE(back) << "given back under a reader";
        gate.open = true;
      });
      rank.fail(TPFSDP_ERR_CANCELLED, "stopped");
      back = true;
      in.assign(100, -1);
      opener.join();
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Withdrawal, LatePeerIsToldWhy) {
  std::atomic<bool> back{false};
  run_ranks(3, [&](Rank &rank) {
    std::vector<float> in(100, static_cast<float>(rank.rank + 1)), out(300, -1);
    Op op = all_gather(rank, in.data(), out.data(), {100, 100, 100});
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_CANCELLED, "stopped by hand");
      in.assign(100, -2);
      back = true;
    } else {
      while (!back) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_REMOTE);
      EXPECT_EQ(rank.call.at_fault, 0);
      EXPECT_EQ(out[0], -1.0F) << "read after it was taken back";
      EXPECT_TRUE(has(rank.call.text, "rank 0 took its memory back") && has(rank.call.text, "stopped by hand"))
          << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Withdrawal, InlineDataNeedsNone) {
  std::atomic<bool> failed{false};
  run_ranks(2, [&](Rank &rank) {
    float in = static_cast<float>(rank.rank + 1), out[2] = {-1, -1};
    Op op = all_gather(rank, &in, out, {1, 1});
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_CANCELLED, "stopped");
      in = -9;
      failed = true;
    } else {
      while (!failed) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(out[0], 1.0F);
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK);
  });
}

TEST(AllReduce, InlineNeedsNoDone) {
  std::atomic<bool> over{false};
  run_ranks(2, [&](Rank &rank) {
    float value = 1;
    Op op = all_reduce(&value, &value, 1);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 0) {
      EXPECT_EQ(rank.complete(1), TPFSDP_OK);
      EXPECT_EQ(rank.wait_read(1, false), TPFSDP_OK) << "rank 1 has not completed, and need not";
      over = true;
    } else {
      while (!over) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.complete(1), TPFSDP_OK);
    }
    EXPECT_EQ(value, 2.0F);
  });
}

TEST(AllReduce, HostBufferHeldUntilDone) {
  Gate gate;
  run_ranks(2, [&](Rank &rank) {
    std::vector<float> data(1000, static_cast<float>(rank.rank + 1));
    Op op = all_reduce(data.data(), data.data(), 1000);
    Gate::held_here() = rank.rank == 1;
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      ASSERT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
      while (!gate.inside) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(rank.wait_read(rank.last, false), TPFSDP_PENDING) << "rank 1 still reads slice 0";
      gate.open = true;
      EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
      data.assign(1000, -1);
    } else {
      ASSERT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
      for (const float value : data) ASSERT_EQ(value, 3.0F);
      EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
    }
  });
}

}  // namespace
}  // namespace host_test
