// SPDX-License-Identifier: Apache-2.0
// The traces of the protocol's section 8 about memory that is used after its gather, and the one about what peers copy,
// each as a schedule: right here, wrong on the mutant of its name.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduled.hpp"

namespace host_test {
namespace {

constexpr int64_t N = 20;
constexpr auto SHARED = TPFSDP_BACKEND_KIND_SHARED_GATHER;
constexpr auto MAPPED = TPFSDP_BACKEND_KIND_MAPPED_GATHER;

void expect_clean(const Scheduled &ranks, const Schedule &schedule) {
  EXPECT_TRUE(schedule.followed()) << schedule.where();
  EXPECT_EQ(ranks.violations(), 0U);
  EXPECT_EQ(ranks.fibers.rescues(), 0) << "a rank slept for ever";
}

/// Made before the schedule begins: `count` regions take sequences 1 to 2 * count.
std::vector<std::vector<CommonMemory>> make(Scheduled &ranks, int world, size_t count) {
  std::vector<std::vector<CommonMemory>> all(static_cast<size_t>(world), std::vector<CommonMemory>(count));
  InTurn in_turn;
  ranks.run(
      [&](Rank &rank) {
        for (CommonMemory &each : all[static_cast<size_t>(rank.rank)])
          EXPECT_EQ(rank.make_common(N * world, &each), TPFSDP_OK) << rank.call.text;
      },
      in_turn);
  return all;
}

void destroy(const std::vector<std::vector<CommonMemory>> &all) {
  for (const auto &of_rank : all)
    for (const CommonMemory &each : of_rank) table().region_destroy(each.region);
}

void write(const Rank &rank, float *data, int value) {
  std::fill(data + rank.rank * N, data + (rank.rank + 1) * N, static_cast<float>(10 * value + rank.rank));
}

bool holds(const Rank &rank, const float *data, int value) {
  for (int r = 0; r < rank.world; ++r)
    for (int64_t i = 0; i < N; ++i)
      if (data[r * N + i] != static_cast<float>(10 * value + r)) return false;
  return true;
}

// Trace 1: units A and C have one slot, B another.
TEST(Gather, SharedFillWaitsForSlowestUser) {
  constexpr int A = 1, B = 2, C = 3;
  Scheduled ranks(2);
  const auto memory = make(ranks, 2, 2);
  Schedule schedule("release_word_ignored");
  ranks.run(
      [&](Rank &rank) {
        const auto &[first, second] =
            std::pair(memory[static_cast<size_t>(rank.rank)][0], memory[static_cast<size_t>(rank.rank)][1]);
        const auto issue = [&](const CommonMemory &slot, int unit) {
          EXPECT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
          write(rank, slot.data, unit);
          EXPECT_EQ(rank.submit(gather_in(slot, SHARED, 2 * N, unit)), TPFSDP_OK) << rank.call.text;
        };
        issue(first, A);
        issue(second, B);
        EXPECT_EQ(rank.complete(5), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, first.readable, A)) << "rank " << rank.rank << " computes on another unit's bytes";
        table().region_release(first.region);
        issue(first, C);
        EXPECT_EQ(rank.complete(6), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, second.readable, B));
        EXPECT_EQ(rank.complete(7), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, first.readable, C));
      },
      schedule);
  expect_clean(ranks, schedule);
  destroy(memory);
}

// Trace 4, with an explicit window.
TEST(Gather, MappedHeldUntilReshard) {
  Scheduled ranks(2);
  const auto memory = make(ranks, 2, 1);
  Schedule schedule("common_gather_done_at_verdict");
  ranks.run(
      [&](Rank &rank) {
        const CommonMemory &shards = memory[static_cast<size_t>(rank.rank)][0];
        write(rank, shards.data, 1);
        ASSERT_EQ(rank.run(gather_in(shards, MAPPED, 2 * N)), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, shards.readable, 1)) << "rank " << rank.rank << " computes on what was written later";
        table().region_release(shards.region);
        EXPECT_EQ(rank.wait_read(3), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.wait_released(shards), TPFSDP_OK) << rank.call.text;
        write(rank, shards.data, 2);
      },
      schedule);
  expect_clean(ranks, schedule);
  destroy(memory);
}

// The same at an end of backward that the unit is kept over: the step says nothing of its users.
TEST(Gather, CastWaitsForRelease) {
  Scheduled ranks(2);
  const auto memory = make(ranks, 2, 1);
  Schedule schedule("common_gather_done_at_verdict");
  ranks.run(
      [&](Rank &rank) {
        const CommonMemory &copies = memory[static_cast<size_t>(rank.rank)][0];
        write(rank, copies.data, 1);
        ASSERT_EQ(rank.run(gather_in(copies, MAPPED, 2 * N)), TPFSDP_OK) << rank.call.text;
        if (rank.rank == 0) table().region_release(copies.region);
        ASSERT_EQ(rank.window(), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(rank.rank == 0 || holds(rank, copies.readable, 1)) << "cast over under its user";
        table().region_release(copies.region);
        ASSERT_EQ(rank.wait_released(copies), TPFSDP_OK) << rank.call.text;
        write(rank, copies.data, 2);
        ASSERT_EQ(rank.run(gather_in(copies, MAPPED, 2 * N)), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, copies.readable, 2));
      },
      schedule);
  expect_clean(ranks, schedule);
  destroy(memory);
}

// Trace 11: private memory. What peers copy is the shard, not the slice of it that lies in the owner's slot.
TEST(Gather, PrivateSourceNotSlot) {
  constexpr int A = 1, C = 3;
  Scheduled ranks(2);
  Schedule schedule("source_is_slot");
  ranks.run(
      [&](Rank &rank) {
        std::vector<float> slot(2 * N, -1);
        tpfsdp_backend_region *regions[2];
        float *shards[2];
        for (int i = 0; i < 2; ++i) {
          void *data = nullptr;
          ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, N * 4, &data, &regions[i]), TPFSDP_OK);
          shards[i] = static_cast<float *>(data);
          std::fill(shards[i], shards[i] + N, static_cast<float>(10 * (i == 0 ? A : C) + rank.rank));
        }
        write(rank, slot.data(), A);
        ASSERT_EQ(rank.run(all_gather(rank, shards[0], slot.data(), {N, N}, regions[0])), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, slot.data(), A)) << "rank " << rank.rank << " copied another unit's bytes";
        write(rank, slot.data(), C);
        ASSERT_EQ(rank.run(all_gather(rank, shards[1], slot.data(), {N, N}, regions[1])), TPFSDP_OK) << rank.call.text;
        EXPECT_TRUE(holds(rank, slot.data(), C));
        EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
        for (auto *region : regions) table().region_destroy(region);
      },
      schedule);
  expect_clean(ranks, schedule);
}

// Trace 8: what one rank has filled and the other has not is not waited for after the reset.
TEST(Reset, ReleasesWhatIsHeld) {
  Scheduled ranks(2);
  const auto memory = make(ranks, 2, 1);
  Schedule schedule("reset_keeps_release_words");
  ranks.run(
      [&](Rank &rank) {
        const CommonMemory &slot = memory[static_cast<size_t>(rank.rank)][0];
        if (rank.rank == 0) {
          write(rank, slot.data, 1);
          EXPECT_EQ(rank.run(gather_in(slot, SHARED, 2 * N)), TPFSDP_ERR_REMOTE);
        } else {
          rank.fail(TPFSDP_ERR_CALLBACK, "the host raised");
        }
        ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
        for (int value = 2; value < 5; ++value) {
          ASSERT_EQ(rank.wait_released(slot), TPFSDP_OK) << rank.call.text;
          write(rank, slot.data, value);
          ASSERT_EQ(rank.run(gather_in(slot, SHARED, 2 * N)), TPFSDP_OK) << rank.call.text;
          EXPECT_TRUE(holds(rank, slot.readable, value));
          table().region_release(slot.region);
        }
      },
      schedule);
  expect_clean(ranks, schedule);
  destroy(memory);
}

// A post is a promise: who gives up after it leaves the region to the others, whole.
void give_up_after_the_second_post(int odd, const std::string &how) {
  const size_t before = heap().live.size();
  {
    Scheduled ranks(2);
    Schedule schedule(how);
    ranks.run(
        [&](Rank &rank) {
          CommonMemory memory;
          if (rank.rank == odd) {
            tpfsdp_backend_peer self{};
            self.struct_size = sizeof self;
            while (self.posted < 2) {
              ASSERT_EQ(rank.make_common(2 * N, &memory, false), TPFSDP_PENDING) << rank.call.text;
              ASSERT_EQ(table().comm_get_peer(rank.comm, rank.rank, &self), TPFSDP_OK);
            }
            rank.fail(TPFSDP_ERR_CANCELLED, "stopped by hand");
          } else {
            ASSERT_EQ(rank.make_common(2 * N, &memory), TPFSDP_OK) << rank.call.text;
            EXPECT_EQ(rank.run(gather_in(memory, SHARED, 2 * N)), TPFSDP_ERR_REMOTE);
          }
          ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
          CommonMemory next;
          ASSERT_EQ(rank.make_common(2 * N, &next), TPFSDP_OK) << rank.call.text;
          if (rank.rank != odd) {
            std::fill(memory.data, memory.data + 2 * N, 5.0F);
            EXPECT_EQ(memory.readable[2 * N - 1], 5.0F);
            EXPECT_EQ(rank.wait_released(memory), TPFSDP_OK) << rank.call.text;
            table().region_destroy(memory.region);
          }
          EXPECT_EQ(next.readable[0], 0.0F);
          table().region_destroy(next.region);
        },
        schedule);
    expect_clean(ranks, schedule);
  }
  EXPECT_EQ(heap().live.size(), before) << "left behind";
}

TEST(Common, GivenUpAfterThePostIsWholeForTheOthers) {
  give_up_after_the_second_post(0, "common_given_up_by_maker");
  give_up_after_the_second_post(1, "common_given_up_by_other");
}

}  // namespace
}  // namespace host_test
