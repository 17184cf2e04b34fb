// SPDX-License-Identifier: Apache-2.0
// Once warm, a collective allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "allocations.hpp"
#include "ranks.hpp"

namespace host_test {
namespace {

TEST(Steady, CollectivesAllocateNothing) {
  run_ranks(3, [](Rank &rank) {
    std::vector<float> in(300, 1), out(300), sum(100);
    float norm = 1;
    Op gather = all_gather(rank, in.data(), out.data(), {100, 100, 100});
    Op reduce = reduce_scatter(rank, in.data(), sum.data(), {100, 100, 100});
    Op large = all_reduce(out.data(), out.data(), 300);
    Op small = all_reduce(&norm, &norm, 1);
    const auto step = [&] {
      for (const tpfsdp_backend_op *op :
           {&static_cast<const tpfsdp_backend_op &>(gather), &static_cast<const tpfsdp_backend_op &>(reduce),
            &static_cast<const tpfsdp_backend_op &>(large), &static_cast<const tpfsdp_backend_op &>(small)}) {
        if (rank.run(*op) != TPFSDP_OK || rank.wait_read(rank.last) != TPFSDP_OK) return false;
      }
      return rank.window() == TPFSDP_OK;
    };
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(step()) << rank.call.text;
    const int64_t before = allocations();
    bool ok = true;
    for (int i = 0; i < 200; ++i) ok = ok && step();
    const int64_t after = allocations();
    EXPECT_TRUE(ok) << rank.call.text;
    EXPECT_EQ(after, before);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

TEST(Steady, GathersInCommonMemoryMoveAndAllocateNothing) {
  std::atomic<int64_t> copies{0};
  hooks().copy = [&](void *target, const void *source, int64_t bytes) {
    ++copies;
    std::memcpy(target, source, static_cast<size_t>(bytes));
  };
  run_ranks(3, [](Rank &rank) {
    CommonMemory slot, shards;
    ASSERT_EQ(rank.make_common(300, &slot), TPFSDP_OK) << rank.call.text;
    ASSERT_EQ(rank.make_common(300, &shards), TPFSDP_OK) << rank.call.text;
    Op shared = gather_in(slot, TPFSDP_BACKEND_KIND_SHARED_GATHER, 300);
    Op mapped = gather_in(shards, TPFSDP_BACKEND_KIND_MAPPED_GATHER, 300);
    int step_number = 0;
    const auto step = [&] {
      ++step_number;
      if (rank.wait_released(slot) != TPFSDP_OK) return false;
      slot.data[100 * rank.rank] = static_cast<float>(step_number);
      if (rank.run(shared) != TPFSDP_OK || rank.run(mapped) != TPFSDP_OK) return false;
      for (int r = 0; r < 3; ++r)
        if (slot.readable[100 * r] != static_cast<float>(step_number) ||
            shards.readable[100 * r] != static_cast<float>(step_number - 1))
          return false;
      table().region_release(slot.region);
      table().region_release(shards.region);
      if (rank.window() != TPFSDP_OK || rank.wait_released(shards) != TPFSDP_OK) return false;
      shards.data[100 * rank.rank] = static_cast<float>(step_number);
      return true;
    };
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(step()) << rank.call.text;
    const int64_t before = allocations();
    bool ok = true;
    for (int i = 0; i < 200; ++i) ok = ok && step();
    const int64_t after = allocations();
    EXPECT_TRUE(ok) << rank.call.text;
    EXPECT_EQ(after, before);
    for (const CommonMemory &memory : {slot, shards}) table().region_destroy(memory.region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
  hooks() = {};
  EXPECT_EQ(copies, 0);
}

}  // namespace
}  // namespace host_test
