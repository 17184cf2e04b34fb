// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a group have mapped, as the library holds it.
#include "comm/region.hpp"

#include "comm/collective_log.hpp"
#include "comm/collectives.hpp"
#include "comm/run_ranks.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tpfsdp {
namespace {

Ref<Group> group_of(const Ref<Context> &context) { return Ref<Group>(&context->group()); }

tpfsdp_backend_op gather_in(const CommonRegion &region, tpfsdp_backend_kind kind) {
  tpfsdp_backend_op op{};
  op.struct_size = sizeof op;
  op.kind = kind;
  op.dtype = TPFSDP_DTYPE_F32;
  op.source = -1;
  op.unit = -1;
  op.input_region = region.backend_region();
  op.element_count = region.size_bytes() / 4;
  return op;
}

float *floats(const CommonRegion &region) { return reinterpret_cast<float *>(region.data()); }
const float *read_floats(const CommonRegion &region) { return reinterpret_cast<const float *>(region.readable()); }

TEST(CommonRegion, PartsOfAllRanksAddUp) {
  for (const int64_t size : {0, 1, 7, 4096, 1000001}) {
    for (const int32_t world : {1, 2, 3, 64}) {
      int64_t sum = 0;
      for (int32_t rank = 0; rank < world; ++rank) {
        const int64_t part = CommonRegion::part_bytes(size, rank, world);
        EXPECT_LE(std::abs(part - size / world), 1);
        sum += part;
      }
      EXPECT_EQ(sum, size);
    }
  }
}

TEST(CommonRegion, OfAGroupOfOneIsItsOwn) {
  MemoryAccount account;
  const Ref<Context> context = join({});
  EXPECT_TRUE(CommonRegion::is_possible(context->group()));
  {
    CommonRegion region;
    EXPECT_FALSE(region);
    ASSERT_EQ(region.create(context->group(), 1000, &account, false), TPFSDP_OK);
    EXPECT_TRUE(region);
    EXPECT_EQ(region.backend_region(), nullptr);
    region.data()[999] = std::byte{1};
    EXPECT_EQ(region.readable()[999], std::byte{1});
    region.release();
    region.protect(true);  // nobody else is there
    EXPECT_EQ(region.wait_released(false), TPFSDP_OK);
    EXPECT_EQ(account.held(), 1000);
  }
  EXPECT_EQ(account.held(), 0);
}

TEST(CommonRegion, IsWrittenInPartsAndReadWhole) {
  std::atomic<bool> pending{false};
  run_ranks(2, {}, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    MemoryAccount account;
    {
      CommonRegion made;
      while (made.create(*group, 1000, &account, false) == TPFSDP_PENDING) std::this_thread::yield();
      CommonRegion region = std::move(made);
      EXPECT_FALSE(made);
      EXPECT_EQ(account.held(), 500);
      EXPECT_EQ(group->sequence(), 2);
      floats(region)[125 * rank] = static_cast<float>(rank + 1);
      int64_t sequence = 0;
      EXPECT_EQ(group->submit(gather_in(region, TPFSDP_BACKEND_KIND_SHARED_GATHER), 0, true, &sequence), TPFSDP_OK);
      EXPECT_EQ(group->complete(sequence, true), TPFSDP_OK);
      EXPECT_EQ(read_floats(region)[0], 1.0F);
      EXPECT_EQ(read_floats(region)[125], 2.0F);
      if (rank == 0) {
        region.release();
        EXPECT_EQ(region.wait_released(false), TPFSDP_PENDING);
        pending = true;
      } else {
        while (!pending) std::this_thread::yield();
        region.release();
      }
      EXPECT_EQ(region.wait_released(true), TPFSDP_OK);
    }
    EXPECT_EQ(account.held(), 0);
    EXPECT_EQ(account.peak(), 500);
    const Counters &counters = context->rank().recorder().counters;
    EXPECT_EQ(counters.all_gathers, 1);
    EXPECT_EQ(counters.wire_bytes, 0);
    EXPECT_EQ(counters.copies, 0);
  });
}

TEST(CommonRegion, ErrorsNameTheOperationAndTheGroup) {
  run_ranks(2, {}, [](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    MemoryAccount account;
    CommonRegion region;
    try {
      region.create(*group, 1000 + rank, &account, true);
      ADD_FAILURE() << "ranks of unequal sizes had a region";
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_MISMATCH);
      EXPECT_EQ(failure.detail()->operation, "common_region");
      EXPECT_EQ(failure.detail()->group, group->name());
    }
    EXPECT_FALSE(region);
    EXPECT_EQ(account.peak(), 0);
    group->reset();
    ASSERT_EQ(region.create(*group, 1000, nullptr, true), TPFSDP_OK);
    int64_t sequence = 0;
    EXPECT_EQ(group->submit(gather_in(region, TPFSDP_BACKEND_KIND_MAPPED_GATHER), 0, true, &sequence), TPFSDP_OK);
    EXPECT_EQ(group->complete(sequence, true), TPFSDP_OK);
    try {
      region.wait_released(true);
      ADD_FAILURE() << "this rank uses it";
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_STATE);
      EXPECT_EQ(failure.detail()->operation, "wait_released");
    }
  });
}

TEST(CommonRegion, AFailedWorkBeforeItTellsItself) {
  run_ranks(2, {}, [](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    float value = 1, other = 2;
    const int64_t one = 1;
    tpfsdp_view view{};
    view.data = &value;
    view.size_bytes = 4;
    view.shape = &one;
    view.ndim = 1;
    view.dtype = TPFSDP_DTYPE_F32;
    view.device_type = TPFSDP_DEVICE_CPU;
    tpfsdp_view into = view;
    into.data = &other;
    const Ref<Work> work = all_reduce(group, view, into, rank == 0 ? TPFSDP_REDUCE_MIN : TPFSDP_REDUCE_MAX, true);
    CommonRegion region;
    EXPECT_EQ(region.create(*group, 64, nullptr, true), TPFSDP_OK);
    EXPECT_THROW(work->wait(false), Failure);
  });
}

}  // namespace
}  // namespace tpfsdp
