// SPDX-License-Identifier: Apache-2.0
// Slots that all ranks of a host have in common: who waits for whom before one is filled again, what is gathered
// outside the plan, and what pins hold, there and where shards are mapped.
#include "support/modes.hpp"

#include <sched.h>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;
using modes::begin_write;
using modes::end_write;
using modes::expect_waits;
using modes::full_values;
using modes::is_full;
using modes::own_bytes;
using modes::reshard;
using modes::unshard;
using testing::AllOf;

// ---- Slots ------------------------------------------------------------------------------------------------------

// Blocks 0 and 2 have one slot. Rank 0 goes ahead to block 2 while rank 1 computes with block 0.
TEST(Shared, AFillWaitsForTheSlowestUserOfTheSlot) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED));
    API(tpfsdp_root_prepare, model.root());
    ASSERT_EQ(api::unit_info(model.block(0)).slot, api::unit_info(model.block(2)).slot);
    const auto try_block_2 = [&] {
      return api::check([&](tpfsdp_error **error) { return tpfsdp_module_try_pre_forward(model.block(2), error); });
    };
    unshard(model.block(0));
    if (rank == 0) {
      reshard(model.block(0));
      take_counters(context);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(try_block_2(), TPFSDP_PENDING);
      EXPECT_EQ(take_counters(context).filled_bytes, 0);
      meeting.arrive_and_wait();
      meeting.arrive_and_wait();  // released there, and not yet gathered
      EXPECT_EQ(try_block_2(), TPFSDP_PENDING);
      const tpfsdp_counters counters = take_counters(context);
      EXPECT_EQ(counters.filled_bytes, own_bytes(0));
      EXPECT_EQ(counters.all_gathers, 1);
      meeting.arrive_and_wait();
      while (try_block_2() == TPFSDP_PENDING) sched_yield();
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(full_values(model.weight(1)), chain::weight_values(2, 25));
      reshard(model.block(0));
      meeting.arrive_and_wait();
      meeting.arrive_and_wait();
      API(tpfsdp_module_pre_forward, model.block(2));
    }
    EXPECT_EQ(full_values(model.weight(3)), chain::weight_values(6, 25));
    API(tpfsdp_module_post_forward, model.block(2));
  });
}

// Block 2 is wanted where block 0 is full: memory of its own, filled as in PRIVATE.
TEST(Shared, AnUnshardOutsideThePlanTakesPrivateMemory) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED));
    model.step(0);
    ASSERT_EQ(api::unit_info(model.block(0)).slot, api::unit_info(model.block(2)).slot);
    const int64_t slot_bytes = api::memory(model.root()).slot_bytes;
    take_counters(context);
    Values of_block_2;
    for (int round = 0; round < 2; ++round) {
      unshard(model.block(0));
      const Values before = full_values(model.weight(1));
      EXPECT_EQ(take_counters(context).filled_bytes, own_bytes(rank));
      unshard(model.block(2));
      const tpfsdp_counters counters = take_counters(context);
      EXPECT_EQ(counters.spare_slots, round == 0 ? 1 : 0);  // made once
      EXPECT_EQ(counters.filled_bytes, 0);
      EXPECT_EQ(counters.wire_bytes, own_bytes(1 - rank));
      EXPECT_EQ(api::face(model.weight(3), TPFSDP_FACE_FULL).read_only, 0);
      EXPECT_EQ(full_values(model.weight(1)), before);
      of_block_2 = full_values(model.weight(3));
      reshard(model.block(2));
      reshard(model.block(0));
    }
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 1);
    EXPECT_EQ(api::memory(model.root()).slot_bytes, slot_bytes + api::unit_info(model.block(2)).full_bytes);
    unshard(model.block(2));  // in its slot again
    EXPECT_EQ(full_values(model.weight(3)), of_block_2);
    EXPECT_EQ(api::face(model.weight(3), TPFSDP_FACE_FULL).read_only, 1);
    reshard(model.block(2));
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

// ---- Pins -------------------------------------------------------------------------------------------------------

TEST(Shared, AGatherOfAUnitThatAPinHoldsIsToldToTheRanks) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED));
    model.step(0);
    unshard(model.block(1));
    if (rank == 1) API(tpfsdp_unit_pin, modes::unit_of(model.block(1)));
    const Values before = full_values(model.weight(2));
    const void *const view = api::face(model.weight(2), TPFSDP_FACE_FULL).data;
    reshard(model.block(1));
    EXPECT_EQ(is_full(model.block(1)), rank == 1);
    const api::Error error = caught([&] { unshard(model.block(1)); });
    EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE) << error.what();
    EXPECT_EQ(error.rank, 1);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit b1 cannot be gathered again: 1 pin(s)"), HasSubstr("mode shared")));
    model.reset();
    if (rank == 1) {
      EXPECT_EQ(Values(static_cast<const float *>(view), static_cast<const float *>(view) + 25), before);
      API(tpfsdp_unit_unpin, modes::unit_of(model.block(1)));
    }
    model.expect_idle();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

TEST(Mapped, APinPutsTheReleaseOffAndNothingElse) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    model.step(0);
    unshard(model.block(1));
    if (rank == 1) API(tpfsdp_unit_pin, modes::unit_of(model.block(1)));
    reshard(model.block(1));
    for (int round = 0; round < 2; ++round) {  // gathered again, as if there were no pin
      unshard(model.block(1));
      reshard(model.block(1));
    }
    if (rank == 0) {
      EXPECT_FALSE(is_full(model.block(1)));
      expect_waits(context, [&] { begin_write(model); });
      meeting.arrive_and_wait();
    } else {
      EXPECT_EQ(api::unit_info(model.block(1)).deferred_reshards, 3);
      EXPECT_EQ(caught([&] { begin_write(model); }).status, TPFSDP_ERR_STATE);
      meeting.arrive_and_wait();
      API(tpfsdp_unit_unpin, modes::unit_of(model.block(1)));
    }
    begin_write(model);
    end_write(model);
    model.expect_idle();
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

}  // namespace
