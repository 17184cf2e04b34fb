// SPDX-License-Identifier: Apache-2.0
// The whole protocol on real threads and a real futex: prefetched gathers, two gradient slots, windows, large and small
// all-reduces, random failures at any point, resets. After reference/model/threads.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

constexpr int STEPS = 60;
constexpr int GROUPS = 3;
constexpr int64_t N = 48;

class Trainer {
 public:
  Trainer(Rank &rank, unsigned seed) : rank_(rank), random_(seed * 977 + static_cast<unsigned>(rank.rank) * 131) {
    for (int g = 0; g < GROUPS; ++g) shard_[g] = make(&shard_region_[g], N);
    for (int s = 0; s < 2; ++s) grad_[s] = make(&grad_region_[s], N * rank.world);
    for (auto &slot : slot_) slot.resize(static_cast<size_t>(N * rank.world));
    write_shards();
  }
  ~Trainer() {
    for (auto *region : shard_region_) table().region_destroy(region);
    for (auto *region : grad_region_) table().region_destroy(region);
  }

  void train(bool faults) {
    while (steps_ < STEPS) {
      fault_in_ = faults && random_() % 4 == 0 ? static_cast<int>(random_() % 20) : -1;
      const tpfsdp_status status = step();
      if (status == TPFSDP_OK) continue;
      ASSERT_TRUE(status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_CALLBACK) << status << rank_.call.text;
      slot_sequence_[0] = slot_sequence_[1] = 0;
      ASSERT_EQ(rank_.reset(steps_), TPFSDP_OK) << rank_.call.text;
    }
    ASSERT_EQ(rank_.reset(steps_), TPFSDP_OK) << rank_.call.text;
  }

 private:
  float *make(tpfsdp_backend_region **region, int64_t floats) {
    void *data = nullptr;
    EXPECT_EQ(table().region_create(rank_.call.handle(), rank_.comm, floats * 4, &data, region), TPFSDP_OK);
    return static_cast<float *>(data);
  }
  void write_shards() {
    for (int g = 0; g < GROUPS; ++g)
      for (int64_t i = 0; i < N; ++i) shard_[g][i] = static_cast<float>(steps_ * 1000 + g * 100 + rank_.rank);
  }
  tpfsdp_status fault() {
    if (fault_in_ < 0 || fault_in_-- != 0) return TPFSDP_OK;
    rank_.fail(TPFSDP_ERR_CALLBACK, "injected");
    return TPFSDP_ERR_CALLBACK;
  }
  std::vector<int64_t> even() const { return std::vector<int64_t>(static_cast<size_t>(rank_.world), N); }

  tpfsdp_status issue(int g) {
    if (const tpfsdp_status e = fault()) return e;
    gathers_[g] = all_gather(rank_, shard_[g], slot_[g % 2].data(), even(), shard_region_[g]);
    gathers_[g].op.unit = g;
    const tpfsdp_status e = rank_.submit(gathers_[g]);
    gather_sequence_[g] = rank_.last;
    return e;
  }
  tpfsdp_status use(int g) {
    if (const tpfsdp_status e = rank_.complete(gather_sequence_[g])) return e;
    for (int r = 0; r < rank_.world; ++r)
      for (int64_t i = 0; i < N; ++i)
        EXPECT_EQ(slot_[g % 2][static_cast<size_t>(r * N + i)], static_cast<float>(steps_ * 1000 + g * 100 + r));
    return fault();
  }
  tpfsdp_status reduce(int g) {
    const int s = next_slot_ ^= 1;
    if (slot_sequence_[s] != 0)
      if (const tpfsdp_status e = rank_.wait_read(slot_sequence_[s])) return e;
    for (int64_t i = 0; i < N * rank_.world; ++i)
      grad_[s][i] = static_cast<float>(steps_ * 7 + g + rank_.rank + static_cast<int>(i));
    if (const tpfsdp_status e = fault()) return e;
    std::vector<float> sum(N);
    Op op = reduce_scatter(rank_, grad_[s], sum.data(), even(), grad_region_[s]);
    op.op.unit = g;
    if (const tpfsdp_status e = rank_.submit(op)) return e;
    slot_sequence_[s] = rank_.last;
    if (const tpfsdp_status e = rank_.complete(rank_.last)) return e;
    for (int64_t i = 0; i < N; ++i) {
      float want = 0;
      for (int r = 0; r < rank_.world; ++r) want += static_cast<float>(steps_ * 7 + g + r + rank_.rank * N + i);
      EXPECT_EQ(sum[static_cast<size_t>(i)], want);
    }
    return TPFSDP_OK;
  }
  tpfsdp_status norm(int64_t count) {
    std::vector<float> data(static_cast<size_t>(count), static_cast<float>(rank_.rank + 1));
    Op op = all_reduce(data.data(), data.data(), count);
    tpfsdp_status e = rank_.run(op);
    if (e == TPFSDP_OK) e = rank_.wait_read(rank_.last);
    if (e != TPFSDP_OK) {
      table().give_up(rank_.comm);  // data goes away
      return e;
    }
    EXPECT_EQ(data.back(), static_cast<float>(rank_.world * (rank_.world + 1) / 2));
    return e;
  }
  tpfsdp_status step() {
    tpfsdp_status e = TPFSDP_OK;
    if ((e = issue(0)) || (e = issue(1)) || (e = use(0)) || (e = issue(2)) || (e = use(1)) || (e = use(2)) ||
        (e = issue(1)) || (e = reduce(2)) || (e = use(1)) || (e = issue(0)) || (e = reduce(1)) || (e = use(0)) ||
        (e = reduce(0)) || (e = norm(1)) || (e = norm(200)) || (e = fault()) || (e = rank_.window()))
      return e;
    ++steps_;
    write_shards();
    return TPFSDP_OK;
  }

  Rank &rank_;
  std::mt19937 random_;
  int steps_ = 0;
  int fault_in_ = -1;
  int next_slot_ = 0;
  float *shard_[GROUPS]{};
  float *grad_[2]{};
  tpfsdp_backend_region *shard_region_[GROUPS]{};
  tpfsdp_backend_region *grad_region_[2]{};
  std::vector<float> slot_[2];
  Op gathers_[GROUPS];
  int64_t gather_sequence_[GROUPS]{};
  int64_t slot_sequence_[2]{};
};

TEST(Stress, TrainsTheSameWithAndWithoutFailures) {
  for (const int world : {2, 3, 4})
    for (unsigned seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE("world " + std::to_string(world) + ", seed " + std::to_string(seed));
      run_ranks(world, [&](Rank &rank) {
        {
          Trainer trainer(rank, seed);
          trainer.train(seed != 0);
          EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        }
        EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
      });
    }
}

}  // namespace
}  // namespace host_test
