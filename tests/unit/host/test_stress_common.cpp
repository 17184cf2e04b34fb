// SPDX-License-Identifier: Apache-2.0
// Shared and mapped units on real threads and a real futex: two slots for three units, mapped copies that are cast when
// the version has changed, units kept whole over the step, random failures at any point, resets. Every rank computes on
// whole versions only, and applies the same steps.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

constexpr int STEPS = 60;
constexpr int UNITS = 3;
constexpr int SLOTS = 2;
constexpr int64_t N = 48;
constexpr auto SHARED = TPFSDP_BACKEND_KIND_SHARED_GATHER;
constexpr auto MAPPED = TPFSDP_BACKEND_KIND_MAPPED_GATHER;

class Trainer {
 public:
  Trainer(Rank &rank, tpfsdp_backend_kind kind, unsigned seed)
      : rank_(rank), kind_(kind), random_(seed * 977 + static_cast<unsigned>(rank.rank) * 131) {
    const int regions = kind == SHARED ? SLOTS : UNITS;
    memory_.resize(static_cast<size_t>(regions));
    for (CommonMemory &each : memory_) EXPECT_EQ(rank.make_common(N * rank.world, &each), TPFSDP_OK) << rank.call.text;
  }
  ~Trainer() {
    for (const CommonMemory &each : memory_) table().region_destroy(each.region);
  }

  void train(bool faults) {
    while (steps_ < STEPS) {
      fault_in_ = faults && random_() % 4 == 0 ? static_cast<int>(random_() % 20) : -1;
      const tpfsdp_status status = step();
      if (status == TPFSDP_OK) continue;
      ASSERT_TRUE(status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_CALLBACK) << status << rank_.call.text;
      for (bool &held : held_) held = false;
      for (const CommonMemory &each : memory_) table().region_release(each.region);
      ASSERT_EQ(rank_.reset(steps_), TPFSDP_OK) << rank_.call.text;
    }
    ASSERT_EQ(rank_.reset(steps_), TPFSDP_OK) << rank_.call.text;
  }

 private:
  CommonMemory &memory_of(int unit) { return memory_[static_cast<size_t>(kind_ == SHARED ? unit % SLOTS : unit)]; }
  float value_of(int unit, int rank) const { return static_cast<float>(steps_ * 1000 + unit * 100 + rank); }

  tpfsdp_status fault() {
    if (fault_in_ < 0 || fault_in_-- != 0) return TPFSDP_OK;
    rank_.fail(TPFSDP_ERR_CALLBACK, "injected");
    return TPFSDP_ERR_CALLBACK;
  }
  void write(int unit) {
    for (int64_t i = 0; i < N; ++i) memory_of(unit).data[rank_.rank * N + i] = value_of(unit, rank_.rank);
  }
  tpfsdp_status issue(int unit) {
    if (const tpfsdp_status e = fault()) return e;
    const bool writes = kind_ == SHARED || written_[unit] != steps_;
    if (writes) {
      if (const tpfsdp_status e = rank_.wait_released(memory_of(unit))) return e;
      write(unit);
      written_[unit] = steps_;
    }
    if (const tpfsdp_status e = fault()) return e;
    const tpfsdp_status e = rank_.submit(gather_in(memory_of(unit), kind_, N * rank_.world, unit));
    sequence_[unit] = rank_.last;
    held_[unit] = held_[unit] || e == TPFSDP_OK;
    return e;
  }
  tpfsdp_status use(int unit) {
    if (const tpfsdp_status e = rank_.complete(sequence_[unit])) return e;
    for (int r = 0; r < rank_.world; ++r)
      for (int64_t i = 0; i < N; ++i)
        EXPECT_EQ(memory_of(unit).readable[r * N + i], value_of(unit, r)) << "unit " << unit << ", rank " << r;
    return fault();
  }
  void reshard(int unit) {
    if (held_[unit]) table().region_release(memory_of(unit).region);
    held_[unit] = false;
  }
  tpfsdp_status step() {
    tpfsdp_status e = TPFSDP_OK;
    if ((e = issue(0)) || (e = issue(1)) || (e = use(0))) return e;
    reshard(0);
    if ((e = issue(2)) || (e = use(1))) return e;
    reshard(1);
    if ((e = use(2)) || (e = issue(1)) || (e = use(2))) return e;
    reshard(2);
    if ((e = issue(0)) || (e = use(1))) return e;
    reshard(1);
    if ((e = use(0))) return e;
    // Ranks reshard the last one at different times: some compute on it while others have stepped.
    const bool keeps = random_() % 2 == 0;
    if (!keeps) reshard(0);
    if ((e = fault()) || (e = rank_.window())) return e;
    if (keeps) {
      for (int r = 0; r < rank_.world; ++r)
        for (int64_t i = 0; i < N; ++i) EXPECT_EQ(memory_of(0).readable[r * N + i], value_of(0, r)) << "torn by a step";
      reshard(0);
    }
    ++steps_;
    return TPFSDP_OK;
  }

  Rank &rank_;
  const tpfsdp_backend_kind kind_;
  std::mt19937 random_;
  int steps_ = 0;
  int fault_in_ = -1;
  std::vector<CommonMemory> memory_;
  int written_[UNITS] = {-1, -1, -1};
  bool held_[UNITS]{};
  int64_t sequence_[UNITS]{};
};

TEST(Stress, CommonMemoryIsReadInWholeVersionsOnly) {
  for (const tpfsdp_backend_kind kind : {SHARED, MAPPED})
    for (const int world : {2, 3, 4})
      for (unsigned seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE("kind " + std::to_string(kind) + ", world " + std::to_string(world) + ", seed " +
                     std::to_string(seed));
        run_ranks(world, [&](Rank &rank) {
          {
            Trainer trainer(rank, kind, seed);
            trainer.train(seed != 0);
            EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
          }
          EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
        });
      }
}

}  // namespace
}  // namespace host_test
