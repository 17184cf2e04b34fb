// SPDX-License-Identifier: Apache-2.0
// Common regions: made by all or by none, one memory at two addresses, and nobody's alone.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "allocations.hpp"
#include "backends/host/comm.hpp"
#include "memory.hpp"
#include "ranks.hpp"

namespace host_test {
namespace {

constexpr int64_t PART = 1000;
constexpr auto SHARED = TPFSDP_BACKEND_KIND_SHARED_GATHER;
constexpr auto MAPPED = TPFSDP_BACKEND_KIND_MAPPED_GATHER;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

/// The kernel refuses to write there.
bool is_read_only(const float *data) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  const ssize_t result = read(ends[0], const_cast<float *>(data), 1);
  close(ends[0]);
  close(ends[1]);
  return result < 0;
}

/// A new region, used once, says so.
void expect_usable(Rank &rank) {
  CommonMemory memory;
  ASSERT_EQ(rank.make_common(rank.world * PART, &memory), TPFSDP_OK) << rank.call.text;
  memory.data[rank.rank * PART] = static_cast<float>(rank.rank + 1);
  ASSERT_EQ(rank.run(gather_in(memory, SHARED, rank.world * PART)), TPFSDP_OK) << rank.call.text;
  for (int r = 0; r < rank.world; ++r) EXPECT_EQ(memory.readable[r * PART], static_cast<float>(r + 1));
  table().region_destroy(memory.region);
}

TEST(Common, IsOneMemoryAtTwoAddresses) {
  const auto body = [](Rank &rank) {
    const int64_t all = rank.world * PART;
    CommonMemory memory;
    ASSERT_EQ(rank.make_common(all, &memory), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data) % 4096, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.readable) % 4096, 0U);
    EXPECT_EQ(uses_shm(), memory.data != memory.readable);
    if (uses_shm()) {
      EXPECT_TRUE(is_read_only(memory.readable));
    }
    for (int64_t i = 0; i < PART; ++i) {
      ASSERT_EQ(memory.readable[rank.rank * PART + i], 0.0F);
      memory.data[rank.rank * PART + i] = static_cast<float>(rank.rank * PART + i);
    }
    ASSERT_EQ(rank.run(gather_in(memory, SHARED, all)), TPFSDP_OK) << rank.call.text;
    for (int64_t i = 0; i < all; ++i) ASSERT_EQ(memory.readable[i], static_cast<float>(i));
    table().region_release(memory.region);
    EXPECT_EQ(rank.wait_released(memory), TPFSDP_OK) << rank.call.text;
    table().region_destroy(memory.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  };
  for (const int world : {1, 2, 5, 40}) run_ranks(world, body);
}

TEST(Common, FormThatNeverWaits) {
  run_ranks(3, [](Rank &rank) {
    CommonMemory memory;
    tpfsdp_status status = TPFSDP_PENDING;
    while ((status = rank.make_common(PART, &memory, false)) == TPFSDP_PENDING) std::this_thread::yield();
    ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(memory.readable[PART - 1], 0.0F);
    table().region_destroy(memory.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Common, InterruptedGoesOn) {
  std::atomic<bool> interrupted{false};
  run_ranks(2, [&](Rank &rank) {
    CommonMemory memory;
    if (rank.rank == 0) {
      rank.call.interrupted = true;
      EXPECT_EQ(rank.make_common(PART, &memory), TPFSDP_ERR_CANCELLED);
      EXPECT_EQ(rank.make_common(PART + 1, &memory), TPFSDP_ERR_STATE) << "another one in between";
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_STATE) << "a collective in between";
      EXPECT_TRUE(has(rank.call.text, "half made")) << rank.call.text;
      rank.call.interrupted = false;
      interrupted = true;
    } else {
      while (!interrupted) std::this_thread::yield();
    }
    ASSERT_EQ(rank.make_common(PART, &memory), TPFSDP_OK) << rank.call.text;
    table().region_destroy(memory.region);
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 3) << "two sequences, whatever the interrupt";
  });
}

TEST(Common, UnequalSizesAreTold) {
  const MemoryCheck nothing_left;
  run_ranks(3, [](Rank &rank) {
    CommonMemory memory;
    EXPECT_EQ(rank.make_common(rank.rank == 1 ? 64 : PART, &memory), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_TRUE(has(rank.call.text, "common region u8") && has(rank.call.text, "4000 elements") &&
                has(rank.call.text, "256 elements"))
        << rank.call.text;
    EXPECT_EQ(memory.region, nullptr);
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    expect_usable(rank);
  });
}

TEST(Common, APeerInAnotherCollectiveIsTold) {
  const MemoryCheck nothing_left;
  run_ranks(2, [](Rank &rank) {
    CommonMemory memory;
    EXPECT_EQ(rank.rank == 1 ? rank.barrier() : rank.make_common(PART, &memory), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    expect_usable(rank);
  });
}

TEST(Common, FailureOfAPeerIsTold) {
  const MemoryCheck nothing_left;
  run_ranks(3, [](Rank &rank) {
    CommonMemory memory;
    if (rank.rank == 2) {
      rank.fail(TPFSDP_ERR_OUT_OF_MEMORY, "no room for the masters");
    } else {
      EXPECT_EQ(rank.make_common(PART, &memory), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "no room for the masters") && has(rank.call.text, "common region"))
          << rank.call.text;
    }
    expect_usable(rank);
  });
}

TEST(Common, GivenUpHalfWayLeavesNothing) {
  for (const int odd : {0, 1}) {
    const MemoryCheck nothing_left;
    std::atomic<bool> given_up{false};
    run_ranks(2, [&](Rank &rank) {
      CommonMemory memory;
      if (rank.rank == odd) {
        EXPECT_EQ(rank.make_common(PART, &memory, false), TPFSDP_PENDING);
        rank.fail(TPFSDP_ERR_CANCELLED, "stopped by hand");
        given_up = true;
      } else {
        while (!given_up) std::this_thread::yield();
        EXPECT_EQ(rank.make_common(PART, &memory), TPFSDP_ERR_REMOTE) << odd;
        EXPECT_TRUE(has(rank.call.text, "stopped by hand")) << rank.call.text;
      }
      expect_usable(rank);
    });
  }
}

/// Whichever allocation of whichever rank fails, in the backend or in the memory itself.
TEST(Common, EveryAllocationThatFailsIsToldAndLeavesNothing) {
  for (const int odd : {0, 1}) {
    int failures = 0;
    for (bool failed = true; failed; ++failures) {
      ASSERT_LT(failures, 100);
      SCOPED_TRACE("allocation " + std::to_string(failures) + " of rank " + std::to_string(odd));
      failed = false;
      std::atomic<int> made{0};
      const MemoryCheck nothing_left;
      hooks().allocation_fails = allocation_fails;
      run_ranks(3, [&](Rank &rank) {
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        const int64_t before = held_bytes();
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        CommonMemory memory;
        if (rank.rank == odd) fail_allocation_after(failures);
        const tpfsdp_status status = rank.make_common(3 * PART, &memory);
        if (rank.rank == odd) failed = !stop_failing();
        if (rank.rank == odd && status != TPFSDP_OK) {
          EXPECT_EQ(status, TPFSDP_ERR_OUT_OF_MEMORY) << rank.call.text;
          rank.fail(status, rank.call.text.c_str());
        }
        if (rank.rank != odd && status != TPFSDP_OK) {
          EXPECT_EQ(status, TPFSDP_ERR_REMOTE);
          EXPECT_TRUE(has(rank.call.text, "OUT_OF_MEMORY")) << rank.call.text;
        }
        if (status == TPFSDP_OK) ++made;
        if (status == TPFSDP_OK) table().region_destroy(memory.region);
        EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
        expect_usable(rank);
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(held_bytes(), before) << "left behind while the comm lives";
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      });
      hooks() = {};
      EXPECT_EQ(made, failed ? 0 : 3);
    }
    EXPECT_GT(failures, 2) << "there were allocations to fail";
  }
}

TEST(Common, AMakingThatFailedIsTriedAgain) {
  // Nothing was told, so that the others only waited.
  for (const int odd : {0, 1}) {
    for (int n = 0; n < 6; ++n) {
      const MemoryCheck nothing_left;
      hooks().allocation_fails = allocation_fails;
      run_ranks(2, [&](Rank &rank) {
        CommonMemory memory;
        if (rank.rank == odd) fail_allocation_after(n);
        tpfsdp_status status = rank.make_common(2 * PART, &memory);
        if (rank.rank == odd) stop_failing();
        if (rank.rank == odd && status == TPFSDP_ERR_OUT_OF_MEMORY) status = rank.make_common(2 * PART, &memory);
        ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(memory.readable[2 * PART - 1], 0.0F);
        EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.last, 3);
        table().region_destroy(memory.region);
      });
      hooks() = {};
    }
  }
}

TEST(Common, DestroyedUnderAGatherItIsLeft) {
  const MemoryCheck nothing_left;
  run_ranks(2, [](Rank &rank) {
    CommonMemory memory;
    ASSERT_EQ(rank.make_common(2 * PART, &memory), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(rank.submit(gather_in(memory, SHARED, 2 * PART)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) table().region_destroy(memory.region);
    EXPECT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      EXPECT_EQ(memory.readable[0], 0.0F);
      table().region_release(memory.region);
      EXPECT_EQ(rank.wait_released(memory), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) table().region_destroy(memory.region);
    expect_usable(rank);
  });
}

/// Of this thread's rank: the limit on files holds for shared memory; of threads, the library has no more to lend.
class NoMemory {
 public:
  NoMemory() {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit little{1 << 20, before_.rlim_max};
    if (uses_shm()) {
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
    }
    holds() = true;
  }
  ~NoMemory() {
    setrlimit(RLIMIT_FSIZE, &before_);
    holds() = false;
  }
  static bool &holds() {
    static thread_local bool holds_here = false;
    return holds_here;
  }

 private:
  rlimit before_{};
};

TEST(Common, NoMemoryIsToldWithWhatWasWanted) {
  const MemoryCheck nothing_left;
  hooks().allocation_fails = [] { return NoMemory::holds(); };
  run_ranks(3, [](Rank &rank) {
    CommonMemory memory;
    if (rank.rank == 0) {
      EXPECT_EQ(rank.make_common(int64_t{1} << 60, &memory), TPFSDP_ERR_OUT_OF_MEMORY) << "of any machine";
      const NoMemory none;
      EXPECT_EQ(rank.make_common(1 << 20, &memory), TPFSDP_ERR_OUT_OF_MEMORY);
      EXPECT_TRUE(has(rank.call.text, "4198400 bytes")) << rank.call.text;
      rank.fail(TPFSDP_ERR_OUT_OF_MEMORY, rank.call.text.c_str());
    } else {
      EXPECT_EQ(rank.make_common(1 << 20, &memory), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "OUT_OF_MEMORY") && has(rank.call.text, "4198400 bytes")) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    expect_usable(rank);
  });
  hooks() = {};
}

TEST(Common, BelongsToWhoHasIt) {
  for (const int stays : {0, 1, 2}) {
    const MemoryCheck nothing_left;
    std::atomic<int> left{0};
    run_ranks(3, [&](Rank &rank) {
      CommonMemory memory;
      ASSERT_EQ(rank.make_common(3 * PART, &memory), TPFSDP_OK) << rank.call.text;
      memory.data[rank.rank * PART] = static_cast<float>(rank.rank + 1);
      ASSERT_EQ(rank.run(gather_in(memory, SHARED, 3 * PART)), TPFSDP_OK) << rank.call.text;
      if (rank.rank != stays) {
        // One says goodbye, the other does not.
        if (rank.rank == (stays + 1) % 3) table().region_release(memory.region);
        table().region_destroy(memory.region);
        rank.leave();
        ++left;
        return;
      }
      while (left < 2) std::this_thread::yield();
      for (int r = 0; r < 3; ++r) EXPECT_EQ(memory.readable[r * PART], static_cast<float>(r + 1)) << "taken away";
      memory.data[5] = 7;
      EXPECT_EQ(memory.readable[5], 7.0F);
      table().region_release(memory.region);
      EXPECT_EQ(rank.wait_released(memory), TPFSDP_OK) << "who has left uses nothing: " << rank.call.text;
      table().region_destroy(memory.region);
    });
  }
}

TEST(Common, OutlivesItsComm) {
  const MemoryCheck nothing_left;
  run_ranks(2, [](Rank &rank) {
    CommonMemory memory;
    ASSERT_EQ(rank.make_common(2 * PART, &memory), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
    rank.leave();
    memory.data[rank.rank * PART] = 1;
    EXPECT_EQ(memory.readable[rank.rank * PART], 1.0F);
    table().region_release(memory.region);
    table().region_destroy(memory.region);
  });
}

TEST(Common, MemoryComesBackWithoutTheMaker) {
  // Made and destroyed many times, rank 0 always first: what it held goes when the last one leaves, not later.
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.barrier(), TPFSDP_OK);
    const int64_t before = held_bytes();
    ASSERT_EQ(rank.barrier(), TPFSDP_OK);
    for (int round = 0; round < 10; ++round) {
      CommonMemory memory;
      ASSERT_EQ(rank.make_common(100 * PART, &memory), TPFSDP_OK) << rank.call.text;
      if (rank.rank == 0) table().region_destroy(memory.region);
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      if (rank.rank == 1) table().region_destroy(memory.region);
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(held_bytes(), before) << "round " << round;
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    }
  });
}

TEST(Common, WrongUseIsRefusedAndNothingIsPosted) {
  Store store;
  run_ranks(2, [&](Rank &rank) {
    Rank second(rank.rank, 2, &store);
    Options options;
    options.name = "replicas";
    ASSERT_EQ(second.join(options), TPFSDP_OK) << second.call.text;
    CommonMemory memory, foreign, own;
    ASSERT_EQ(rank.make_common(PART, &memory), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(second.make_common(PART, &foreign), TPFSDP_OK) << second.call.text;
    void *data = nullptr;
    ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, PART * 4, &data, &own.region), TPFSDP_OK);
    const auto refused = [&](const tpfsdp_backend_op &op, const char *why) {
      EXPECT_EQ(rank.submit(op), TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_TRUE(has(rank.call.text, why)) << rank.call.text;
    };
    refused(gather_in({}, SHARED, PART), "shared all-gather on comm 'world': no common region");
    refused(gather_in(own, MAPPED, PART), "mapped all-gather on comm 'world': no common region");
    refused(gather_in(foreign, MAPPED, PART), "another comm's");
    refused(gather_in(memory, SHARED, PART + 1), "4004 bytes are more than its region has, 4000");
    refused(gather_in(memory, SHARED, -1), "a negative count");
    std::vector<float> out(2 * PART);
    refused(all_gather(rank, memory.data, out.data(), {64, 64}, memory.region), "shared and mapped gathers only");
    EXPECT_EQ(rank.wait_released(own), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.wait_released(foreign), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.make_common(-1, &own), TPFSDP_ERR_INVALID_ARGUMENT);
    table().region_release(own.region);  // nothing to say
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 3) << "something was posted";
    for (const CommonMemory &each : {memory, foreign, own}) table().region_destroy(each.region);
  });
}

TEST(Common, ProtectedWhereRanksHaveTheirOwnAddress) {
  run_ranks(2, [](Rank &rank) {
    CommonMemory memory;
    ASSERT_EQ(rank.make_common(2 * PART, &memory), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(table().region_protect(rank.call.handle(), memory.region, 1), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(is_read_only(memory.data + rank.rank * PART), uses_shm());
    ASSERT_EQ(rank.run(gather_in(memory, MAPPED, 2 * PART)), TPFSDP_OK) << "words are beside it: " << rank.call.text;
    table().region_release(memory.region);
    ASSERT_EQ(rank.wait_released(memory), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(table().region_protect(rank.call.handle(), memory.region, 0), TPFSDP_OK) << rank.call.text;
    memory.data[rank.rank * PART] = 1;
    ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    table().region_destroy(memory.region);
  });
}

}  // namespace
}  // namespace host_test
