// SPDX-License-Identifier: Apache-2.0
// Small programs under many schedules: every way within a bound on preemptions, random priorities, a death at every
// point. Whatever happens, ranks apply the same steps, read whole versions, and nobody sleeps for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "scheduled.hpp"

namespace host_test {
namespace {

constexpr int STEPS = 2;
constexpr int64_t N = 20;

/// Gathers, reduces, agrees, writes; one rank fails at its n-th chance, all reset and try again.
class Program {
 public:
  Program(int world, int failing, int chance) : failing_(failing), chance_(chance), steps(static_cast<size_t>(world)) {}

  void operator()(Rank &rank) {
    int chances = 0;
    void *data = nullptr;
    tpfsdp_backend_region *region = nullptr;
    ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, N * 4, &data, &region), TPFSDP_OK);
    auto *shard = static_cast<float *>(data);
    int &step = steps[static_cast<size_t>(rank.rank)];
    const auto fails = [&] {
      if (rank.rank != failing_ || chances++ != chance_) return false;
      rank.fail(TPFSDP_ERR_CALLBACK, "injected");
      return true;
    };
    const auto write = [&] {
      for (int64_t i = 0; i < N; ++i) shard[i] = static_cast<float>(10 * step + rank.rank);
    };
    write();
    while (step < STEPS) {
      if (once(rank, shard, region, step, fails)) {
        ++step;
        write();
      } else {
        ASSERT_TRUE(rank.call.status == TPFSDP_OK || rank.call.status == TPFSDP_ERR_REMOTE) << rank.call.text;
        ASSERT_EQ(rank.reset(step), TPFSDP_OK) << rank.call.text;
        rank.call.status = TPFSDP_OK;
      }
    }
    EXPECT_EQ(rank.reset(step), TPFSDP_OK) << rank.call.text;
    table().region_destroy(region);
  }

 private:
  template <class Fails>
  bool once(Rank &rank, float *shard, tpfsdp_backend_region *region, int step, const Fails &fails) {
    std::vector<float> full(static_cast<size_t>(N * rank.world)), own(N, static_cast<float>(rank.rank)), sum(N);
    Op gather = all_gather(rank, shard, full.data(), std::vector<int64_t>(static_cast<size_t>(rank.world), N), region);
    Op large = all_reduce(own.data(), sum.data(), N);
    if (fails() || rank.submit(gather) != TPFSDP_OK) return false;
    const int64_t gathered = rank.last;
    if (fails() || rank.submit(barrier_op()) != TPFSDP_OK) return false;
    if (fails() || rank.complete(gathered) != TPFSDP_OK) return false;
    for (int r = 0; r < rank.world; ++r)
      for (int64_t i = 0; i < N; ++i)
        EXPECT_EQ(full[static_cast<size_t>(r * N + i)], static_cast<float>(10 * step + r)) << "a torn step";
    if (rank.run(large) != TPFSDP_OK || rank.wait_read(rank.last) != TPFSDP_OK) {
      table().give_up(rank.comm);  // own and sum go away
      return false;
    }
    EXPECT_EQ(sum[N - 1], static_cast<float>(rank.world * (rank.world - 1) / 2));
    return !fails() && rank.window() == TPFSDP_OK;
  }

  int failing_;
  int chance_;

 public:
  std::vector<int> steps;
};

void expect_clean(const Scheduled &ranks, const std::string &how) {
  EXPECT_EQ(ranks.violations(), 0U) << how;
  EXPECT_EQ(ranks.fibers.rescues(), 0) << "a rank slept for ever: " << how;
}

TEST(Search, DepthFirst) {
  constexpr int LIMIT = 250;
  int runs = 0;
  for (int chance = -1; chance < 4; ++chance) {
    DepthFirst strategy(2);
    int tried = 0;
    do {
      Scheduled ranks(2);
      Program program(2, 1, chance);
      ranks.run(std::ref(program), strategy);
      expect_clean(ranks, "choices " + strategy.choices());
      ++runs;
    } while (strategy.more() && ++tried < LIMIT && !HasFailure());
  }
  RecordProperty("runs", runs);
}

TEST(Search, Pct) {
  constexpr uint64_t FIRST_SEED = 20240601;
  for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 150 && !HasFailure(); ++seed) {
    const int world = 2 + static_cast<int>(seed % 3);
    Scheduled ranks(world);
    Program program(world, static_cast<int>(seed / 3 % 2), static_cast<int>(seed % 9) - 1);
    Pct strategy(seed, world, 4, 600L * world);
    ranks.run(std::ref(program), strategy);
    expect_clean(ranks, "seed " + std::to_string(seed));
    if (HasFailure()) std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  }
}

TEST(Death, AtEveryPointSurvivorsAgreeOnTheWindow) {
  int64_t points = 1;
  for (int64_t n = 0; n < points; ++n) {
    Scheduled ranks(3);
    if (n > 0) ranks.kill_at(1, n);
    std::vector<tpfsdp_status> ends(3, TPFSDP_PENDING);
    // Outlives the run: the dead rank's fiber is unwound at its end, and reads on.
    std::vector<std::vector<float>> inputs(3, std::vector<float>(N, 1));
    InTurn strategy;
    ranks.run(
        [&](Rank &rank) {
          std::vector<float> &in = inputs[static_cast<size_t>(rank.rank)], out(3 * N);
          Op op = all_gather(rank, in.data(), out.data(), {N, N, N});
          tpfsdp_status end = rank.run(op);
          if (end == TPFSDP_OK) end = rank.wait_read(rank.last);
          if (end == TPFSDP_OK) end = rank.window();
          ends[static_cast<size_t>(rank.rank)] = end;
          if (end == TPFSDP_OK && rank.rank != 1) {
            EXPECT_EQ(out, std::vector<float>(3 * N, 1)) << "read what was given back";
          }
          table().give_up(rank.comm);
          in.assign(N, -1);
        },
        strategy);
    if (n == 0) points = ranks.fibers.points(1);
    EXPECT_EQ(ends[0] == TPFSDP_OK, ends[2] == TPFSDP_OK) << "one survivor stepped, dead at point " << n;
    for (const int r : {0, 2})
      EXPECT_TRUE(ends[static_cast<size_t>(r)] == TPFSDP_OK || ends[static_cast<size_t>(r)] == TPFSDP_ERR_PEER_LOST)
          << ranks.rank(r).call.text << " dead at point " << n;
    EXPECT_EQ(ranks.violations(), 0U);
    if (HasFailure()) break;
  }
  EXPECT_GT(points, 10);
}

TEST(Post, HalfWrittenRecordInvisible) {
  // Rank 1 stops between the body of its record and the sequence that makes it one.
  bool found = false;
  for (int64_t n = 0; n < 10 && !found; ++n) {
    Scheduled ranks(2);
    ranks.kill_at(1, n);
    tpfsdp_status end = TPFSDP_PENDING;
    float value = 7;
    Point stopped = Point::SEE;
    InTurn strategy;
    ranks.run(
        [&](Rank &rank) {
          float mine = 1;
          Op op = all_reduce(&mine, rank.rank == 0 ? &value : &mine, 1);
          const tpfsdp_status status = rank.run(op);
          if (rank.rank == 1) return;
          end = status;
          stopped = ranks.fibers.point(1);
        },
        strategy);
    found = stopped == Point::POST;
    if (!found) continue;
    EXPECT_EQ(end, TPFSDP_ERR_PEER_LOST) << ranks.rank(0).call.text;
    EXPECT_EQ(value, 7.0F);
  }
  EXPECT_TRUE(found);
}

TEST(Post, RingHoldsWithAFullFlightAndTwoFailures) {
  // Rank 0 runs as far ahead as it may, fails, resets, all unread; then rank 1 reads from the oldest.
  Scheduled ranks(2);
  class Ahead final : public Strategy {
   public:
    int next(const Fibers &, const std::vector<int> &ready, int) override { return ready.front(); }
  } strategy;
  ranks.run(
      [&](Rank &rank) {
        for (int round = 0; round < 6; ++round) {
          for (int i = 0; i < 7; ++i) ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK) << rank.call.text;
          if (rank.rank == round % 2) {
            rank.fail(TPFSDP_ERR_CALLBACK, "hook");
          } else {
            EXPECT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
            EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE) << rank.call.text;
          }
          ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
        }
      },
      strategy);
  EXPECT_EQ(ranks.violations(), 0U);
  EXPECT_EQ(ranks.fibers.rescues(), 0);
}

TEST(Post, GenerationOfARecordIsChecked) {
  // Once round the ring, rank 0 looks for a record that rank 1 has not posted: the old one in its slot is not it.
  Scheduled ranks(2);
  Straight strategy;
  ranks.run(
      [&](Rank &rank) {
        for (int i = 0; i < 16; ++i) ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        if (rank.rank == 1) return;
        ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
        EXPECT_EQ(rank.complete(rank.last, false), TPFSDP_PENDING) << "took a record of 16 sequences ago";
      },
      strategy);
}

TEST(Flags, WakesAllSleepers) {
  Scheduled ranks(4);
  class LastFirst final : public Strategy {
   public:
    int next(const Fibers &, const std::vector<int> &ready, int) override { return ready.back(); }
  } strategy;
  ranks.run([](Rank &rank) { EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text; }, strategy);
  EXPECT_EQ(ranks.fibers.rescues(), 0);
}

TEST(Flags, DeadSleeperBlocksNobody) {
  // Rank 1 posts, announces its sleep and dies before it sleeps: the count of sleepers stays too high for ever.
  class OneFirst final : public Strategy {
   public:
    int next(const Fibers &, const std::vector<int> &ready, int) override {
      return std::find(ready.begin(), ready.end(), 1) != ready.end() ? 1 : ready.front();
    }
  } strategy;
  bool found = false;
  for (int64_t n = 0; n < 40 && !found; ++n) {
    Scheduled ranks(3);
    ranks.kill_at(1, n);
    tpfsdp_status ends[3] = {}, next[3] = {};
    ranks.run(
        [&](Rank &rank) {
          if (rank.rank == 0) found = ranks.fibers.stopped(1) && ranks.sleepers() == 1;
          ends[rank.rank] = rank.barrier();
          if (rank.rank == 1) return;
          const int rescues = ranks.fibers.rescues();
          EXPECT_TRUE(!found || rescues == 0) << "slept for ever after the death";
          if (found && ends[rank.rank] == TPFSDP_OK) next[rank.rank] = rank.barrier();
        },
        strategy);
    if (!found) continue;
    EXPECT_EQ(ends[0], TPFSDP_OK) << ranks.rank(0).call.text;
    EXPECT_EQ(ends[2], TPFSDP_OK) << ranks.rank(2).call.text;
    EXPECT_EQ(next[0], TPFSDP_ERR_PEER_LOST) << ranks.rank(0).call.text;
    EXPECT_EQ(next[2], TPFSDP_ERR_PEER_LOST) << ranks.rank(2).call.text;
    EXPECT_EQ(ranks.violations(), 0U);
  }
  EXPECT_TRUE(found) << "no point at which rank 1 had announced its sleep";
}

TEST(Steady, NoSystemCallWhileNobodySleeps) {
  Scheduled ranks(3);
  InTurn in_turn;
  const auto program = [&](Rank &rank, bool may_wait) {
    std::vector<float> in(90, 1), out(270), sum(90);
    Op gather = all_gather(rank, in.data(), out.data(), {90, 90, 90});
    Op large = all_reduce(in.data(), sum.data(), 90);
    const auto until_over = [&](const auto &slot) {
      tpfsdp_status status = TPFSDP_PENDING;
      while ((status = slot()) == TPFSDP_PENDING) {
      }
      ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
    };
    for (int step = 0; step < 20; ++step) {
      for (Op *op : {&gather, &large}) {
        const tpfsdp_backend_op &posted = *op;
        until_over([&] { return rank.submit(posted, may_wait); });
        until_over([&] { return rank.complete(rank.last, may_wait); });
        until_over([&] { return rank.wait_read(rank.last, may_wait); });
      }
      table().publish_step(rank.comm);
      until_over([&] { return table().wait_step(rank.call.handle(), rank.comm, may_wait ? 1 : 0); });
    }
    EXPECT_EQ(sum[89], 3.0F);
  };
  const int64_t before = ranks.fibers.system_calls();
  ranks.run([&](Rank &rank) { program(rank, false); }, in_turn);
  EXPECT_EQ(ranks.fibers.system_calls(), before);
  Straight straight;
  ranks.run([&](Rank &rank) { program(rank, true); }, straight);
  EXPECT_GT(ranks.fibers.system_calls(), before) << "ranks that wait sleep: the count counts";
}

TEST(Reduce, AddsInRankOrder) {
  Scheduled ranks(3);
  Straight strategy;
  ranks.run(
      [](Rank &rank) {
        // 1e8 + 1 - 1e8: zero from left to right, one from right to left.
        const float values[] = {1.0F, 1e8F, -1e8F};
        std::vector<float> in(90, values[rank.rank]), out(30, 5);
        Op op = reduce_scatter(rank, in.data(), out.data(), {30, 30, 30});
        ASSERT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(out[0], 0.0F);
        EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK);
      },
      strategy);
}

}  // namespace
}  // namespace host_test
