// SPDX-License-Identifier: Apache-2.0
// Unshard modes SHARED and MAPPED, one copy of full values a host: the bits and events of PRIVATE, what a gather moves,
// and when it may be written.
#include "support/modes.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;
using modes::begin_write;
using modes::Common;
using modes::end_write;
using modes::expect_waits;
using modes::fill_shard;
using modes::full_values;
using modes::is_full;
using modes::own_bytes;
using modes::reshard;
using modes::start_unshard;
using modes::unshard;
using testing::AllOf;

// ---- As in PRIVATE ----------------------------------------------------------------------------------------------

// Of the last rank.
struct Trace {
  chain::SharedText events;
  chain::SharedValues outputs, full;
};

void run(int32_t world, tpfsdp_unshard_mode mode, tpfsdp_reshard_kind blocks, tpfsdp_reshard_kind root, Trace &out) {
  chain::Shape shape = modes::shape(mode);
  shape.reshard = blocks;
  shape.root_reshard = root;
  on_ranks(
      world,
      [&](tpfsdp_context *context, int32_t rank) {
        chain::Chain model(context, rank, shape);
        API(tpfsdp_root_prepare, model.root());
        chain::take_events(context);  // MAPPED also compares unit by unit, before there is memory for them
        Values outputs;
        for (int i = 0; i < 4; ++i) {
          const Values y = model.forward(i);
          outputs.insert(outputs.end(), y.begin(), y.end());
          model.backward(y);
          model.end();
          model.sgd();
        }
        const std::vector<std::string> events = chain::take_events(context);
        const Values full = model.full();
        if (rank != world - 1) return;
        std::string text;
        for (const std::string &line : events) text += line + "\n";
        out.events = text;
        out.outputs = outputs;
        out.full = full;
      },
      1024);
}

TEST_P(Common, TrainsToTheBitsAndEventsOfPrivate) {
  for (const auto &[blocks, root] :
       {std::pair(TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_AUTO), std::pair(TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_ALWAYS),
        std::pair(TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_NEVER)}) {
    for (int32_t world = 1; world <= 4; ++world) {
      SCOPED_TRACE("world " + std::to_string(world) + ", reshard " + std::to_string(blocks));
      Trace common, copies;
      run(world, GetParam(), blocks, root, common);
      run(world, TPFSDP_UNSHARD_PRIVATE, blocks, root, copies);
      EXPECT_FALSE(copies.full.get().empty());
      EXPECT_EQ(common.full.get(), copies.full.get());
      EXPECT_EQ(common.outputs.get(), copies.outputs.get());
      EXPECT_EQ(common.events.text(), copies.events.text());
    }
  }
}

// ---- What it costs ----------------------------------------------------------------------------------------------

TEST_P(Common, AGatherMovesNothing) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(GetParam()));
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    for (int64_t round = 1; round <= 3; ++round) {
      for (size_t block = 0; block < 3; ++block) {
        unshard(model.block(block));
        unshard(model.block(block));  // it is full
        reshard(model.block(block));
      }
      const tpfsdp_counters counters = take_counters(context);
      EXPECT_EQ(counters.all_gathers, 3);
      EXPECT_EQ(counters.gathered_bytes, 3 * 120);
      EXPECT_EQ(counters.wire_bytes, 0);
      EXPECT_EQ(counters.filled_bytes, GetParam() == TPFSDP_UNSHARD_SHARED ? 3 * own_bytes(rank) : 0);
      EXPECT_EQ(counters.copies + counters.copied_bytes, 0);
      EXPECT_EQ(counters.spare_slots + counters.allocations, 0);
      EXPECT_EQ(counters.other_collectives + counters.all_reduces + counters.reduce_scatters, 0);
    }
    EXPECT_EQ(api::unit_info(model.block(0)).unshards, 3);
    EXPECT_EQ(api::unit_info(model.block(0)).wire_bytes, 0);
    EXPECT_EQ(api::unit_info(model.root()).wire_bytes, 0);
  });
}

// ---- Views ------------------------------------------------------------------------------------------------------

TEST_P(Common, ViewsOfFullValuesAreReadOnlyWhereOthersReadThem) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    for (const tpfsdp_unshard_mode mode : {GetParam(), modes::kPrivate}) {
      chain::Chain model(context, rank, modes::shape(mode, 1));
      unshard(model.block(0));
      EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_FULL).read_only, mode == GetParam() ? 1 : 0);
      EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_SHARD).read_only, 0);
      EXPECT_EQ(full_values(model.weight(1)), chain::weight_values(2, 25));
      reshard(model.block(0));
    }
  });
}

// ---- The end of a step ------------------------------------------------------------------------------------------

TEST_P(Common, AUnitStillFullAtTheEndOfAStepIsRefusedByName) {
  for (const bool on_both : {true, false}) {
    SCOPED_TRACE(on_both);
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(GetParam()));
      model.step(0);
      model.backward(model.forward(1));
      unshard(model.block(1));
      const bool keeps = on_both || rank == 1;
      if (!keeps) reshard(model.block(1));
      const api::Error error = caught([&] { model.end(); });
      EXPECT_EQ(error.status, keeps ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE) << error.what();
      EXPECT_EQ(error.rank, keeps ? rank : 1);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("unit(s) b1 are full at the end of a last backward"),
                                      HasSubstr("set_is_last_backward(false)")));
      model.reset();
      model.expect_idle();
      for (int i = 1; i < 3; ++i) model.step(i);
      const Values full = model.full();
      if (rank == 0) {
        EXPECT_EQ(full, chain::clean_run(2, 3));
      }
    });
  }
}

TEST_P(Common, BetweenTwoBackwardsOfAStepAUnitMayStayFull) {
  const auto train = [](tpfsdp_unshard_mode mode, chain::SharedValues &out) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(mode));
      for (int i = 0; i < 2; ++i) {
        API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), 0);
        API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 0, 1);
        model.backward(model.forward(2 * i));
        model.end();
        for (size_t block = 0; block < 3; ++block) EXPECT_TRUE(is_full(model.block(block)));
        API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), 1);
        API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 1, 1);
        take_counters(context);
        model.backward(model.forward(2 * i + 1));
        EXPECT_EQ(take_counters(context).all_gathers, 3) << "none in forward";
        model.end();
        model.expect_idle();
        model.sgd();
      }
      const Values full = model.full();
      if (rank == 0) out = full;
    });
  };
  chain::SharedValues common, copies;
  train(GetParam(), common);
  train(TPFSDP_UNSHARD_PRIVATE, copies);
  EXPECT_EQ(common.get(), copies.get());
}

// ---- Write windows ----------------------------------------------------------------------------------------------

class Scope {
 public:
  explicit Scope(tpfsdp_module *module) {
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &module, 1, nullptr, &scope);
    scope_.reset(scope);
  }
  void close() { API(tpfsdp_scope_close, scope_.get()); }

 private:
  api::Owned<tpfsdp_scope> scope_;
};

// What was gathered ahead and is not wanted after all: its forward never came.
TEST_P(Common, AWriteGivesAnUnusedPrefetchBack) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    for (const tpfsdp_unshard_mode mode : {GetParam(), modes::kPrivate}) {
      chain::Chain model(context, rank, modes::shape(mode));
      tpfsdp_module *ahead = model.block(1);
      API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, model.block(0), &ahead, 1);
      API(tpfsdp_root_prepare, model.root());
      API(tpfsdp_module_pre_forward, model.block(0));
      API(tpfsdp_module_post_forward, model.block(0));
      EXPECT_EQ(api::unit_info(ahead).unshards, 1);
      begin_write(model);
      fill_shard(model.weight(2), static_cast<float>(rank + 5));
      end_write(model);
      unshard(ahead);
      EXPECT_EQ(full_values(model.weight(2)), modes::rows(5, 6)) << modes::name_of(mode);
      reshard(ahead);
    }
  });
}

// Nobody waits for the peer and nothing is told to it: the caller reshards, and goes on.
TEST(Mapped, AWriteUnderAFullUnitIsRefusedByName) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    model.step(0);
    for (const size_t block : {0u, 2u}) unshard(model.block(block));
    if (rank == 1) {
      const api::Error error = caught([&] { begin_write(model); });
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("unit(s) b0, b2 are full where a write window is to open"),
                                      HasSubstr("reshard them first")));
    }
    for (const size_t block : {0u, 2u}) reshard(model.block(block));
    begin_write(model);
    end_write(model);
    model.step(1);
  });
}

// Posted is as good as full: peers may have it already.
TEST(Mapped, AWriteUnderAGatherIsRefusedByName) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    model.step(0);
    const auto work = start_unshard(model.block(1));
    const api::Error error = caught([&] { begin_write(model); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), HasSubstr("unit(s) b1"));
    API(tpfsdp_work_wait, work.get(), nullptr);
    reshard(model.block(1));
    begin_write(model);
    end_write(model);
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(Mapped, AWriteWaitsForThePeersThatUseWhatIsMapped) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    model.step(0);
    Scope scope(model.block(0));
    const Values before = full_values(model.weight(1));
    if (rank == 0) {
      scope.close();
      expect_waits(context, [&] { begin_write(model); });
      expect_waits(context, [&] { begin_write(model); });
      meeting.arrive_and_wait();
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(full_values(model.weight(1)), before);
      EXPECT_EQ(caught([&] { begin_write(model); }).status, TPFSDP_ERR_STATE) << "its own scope is open";
      scope.close();
      meeting.arrive_and_wait();
    }
    begin_write(model);
    fill_shard(model.weight(1), static_cast<float>(rank + 3));
    end_write(model);
    unshard(model.block(0));
    EXPECT_EQ(full_values(model.weight(1)), modes::rows(3, 4));
    reshard(model.block(0));
    model.step(1);  // the cancelled waits were told to nobody
  });
}

TEST(Shared, AWriteLeavesWhatIsFullStale) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED));
    model.step(0);
    Scope outer(model.block(0));
    const Values before = full_values(model.weight(1));
    const void *const address = api::face(model.weight(1), TPFSDP_FACE_FULL).data;
    begin_write(model);
    fill_shard(model.weight(1), static_cast<float>(rank + 5));
    end_write(model);
    EXPECT_EQ(full_values(model.weight(1)), before);
    const int64_t gathers = api::unit_info(model.block(0)).unshards;
    // A peer that is ahead gathers anew only when this rank does, too.
    Scope inner(model.block(0));
    EXPECT_EQ(api::unit_info(model.block(0)).unshards, gathers + 1);
    EXPECT_EQ(full_values(model.weight(1)), modes::rows(5, 6));
    EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_FULL).data, address);
    inner.close();
    EXPECT_TRUE(is_full(model.block(0)));
    outer.close();
    EXPECT_FALSE(is_full(model.block(0)));
    model.step(1);
  });
}

// A gather that was posted before the window has the values from before it.
TEST_P(Common, AnUnshardAfterAWindowIsNotTheOneFromBeforeIt) {
  if (GetParam() == TPFSDP_UNSHARD_MAPPED) return;  // refused, above
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    for (const tpfsdp_unshard_mode mode : {GetParam(), modes::kPrivate}) {
      chain::Chain model(context, rank, modes::shape(mode, 1));
      model.step(0);
      const auto work = start_unshard(model.block(0));
      begin_write(model);
      fill_shard(model.weight(1), static_cast<float>(rank + 5));
      end_write(model);
      unshard(model.block(0));
      EXPECT_EQ(full_values(model.weight(1)), modes::rows(5, 6)) << modes::name_of(mode);
      reshard(model.block(0));
      model.step(1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, Common, testing::Values(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED),
                         modes::name_of_test);

}  // namespace
