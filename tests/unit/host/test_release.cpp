// SPDX-License-Identifier: Apache-2.0
// Memory of all ranks is written only when the last of them has said that it uses it no more.
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

constexpr int64_t PART = 100;
constexpr auto SHARED = TPFSDP_BACKEND_KIND_SHARED_GATHER;
constexpr auto MAPPED = TPFSDP_BACKEND_KIND_MAPPED_GATHER;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

CommonMemory common_of(Rank &rank) {
  CommonMemory memory;
  EXPECT_EQ(rank.make_common(rank.world * PART, &memory), TPFSDP_OK) << rank.call.text;
  return memory;
}

/// This rank's part.
void write(const Rank &rank, const CommonMemory &memory, int value) {
  for (int64_t i = 0; i < PART; ++i) memory.data[rank.rank * PART + i] = static_cast<float>(10 * value + rank.rank);
}

/// Every rank's part holds that value.
bool holds(const Rank &rank, const CommonMemory &memory, int value) {
  for (int r = 0; r < rank.world; ++r)
    for (int64_t i = 0; i < PART; ++i)
      if (memory.readable[r * PART + i] != static_cast<float>(10 * value + r)) return false;
  return true;
}

Op gather(const Rank &rank, const CommonMemory &memory, tpfsdp_backend_kind kind, int32_t unit = 1) {
  return gather_in(memory, kind, rank.world * PART, unit);
}

TEST(Gather, SharedFillWaitsForSlowestUser) {
  // Two units share the memory. Rank 2 still computes on the first while the others are done with it.
  std::atomic<int> pending{0};
  run_ranks(3, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    EXPECT_EQ(rank.wait_released(slot, false), TPFSDP_OK) << "nobody has used it";
    write(rank, slot, 1);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED, 1)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 1));
    if (rank.rank == 2) {
      while (pending < 2) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_TRUE(holds(rank, slot, 1)) << "filled under its user";
      table().region_release(slot.region);
      ASSERT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    } else {
      table().region_release(slot.region);
      EXPECT_EQ(rank.wait_released(slot, false), TPFSDP_PENDING);
      ++pending;
      ASSERT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    }
    write(rank, slot, 2);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED, 2)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 2));
    table().region_destroy(slot.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Gather, MappedHeldUntilReshard) {
  // Explicit windows over a unit that rank 1 still has whole: rank 0 does not write, whatever its gather's end says.
  std::atomic<bool> pending{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory shards = common_of(rank);
    write(rank, shards, 1);
    ASSERT_EQ(rank.run(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      while (!pending) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_TRUE(holds(rank, shards, 1)) << "written under its user";
    } else {
      EXPECT_TRUE(holds(rank, shards, 1));
      EXPECT_EQ(rank.wait_released(shards), TPFSDP_ERR_STATE) << "this rank itself has not resharded";
      EXPECT_TRUE(has(rank.call.text, "of unit 'layer.0'") && has(rank.call.text, "in use on this rank"))
          << rank.call.text;
    }
    table().region_release(shards.region);
    table().region_release(shards.region);  // twice says nothing more
    if (rank.rank == 0) {
      EXPECT_EQ(rank.wait_read(rank.last, false), TPFSDP_OK) << "there is nothing to read at the gather";
      EXPECT_EQ(rank.wait_released(shards, false), TPFSDP_PENDING);
      pending = true;
    }
    ASSERT_EQ(rank.wait_released(shards), TPFSDP_OK) << rank.call.text;
    write(rank, shards, 2);
    ASSERT_EQ(rank.run(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, shards, 2));
    table().region_destroy(shards.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Gather, CastWaitsForRelease) {
  // Rank 0 has stepped; its low-precision copy is rewritten only when rank 1 computes on it no more. The step does not
  // say so where a unit is kept over it.
  std::atomic<bool> pending{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory copies = common_of(rank);
    write(rank, copies, 1);
    ASSERT_EQ(rank.run(gather(rank, copies, MAPPED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) table().region_release(copies.region);
    ASSERT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      EXPECT_EQ(rank.wait_released(copies, false), TPFSDP_PENDING);
      pending = true;
    } else {
      while (!pending) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_TRUE(holds(rank, copies, 1)) << "cast over under its user";
      table().region_release(copies.region);
    }
    ASSERT_EQ(rank.wait_released(copies), TPFSDP_OK) << rank.call.text;
    write(rank, copies, 2);  // the cast
    ASSERT_EQ(rank.run(gather(rank, copies, MAPPED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, copies, 2));
    table().region_destroy(copies.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Gather, CastSkippedWhenUnchanged) {
  // What is not rewritten is gathered again at once, also while a slow peer computes on it: the gather waits for
  // nobody.
  std::atomic<bool> gathered{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory copies = common_of(rank);
    write(rank, copies, 1);
    ASSERT_EQ(rank.run(gather(rank, copies, MAPPED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) table().region_release(copies.region);
    ASSERT_EQ(rank.submit(gather(rank, copies, MAPPED), false), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      EXPECT_TRUE(holds(rank, copies, 1));
      table().region_release(copies.region);
      EXPECT_EQ(rank.wait_released(copies, false), TPFSDP_PENDING) << "rank 1 has it since the first";
      gathered = true;
    } else {
      while (!gathered) std::this_thread::yield();
      EXPECT_TRUE(holds(rank, copies, 1));
      table().region_release(copies.region);  // of both
    }
    EXPECT_EQ(rank.wait_released(copies), TPFSDP_OK) << rank.call.text;
    table().region_destroy(copies.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Gather, OfAnotherModeOrRegionIsAMismatch) {
  run_ranks(3, [](Rank &rank) {
    const CommonMemory one = common_of(rank), other = common_of(rank);
    EXPECT_EQ(rank.run(gather(rank, one, rank.rank == 2 ? SHARED : MAPPED)), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.call.at_fault, 2);
    EXPECT_TRUE(has(rank.call.text, "shared all-gather") && has(rank.call.text, "mapped all-gather")) << rank.call.text;
    EXPECT_EQ(rank.run(gather(rank, rank.rank == 0 ? other : one, MAPPED)), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.call.at_fault, 0);
    EXPECT_TRUE(has(rank.call.text, "the common region of sequence 1") &&
                has(rank.call.text, "the common region of sequence 3"))
        << rank.call.text;
    // Nobody uses what was not agreed on.
    EXPECT_EQ(rank.wait_released(one, false), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.wait_released(other, false), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.run(gather(rank, one, MAPPED)), TPFSDP_OK) << rank.call.text;
    for (const CommonMemory &memory : {one, other}) table().region_destroy(memory.region);
  });
}

TEST(Gather, ReleasedBeforeItsEndIsNotUsed) {
  // A prefetch that is not needed: posted, released, completed with the next.
  run_ranks(2, [](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    write(rank, slot, 1);
    ASSERT_EQ(rank.submit(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    table().region_release(slot.region);
    EXPECT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    write(rank, slot, 2);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 2));
    table().region_destroy(slot.region);
  });
}

TEST(Fail, PeerWaitsForRelease) {
  // Rank 1 fails with the memory in use, and its host does not reshard: rank 0 is told instead of waiting.
  std::atomic<bool> told{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      rank.fail(TPFSDP_ERR_CALLBACK, "the host raised");
      while (!told) std::this_thread::yield();
      table().region_release(slot.region);
    } else {
      table().region_release(slot.region);
      EXPECT_EQ(rank.wait_released(slot), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "the host raised")) << rank.call.text;
      told = true;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    write(rank, slot, 2);
    EXPECT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 2));
    table().region_destroy(slot.region);
  });
}

TEST(Fail, MemoryStaysHeldUntilReshard) {
  // Rank 1 fails, and goes on computing on what it has. Rank 0 does not write under it until it reshards.
  std::atomic<bool> pending{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    write(rank, slot, 1);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      rank.fail(TPFSDP_ERR_CALLBACK, "the host raised");
      while (!pending) std::this_thread::yield();
      EXPECT_TRUE(holds(rank, slot, 1));
      table().region_release(slot.region);
    } else {
      table().region_release(slot.region);
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE) << "consumes the failure";
      EXPECT_EQ(rank.wait_released(slot, false), TPFSDP_PENDING);
      pending = true;
    }
    EXPECT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    table().region_destroy(slot.region);
  });
}

TEST(Fail, GivenUpGatherNeedsAReset) {
  // Rank 1 has posted and does not know the verdict: rank 0 uses the memory.
  std::atomic<bool> refused{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    write(rank, slot, 1);
    ASSERT_EQ(rank.submit(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      rank.fail(TPFSDP_ERR_CANCELLED, "stopped by hand");
      table().region_release(slot.region);
      EXPECT_EQ(rank.wait_released(slot), TPFSDP_ERR_STATE);
      EXPECT_TRUE(has(rank.call.text, "peers may use it") && has(rank.call.text, "reset")) << rank.call.text;
      refused = true;
    } else {
      EXPECT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
      while (!refused) std::this_thread::yield();
      EXPECT_TRUE(holds(rank, slot, 1));
      table().region_release(slot.region);
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    write(rank, slot, 2);
    EXPECT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 2));
    table().region_destroy(slot.region);
  });
}

TEST(Reset, IsNoReleaseOfWhatIsInUse) {
  // Rank 1 has the memory for a tree that the failure is not of. Rank 0 writes there when rank 1 has released it.
  std::atomic<bool> pending{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    write(rank, slot, 1);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) table().region_release(slot.region);
    for (int round = 0; round < 2; ++round) {
      rank.fail(TPFSDP_ERR_CALLBACK, "another tree's");
      ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    }
    if (rank.rank == 0) {
      EXPECT_EQ(rank.wait_released(slot, false), TPFSDP_PENDING);
      pending = true;
    } else {
      while (!pending) std::this_thread::yield();
      EXPECT_EQ(rank.wait_released(slot), TPFSDP_ERR_STATE) << "this rank itself uses it";
      EXPECT_TRUE(holds(rank, slot, 1));
      table().region_release(slot.region);
    }
    ASSERT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
    write(rank, slot, 2);
    EXPECT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    EXPECT_TRUE(holds(rank, slot, 2));
    table().region_destroy(slot.region);
  });
}

TEST(Reset, ReleasesWhatIsHeld) {
  // Also a gather that only some have posted: after the reset all is free, and stays in step.
  run_ranks(3, [](Rank &rank) {
    const CommonMemory slot = common_of(rank), shards = common_of(rank);
    for (int round = 0; round < 10; ++round) {
      ASSERT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
      write(rank, slot, round);
      ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
      EXPECT_TRUE(holds(rank, slot, round));
      ASSERT_EQ(rank.run(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
      if (rank.rank != round % 3) {
        table().region_release(slot.region);
        ASSERT_EQ(rank.submit(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
      } else {
        rank.fail(TPFSDP_ERR_CALLBACK, "the host raised");  // it has filled nothing; its peers have
        table().region_release(slot.region);
      }
      table().region_release(shards.region);
      ASSERT_EQ(rank.reset(round), TPFSDP_OK) << rank.call.text;
      for (const CommonMemory &memory : {slot, shards}) {
        ASSERT_EQ(rank.wait_released(memory), TPFSDP_OK) << rank.call.text;
        table().region_release(memory.region);  // a late unpin says nothing more
      }
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    }
    for (const CommonMemory &memory : {slot, shards}) table().region_destroy(memory.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Window, WithMappedShardsWaitsForTheirUsersToo) {
  // Rank 1 keeps a unit over its end of backward. The step is agreed on, and rank 0 writes when rank 1 has resharded.
  std::atomic<bool> pending{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory shards = common_of(rank);
    write(rank, shards, 0);
    ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(rank.run(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
      EXPECT_TRUE(holds(rank, shards, step));
      if (rank.rank == 0) table().region_release(shards.region);
      ASSERT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
      if (rank.rank == 0) {
        EXPECT_EQ(rank.wait_released(shards, false), TPFSDP_PENDING);
        pending = true;
      } else {
        while (!pending.exchange(false)) std::this_thread::yield();
        EXPECT_TRUE(holds(rank, shards, step)) << "written under its user";
        table().region_release(shards.region);
      }
      ASSERT_EQ(rank.wait_released(shards), TPFSDP_OK) << rank.call.text;
      write(rank, shards, step + 1);
    }
    table().region_destroy(shards.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Window, InterruptOfAWaitForUsersPostsNothing) {
  std::atomic<bool> interrupted{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory shards = common_of(rank);
    ASSERT_EQ(rank.run(gather(rank, shards, MAPPED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      table().region_release(shards.region);
      rank.call.interrupted = true;
      EXPECT_EQ(rank.wait_released(shards), TPFSDP_ERR_CANCELLED);
      EXPECT_TRUE(has(rank.call.text, "waiting for the users of what was gathered at sequence 3 of unit 'layer.0'") &&
                  has(rank.call.text, "missing: rank 1") && has(rank.call.text, "call it again"))
          << rank.call.text;
      rank.call.interrupted = false;
      interrupted = true;
    } else {
      while (!interrupted) std::this_thread::yield();
      table().region_release(shards.region);
    }
    EXPECT_EQ(rank.wait_released(shards), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 4);
    table().region_destroy(shards.region);
  });
}

TEST(Death, WithMemoryInUseIsPeerLost) {
  for (const bool releases : {false, true}) {
    std::atomic<bool> gone{false};
    std::atomic<int> told{0};
    run_ranks(3, [&](Rank &rank) {
      const CommonMemory slot = common_of(rank);
      write(rank, slot, 1);
      ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
      if (rank.rank == 1) {
        if (releases) table().region_destroy(slot.region);
        rank.leave();
        gone = true;
        while (told < 2) std::this_thread::yield();
        if (!releases) table().region_destroy(slot.region);
        return;
      }
      while (!gone) std::this_thread::yield();
      EXPECT_TRUE(holds(rank, slot, 1)) << "its part stays";
      table().region_release(slot.region);
      const tpfsdp_status status = rank.wait_released(slot);
      EXPECT_EQ(status, releases ? TPFSDP_OK : TPFSDP_ERR_PEER_LOST) << rank.call.text;
      if (!releases) {
        EXPECT_EQ(rank.call.at_fault, 1);
      }
      // Neither of the two is satisfied by the other's end.
      for (++told; told < 2;) std::this_thread::yield();
      table().region_destroy(slot.region);
    });
  }
}

TEST(Clock, WaitForUsersNamesWhoIsMissing) {
  Options options;
  options.arrival_ms = 200;
  std::atomic<bool> over{false};
  run_ranks(
      3,
      [&](Rank &rank) {
        const CommonMemory slot = common_of(rank);
        ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
        if (rank.rank != 0) {
          while (!over) std::this_thread::yield();
        } else {
          table().region_release(slot.region);
          EXPECT_EQ(rank.wait_released(slot), TPFSDP_ERR_TIMEOUT);
          EXPECT_TRUE(has(rank.call.text, "waiting for the users") && has(rank.call.text, "rank 1") &&
                      has(rank.call.text, "rank 2"))
              << rank.call.text;
          over = true;
        }
        table().region_destroy(slot.region);
      },
      options);
}

TEST(Clock, TwoWaitsForUsersInTurnEachHaveTheirOwn) {
  // Polled alternately, neither starts the other's clock afresh.
  Options options;
  options.arrival_ms = 300;
  std::atomic<bool> over{false};
  run_ranks(
      2,
      [&](Rank &rank) {
        const CommonMemory slots[2] = {common_of(rank), common_of(rank)};
        for (const CommonMemory &slot : slots) ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK);
        if (rank.rank == 1) {
          while (!over) std::this_thread::yield();
        } else {
          for (const CommonMemory &slot : slots) table().region_release(slot.region);
          tpfsdp_status status = TPFSDP_PENDING;
          const auto begin = std::chrono::steady_clock::now();
          for (int i = 0; status == TPFSDP_PENDING; ++i) {
            status = rank.wait_released(slots[i % 2], false);
            std::this_thread::sleep_for(milliseconds(1));
            ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "waits for ever";
          }
          EXPECT_EQ(status, TPFSDP_ERR_TIMEOUT) << rank.call.text;
          over = true;
        }
        for (const CommonMemory &slot : slots) table().region_destroy(slot.region);
      },
      options);
}

TEST(Death, AbortWakesWhoWaitsForUsers) {
  std::atomic<bool> waits{false}, told{false};
  run_ranks(2, [&](Rank &rank) {
    const CommonMemory slot = common_of(rank);
    ASSERT_EQ(rank.run(gather(rank, slot, SHARED)), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 0) {
      table().region_release(slot.region);
      waits = true;
      EXPECT_EQ(rank.wait_released(slot), TPFSDP_ERR_ABORTED);
      EXPECT_TRUE(has(rank.call.text, "enough")) << rank.call.text;
      told = true;
    } else {
      while (!waits) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      table().comm_abort(rank.comm, TPFSDP_ERR_ABORTED, "enough");
      while (!told) std::this_thread::yield();
      EXPECT_EQ(slot.readable[0], 0.0F) << "abort takes nothing away";
    }
    table().region_destroy(slot.region);
  });
}

}  // namespace
}  // namespace host_test
