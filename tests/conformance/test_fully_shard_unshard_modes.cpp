// SPDX-License-Identifier: Apache-2.0
// One copy of full parameters for all ranks, or none: the same bits and events as with a copy each, what moves, and who
// waits for whom before common memory is written. The suites "shared" and "mapped" run everything else in these modes.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;
using testing::AllOf;

tpfsdp_fully_shard_options in(tpfsdp_unshard_mode mode) {
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  options.unshard_mode = mode;
  return options;
}

const char *name_of(tpfsdp_unshard_mode mode) { return mode == TPFSDP_UNSHARD_SHARED ? "Shared" : "Mapped"; }

class UnshardModes : public testing::TestWithParam<tpfsdp_unshard_mode> {};
INSTANTIATE_TEST_SUITE_P(All, UnshardModes, testing::Values(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED),
                         [](const auto &mode) { return std::string(name_of(mode.param)); });

struct Trace {
  chain::SharedText events;
  chain::SharedValues full;
};
void run(int32_t world, const chain::Shape &shape, Trace &out) {
  on_ranks(
      world,
      [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, shape);
        API(tpfsdp_root_prepare, model.root());
        API(tpfsdp_trace_clear, context);
        for (int i = 0; i < 3; ++i) model.step(i);
        const std::vector<std::string> events = chain::take_events(context);
        const Values full = model.full();
        if (rank != world - 1) return;
        out.events = testing::PrintToString(events);
        out.full = full;
      },
      4000);
}

TEST_P(UnshardModes, GiveTheBitsAndEventsOfACopyEach) {
  for (const int32_t world : {1, 2, 3, 4, 5}) {
    for (const tpfsdp_reshard_kind kind : {TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, reshard " << kind);
      Trace common, copies;
      run(world, {.reshard = kind, .root_reshard = kind, .options = in(GetParam())}, common);
      run(world, {.reshard = kind, .root_reshard = kind, .options = in(TPFSDP_UNSHARD_PRIVATE)}, copies);
      EXPECT_EQ(common.full.get(), copies.full.get());
      EXPECT_EQ(common.events.text(), copies.events.text());
    }
  }
}

TEST_P(UnshardModes, FullValuesAreReadOnly) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 1, .options = in(GetParam())});
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_FULL).read_only, 1);
    EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_SHARD).read_only, 0);
    API(tpfsdp_fsdp_module_reshard, model.block(0));
  });
}

// Other ranks would compute on what the optimizer writes.
TEST_P(UnshardModes, AUnitThatIsStillFullWhenAStepEndsIsToldToAll) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    const chain::Shape shape{.options = in(GetParam())};
    Chain model(context, rank, shape);
    model.step(0);
    model.backward(model.forward(1));
    API(tpfsdp_fsdp_module_unshard, model.block(1), nullptr);
    if (rank == 0) API(tpfsdp_fsdp_module_reshard, model.block(1));
    const api::Error error = caught([&] { model.end(); });
    EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("unit(s) b1 are full at the end of a last backward"), HasSubstr("rank 1")));
    model.reset();
    model.expect_idle();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3, shape));
    }
  });
}

TEST_P(UnshardModes, BetweenBackwardsOfOneStepUnitsMayStayFull) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.options = in(GetParam())});
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 0, 1);
    API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), 0);
    model.backward(model.forward(0));
    model.end();
    EXPECT_EQ(api::unit_info(model.block(1)).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 1, 1);
    API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), 1);
    take_counters(context);
    model.backward(model.forward(1));
    EXPECT_EQ(take_counters(context).all_gathers, 3);  // of the blocks, in backward
    model.end();
    model.expect_idle();
  });
}

// A slot is filled when its slowest user has left it: no sooner, and without any collective between.
TEST(UnshardModesOf, SharedFillsWaitForTheSlowestUser) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    const chain::Shape shape{.options = in(TPFSDP_UNSHARD_SHARED)};
    Chain model(context, rank, shape);
    model.step(0);
    ASSERT_EQ(api::unit_info(model.block(0)).slot, api::unit_info(model.block(2)).slot);
    API(tpfsdp_module_pre_forward, model.root());
    API(tpfsdp_module_pre_forward, model.block(0));
    const Values b0 = api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL));
    if (rank == 0) {
      API(tpfsdp_module_post_forward, model.block(0));
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(API(tpfsdp_module_try_pre_forward, model.block(2)), TPFSDP_PENDING) << "rank 1 computes on it";
      meeting.arrive_and_wait();
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL)), b0);
      meeting.arrive_and_wait();
      API(tpfsdp_module_post_forward, model.block(0));
    }
    API(tpfsdp_module_pre_forward, model.block(2));
    API(tpfsdp_module_post_forward, model.block(2));
    API(tpfsdp_module_post_forward, model.root());
    model.reset();
    model.step(1);
  });
}

// Shards that peers compute on are not written before they have resharded. An interrupt of that wait posts nothing.
TEST(UnshardModesOf, MappedShardsAreWrittenWhenNobodyComputesOnThem) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    const chain::Shape shape{.options = in(TPFSDP_UNSHARD_MAPPED)};
    Chain model(context, rank, shape);
    model.step(0);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    if (rank == 0) {
      const api::Error error = caught([&] { API(tpfsdp_shards_begin_write, model.root()); });
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
      EXPECT_THAT(error.what(), HasSubstr("unit(s) b0 are full where a write window is to open"));
      API(tpfsdp_fsdp_module_reshard, model.block(0));
      tpfsdp_interrupt_callback interrupt{};
      interrupt.call = [](void *, const tpfsdp_interrupt_args *) -> tpfsdp_status { return -1; };
      API(tpfsdp_context_set_interrupt, context, &interrupt);
      EXPECT_EQ(caught([&] { API(tpfsdp_shards_begin_write, model.root()); }).status, TPFSDP_ERR_CANCELLED);
      API(tpfsdp_context_set_interrupt, context, nullptr);
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      API(tpfsdp_fsdp_module_reshard, model.block(0));
    }
    API(tpfsdp_shards_begin_write, model.root());
    API(tpfsdp_shards_end_write, model.root());
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, shape));
    }
  });
}

// What it brings is old, whoever has not waited for it; where nothing is brought, it would change.
TEST(UnshardModesOf, AGatherThatIsPostedBeforeAWindowDoesNotCountAfterIt) {
  for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, {.options = in(mode)});
      model.step(0);
      tpfsdp_work *work = nullptr;
      API(tpfsdp_fsdp_module_unshard, model.block(0), &work);
      const api::Owned<tpfsdp_work> held(work);
      if (mode == TPFSDP_UNSHARD_MAPPED) {
        const api::Error error = caught([&] { API(tpfsdp_shards_begin_write, model.root()); });
        EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
        EXPECT_THAT(error.what(), HasSubstr("unit(s) b0"));
        API(tpfsdp_work_wait, work, nullptr);
      } else {
        API(tpfsdp_shards_begin_write, model.root());
        const tpfsdp_view shard = api::face(model.weight(1), TPFSDP_FACE_SHARD);
        std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), static_cast<float>(rank + 5));
        API(tpfsdp_shards_end_write, model.root());
        API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
        const Values full = api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL));
        EXPECT_EQ(full.front(), 5);
        EXPECT_EQ(full.back(), 6);
      }
      API(tpfsdp_fsdp_module_reshard, model.block(0));
      model.step(1);
    });
  }
}

// Its shards are private: what is full goes stale, and comes again to the same place.
TEST(UnshardModesOf, SharedUnitsGoStaleInAnExplicitWindow) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.options = in(TPFSDP_UNSHARD_SHARED)});
    model.step(0);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    const tpfsdp_view before = api::face(model.weight(1), TPFSDP_FACE_FULL);
    API(tpfsdp_shards_begin_write, model.root());
    const tpfsdp_view shard = api::face(model.weight(1), TPFSDP_FACE_SHARD);
    std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), static_cast<float>(rank + 5));
    API(tpfsdp_shards_end_write, model.root());
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    const tpfsdp_view after = api::face(model.weight(1), TPFSDP_FACE_FULL);
    EXPECT_EQ(after.data, before.data);
    EXPECT_EQ(api::values_of<float>(after).front(), 5);
    EXPECT_EQ(api::values_of<float>(after).back(), 6);
    API(tpfsdp_fsdp_module_reshard, model.block(0));
  });
}

TEST(UnshardModesOf, SharedMemoryUnderAPinIsNotFilledAgain) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    const chain::Shape shape{.options = in(TPFSDP_UNSHARD_SHARED)};
    Chain model(context, rank, shape);
    model.step(0);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    tpfsdp_unit *unit = nullptr;
    API(tpfsdp_fsdp_module_get_unit, model.block(0), 0, &unit);
    if (rank == 1) API(tpfsdp_unit_pin, unit);
    API(tpfsdp_fsdp_module_reshard, model.block(0));
    const api::Error error = caught([&] { API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr); });
    EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit b0 cannot be gathered again: 1 pin(s)"), HasSubstr("mode shared")));
    if (rank == 1) API(tpfsdp_unit_unpin, unit);
    model.reset();
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, shape));
    }
  });
}

// The release of a mapped unit is put off with its reshard: a peer's window waits for the unpin.
TEST(UnshardModesOf, MappedMemoryUnderAPinIsGatheredAgainAndReleasedLate) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.options = in(TPFSDP_UNSHARD_MAPPED)});
    model.step(0);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    tpfsdp_unit *unit = nullptr;
    API(tpfsdp_fsdp_module_get_unit, model.block(0), 0, &unit);
    if (rank == 1) API(tpfsdp_unit_pin, unit);
    for (int i = 0; i < 2; ++i) {
      API(tpfsdp_fsdp_module_reshard, model.block(0));
      API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    }
    API(tpfsdp_fsdp_module_reshard, model.block(0));
    EXPECT_EQ(api::unit_info(model.block(0)).unshards, 5);
    if (rank == 0) {
      tpfsdp_interrupt_callback interrupt{};
      interrupt.call = [](void *, const tpfsdp_interrupt_args *) -> tpfsdp_status { return -1; };
      API(tpfsdp_context_set_interrupt, context, &interrupt);
      EXPECT_EQ(caught([&] { API(tpfsdp_shards_begin_write, model.root()); }).status, TPFSDP_ERR_CANCELLED);
      API(tpfsdp_context_set_interrupt, context, nullptr);
      meeting.arrive_and_wait();
    } else {
      EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_UNSHARDED);
      meeting.arrive_and_wait();
      API(tpfsdp_unit_unpin, unit);
    }
    API(tpfsdp_shards_begin_write, model.root());
    API(tpfsdp_shards_end_write, model.root());
    model.step(1);
  });
}

// It would write what others still read.
TEST(UnshardModesOf, AGradReducedCallbackOfAMappedUnitThatStaysFullIsRefused) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 1, .options = in(TPFSDP_UNSHARD_MAPPED)});
    model.step(0);
    tpfsdp_grad_reduced_callback callback{};
    callback.call = [](void *, const tpfsdp_grad_reduced_args *) -> tpfsdp_status { return TPFSDP_OK; };
    API(tpfsdp_param_set_grad_reduced_callback, model.weight(1), &callback);
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.block(0), 0, 0);
    const api::Error error = caught([&] {
      model.backward(model.forward(1));
      model.end();
    });
    EXPECT_THAT(error.status, testing::AnyOf(TPFSDP_ERR_STATE, TPFSDP_ERR_REMOTE));
    EXPECT_THAT(error.what(), HasSubstr("still in use"));
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.block(0), 1, 0);
    model.reset();
    model.step(1);
  });
}

// Memory of all ranks together is made once: freezing plans anew, but not that.
TEST(UnshardModesOf, CommonSlotsStayWhereThePlanIsTheSame) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.options = in(TPFSDP_UNSHARD_SHARED)});
    model.step(0);
    const auto place_of = [&] {
      API(tpfsdp_fsdp_module_unshard, model.block(1), nullptr);
      const void *place = api::face(model.weight(2), TPFSDP_FACE_FULL).data;
      API(tpfsdp_fsdp_module_reshard, model.block(1));
      return place;
    };
    const void *before = place_of();
    API(tpfsdp_module_set_requires_grad, model.block(0), 0);
    model.layers[1].weight_trains = model.layers[1].bias_trains = false;
    take_counters(context);
    API(tpfsdp_root_prepare, model.root());
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.all_gathers + counters.other_collectives, 0);
    EXPECT_EQ(place_of(), before);
    model.step(1);
  });
}

// What the plan did not foresee is memory of one rank: making common memory takes all of them.
TEST(UnshardModesOf, SpareSlotsArePrivate) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.options = in(TPFSDP_UNSHARD_SHARED)});
    model.step(0);
    ASSERT_EQ(api::unit_info(model.block(0)).slot, api::unit_info(model.block(2)).slot);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    take_counters(context);
    API(tpfsdp_fsdp_module_unshard, model.block(2), nullptr);
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.spare_slots, 1);
    EXPECT_GT(counters.wire_bytes, 0);
    EXPECT_EQ(counters.filled_bytes, 0);
    EXPECT_EQ(api::face(model.weight(3), TPFSDP_FACE_FULL).read_only, 0);
    for (const size_t block : {0u, 2u}) API(tpfsdp_fsdp_module_reshard, model.block(block));
    model.step(1);
  });
}

// A rank that fails while others go on: after a reset common slots are made anew by all.
TEST_P(UnshardModes, AFailureBeforeTheFirstStepEndsIsRepaired) {
  for (const char *where : {"forward b1", "backward b2", "end"}) {
    SCOPED_TRACE(where);
    on_ranks(3, [&](tpfsdp_context *context, int32_t rank) {
      const chain::Shape shape{.options = in(GetParam())};
      Chain model(context, rank, shape);
      model.at = [&](const std::string &point) {
        if (rank == 1 && point == where) throw api::Error(TPFSDP_ERR_CALLBACK, 1, "a bug of the host");
      };
      const api::Error error = caught([&] { model.step(0); });
      if (rank == 1) API(tpfsdp_root_fail, model.root(), error.what());
      EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_CALLBACK : TPFSDP_ERR_REMOTE);
      model.at = [](const std::string &) {};
      model.reset();
      model.expect_idle();
      for (int i = 0; i < 2; ++i) model.step(i);
      const Values full = model.full();
      if (rank == 0) {
        EXPECT_EQ(full, chain::clean_run(3, 2, shape));
      }
    });
  }
}

}  // namespace
