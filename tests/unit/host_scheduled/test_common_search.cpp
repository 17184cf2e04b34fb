// SPDX-License-Identifier: Apache-2.0
// Small programs over memory of all ranks, under many schedules and with a death at every point: nobody computes on
// bytes that somebody is writing, ranks apply the same steps, nobody sleeps for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduled.hpp"

namespace host_test {
namespace {

constexpr int STEPS = 2;
constexpr int64_t N = 20;
constexpr auto SHARED = TPFSDP_BACKEND_KIND_SHARED_GATHER;
constexpr auto MAPPED = TPFSDP_BACKEND_KIND_MAPPED_GATHER;

/// What all parts hold when they are gathered: unit 0 or 1 of a step.
float value_of(int step, int unit, int rank) { return static_cast<float>(100 * step + 10 * unit + rank); }

/// Two units in one slot, or one mapped unit that an odd rank keeps over the step. One rank fails at its n-th chance,
/// all reset and try again. A rank that is lost, or loses a peer, ends.
class Program {
 public:
  Program(int world, tpfsdp_backend_kind kind, int failing, int chance)
      : kind_(kind),
        failing_(failing),
        chance_(chance),
        steps(static_cast<size_t>(world)),
        ends(static_cast<size_t>(world), TPFSDP_PENDING) {}

  void operator()(Rank &rank) {
    chances_ = rank.rank == failing_ ? 0 : chances_;
    CommonMemory memory;
    int &step = steps[static_cast<size_t>(rank.rank)];
    tpfsdp_status &end = ends[static_cast<size_t>(rank.rank)];
    end = rank.make_common(N * rank.world, &memory);
    if (end == TPFSDP_OK && kind_ == MAPPED) write(rank, memory, 0, 0);
    while (end == TPFSDP_OK && step < STEPS) {
      end = once(rank, memory, step);
      if (end == TPFSDP_OK)
        ++step;
      else if (end == TPFSDP_ERR_REMOTE || end == TPFSDP_ERR_CALLBACK)
        end = give_back_and_reset(rank, memory, step);
    }
    if (end == TPFSDP_OK) end = give_back_and_reset(rank, memory, step);
    if (memory.region != nullptr) table().region_destroy(memory.region);
  }

 private:
  bool fails(Rank &rank) {
    if (rank.rank != failing_ || chances_++ != chance_) return false;
    rank.fail(TPFSDP_ERR_CALLBACK, "injected");
    return true;
  }
  static tpfsdp_status give_back_and_reset(Rank &rank, const CommonMemory &memory, int step) {
    table().region_release(memory.region);
    return rank.reset(step);
  }
  static void write(const Rank &rank, const CommonMemory &memory, int step, int unit) {
    std::fill(memory.data + rank.rank * N, memory.data + (rank.rank + 1) * N, value_of(step, unit, rank.rank));
  }
  static void check(const Rank &rank, const CommonMemory &memory, int step, int unit) {
    for (int r = 0; r < rank.world; ++r)
      for (int64_t i = 0; i < N; ++i)
        EXPECT_EQ(memory.readable[r * N + i], value_of(step, unit, r)) << "rank " << rank.rank << ", step " << step;
  }
  tpfsdp_status once(Rank &rank, const CommonMemory &memory, int step) {
    tpfsdp_status status = TPFSDP_OK;
    const int units = kind_ == SHARED ? 2 : 1;
    for (int unit = 0; unit < units; ++unit) {
      if (fails(rank)) return TPFSDP_ERR_CALLBACK;
      if (kind_ == SHARED) {
        if ((status = rank.wait_released(memory)) != TPFSDP_OK) return status;
        write(rank, memory, step, unit);
      }
      if (fails(rank)) return TPFSDP_ERR_CALLBACK;
      if ((status = rank.submit(gather_in(memory, kind_, N * rank.world, unit))) != TPFSDP_OK) return status;
      if (fails(rank)) return TPFSDP_ERR_CALLBACK;
      if ((status = rank.complete(rank.last)) != TPFSDP_OK) return status;
      check(rank, memory, step, unit);
      if (kind_ == SHARED || rank.rank % 2 == 0) table().region_release(memory.region);
    }
    if (fails(rank)) return TPFSDP_ERR_CALLBACK;
    if ((status = rank.window()) != TPFSDP_OK) return status;
    if (kind_ == SHARED) return status;
    if (rank.rank % 2 != 0) {
      check(rank, memory, step, 0);
      table().region_release(memory.region);
    }
    // A window that is open stays so: whoever fails from here on is met in the next step.
    if ((status = rank.wait_released(memory)) != TPFSDP_OK) return status;
    write(rank, memory, step + 1, 0);
    return status;
  }

  tpfsdp_backend_kind kind_;
  int failing_;
  int chance_;
  int chances_ = 0;

 public:
  std::vector<int> steps;
  std::vector<tpfsdp_status> ends;
};

void expect_clean(const Scheduled &ranks, const Program &program, const std::string &how) {
  for (const tpfsdp_status end : program.ends) EXPECT_EQ(end, TPFSDP_OK) << how;
  EXPECT_EQ(ranks.violations(), 0U) << how;
  EXPECT_EQ(ranks.fibers.rescues(), 0) << "a rank slept for ever: " << how;
}

TEST(Search, DepthFirstInCommonMemory) {
  constexpr int LIMIT = 150;
  int runs = 0;
  for (const tpfsdp_backend_kind kind : {SHARED, MAPPED})
    for (int chance = -1; chance < 4; ++chance) {
      DepthFirst strategy(2);
      int tried = 0;
      do {
        Scheduled ranks(2);
        Program program(2, kind, 1, chance);
        ranks.run(std::ref(program), strategy);
        expect_clean(ranks, program, "choices " + strategy.choices());
        ++runs;
      } while (strategy.more() && ++tried < LIMIT && !HasFailure());
    }
  RecordProperty("runs", runs);
}

TEST(Search, PctInCommonMemory) {
  constexpr uint64_t FIRST_SEED = 20240701;
  for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 200 && !HasFailure(); ++seed) {
    const int world = 2 + static_cast<int>(seed % 3);
    Scheduled ranks(world);
    Program program(world, seed % 2 == 0 ? SHARED : MAPPED, static_cast<int>(seed / 6 % 2),
                    static_cast<int>(seed / 12 % 9) - 1);
    Pct strategy(seed, world, 4, 600L * world);
    ranks.run(std::ref(program), strategy);
    expect_clean(ranks, program, "seed " + std::to_string(seed));
  }
}

TEST(Death, AtEveryPointWithMemoryInUse) {
  for (const tpfsdp_backend_kind kind : {SHARED, MAPPED}) {
    int64_t points = 1, lost = 0;
    for (int64_t n = 0; n < points && !HasFailure(); ++n) {
      Scheduled ranks(3);
      if (n > 0) ranks.kill_at(1, n);
      Program program(3, kind, -1, -1);
      InTurn strategy;
      ranks.run(std::ref(program), strategy);
      if (n == 0) points = ranks.fibers.points(1);
      for (const int r : {0, 2}) {
        const tpfsdp_status end = program.ends[static_cast<size_t>(r)];
        EXPECT_TRUE(end == TPFSDP_OK || end == TPFSDP_ERR_PEER_LOST)
            << ranks.rank(r).call.text << " dead at point " << n;
        lost += end == TPFSDP_ERR_PEER_LOST;
      }
      EXPECT_EQ(program.steps[0], program.steps[2]) << "one survivor stepped, dead at point " << n;
      EXPECT_EQ(ranks.violations(), 0U);
    }
    EXPECT_GT(points, 50);
    EXPECT_GT(lost, points);
  }
}

TEST(Steady, NoSystemCallInCommonMemoryWhileNobodySleeps) {
  constexpr int64_t ROUNDS = 20;
  Scheduled ranks(3);
  CommonMemory slots[3], shards[3];
  InTurn in_turn;
  ranks.run(
      [&](Rank &rank) {
        ASSERT_EQ(rank.make_common(3 * N, &slots[rank.rank]), TPFSDP_OK);
        ASSERT_EQ(rank.make_common(3 * N, &shards[rank.rank]), TPFSDP_OK);
      },
      in_turn);
  const auto program = [&](Rank &rank, bool may_wait) {
    const CommonMemory &slot = slots[rank.rank], &mapped = shards[rank.rank];
    const auto until_over = [&](const auto &call) {
      tpfsdp_status status = TPFSDP_PENDING;
      while ((status = call()) == TPFSDP_PENDING) {
      }
      ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
    };
    for (int64_t round = 0; round < ROUNDS; ++round) {
      until_over([&] { return rank.wait_released(slot, may_wait); });
      until_over([&] { return rank.submit(gather_in(slot, SHARED, 3 * N), may_wait); });
      until_over([&] { return rank.submit(gather_in(mapped, MAPPED, 3 * N), may_wait); });
      until_over([&] { return rank.complete(rank.last, may_wait); });
      table().region_release(slot.region);
      table().region_release(mapped.region);
      until_over([&] { return rank.wait_released(mapped, may_wait); });
    }
  };
  const int64_t before = ranks.fibers.system_calls();
  ranks.run([&](Rank &rank) { program(rank, false); }, in_turn);
  EXPECT_EQ(ranks.fibers.system_calls(), before);
  Straight straight;
  ranks.run([&](Rank &rank) { program(rank, true); }, straight);
  const int64_t calls = ranks.fibers.system_calls() - before;
  EXPECT_GT(calls, 0) << "ranks that wait sleep: the count counts";
  // Of a rank and round: posts, done counts and releases of two gathers ring at most; records and two releases are
  // slept for at most.
  EXPECT_LE(calls, 3 * ROUNDS * (6 + 4));
  for (const auto &each : {slots, shards})
    for (int r = 0; r < 3; ++r) table().region_destroy(each[r].region);
}

}  // namespace
}  // namespace host_test
