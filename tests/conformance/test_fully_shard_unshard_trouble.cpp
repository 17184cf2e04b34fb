// SPDX-License-Identifier: Apache-2.0
// Common memory when something changes under it: plans made anew, writes inside backward, failures and resets, other
// trees and other groups.
#include "support/modes.hpp"

#include <sched.h>

#include <array>
#include <atomic>

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
using modes::full_values;
using modes::reshard;
using modes::unshard;
using testing::AllOf;

// ---- Plans ------------------------------------------------------------------------------------------------------

// Addresses of all blocks' full weights.
std::vector<const void *> addresses(chain::Chain &model) {
  std::vector<const void *> out;
  for (size_t block = 0; block < 3; ++block) {
    unshard(model.block(block));
    out.push_back(api::face(model.weight(block + 1), TPFSDP_FACE_FULL).data);
    reshard(model.block(block));
  }
  return out;
}

// Rank 0 plans anew while rank 1 stays away, so that it is no collective.
TEST_P(Common, FreezingPlansAnewAndKeepsWhatIsCommon) {
  Meeting meeting(2);
  const auto train = [&](tpfsdp_unshard_mode mode, chain::SharedValues &out) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(mode));
      model.step(0);
      const std::vector<const void *> before = addresses(model);
      const tpfsdp_memory_info memory = api::memory(model.root());
      for (const bool trains : {false, true}) {
        API(tpfsdp_param_set_requires_grad, model.weight(1), trains ? 1 : 0);
        model.layers[1].weight_trains = trains;
        take_counters(context);
        if (rank == 1) meeting.arrive_and_wait();
        API(tpfsdp_root_prepare, model.root());
        if (rank == 0) meeting.arrive_and_wait();
        const tpfsdp_counters counters = take_counters(context);
        EXPECT_EQ(counters.all_gathers + counters.all_reduces + counters.reduce_scatters + counters.other_collectives,
                  0);
        EXPECT_EQ(counters.wire_bytes + counters.filled_bytes + counters.copies, 0);
        EXPECT_EQ(api::memory(model.root()).slot_bytes, memory.slot_bytes);
        EXPECT_LE(api::memory(model.root()).total_bytes, memory.total_bytes);
        EXPECT_EQ(addresses(model), before);
        model.step(trains ? 2 : 1);
      }
      EXPECT_EQ(api::memory(model.root()).total_bytes, memory.total_bytes);
      const Values full = model.full();
      if (rank == 0) out = full;
    });
  };
  chain::SharedValues common, copies;
  train(GetParam(), common);
  train(TPFSDP_UNSHARD_PRIVATE, copies);
  EXPECT_EQ(common.get(), copies.get());
}

// A plan with other slots is made together, and the old memory goes.
TEST_P(Common, ASwitchOfThePolicyMakesCommonMemoryAnew) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(GetParam(), 4));
    const int64_t full_bytes = 128 + 20;
    const auto part = [rank](int64_t bytes) { return bytes / 2 + (rank < bytes % 2 ? 1 : 0); };
    const bool has_slots = GetParam() == TPFSDP_UNSHARD_SHARED;
    int iteration = 0;
    for (const auto &[kind, slots] : {std::pair(TPFSDP_RESHARD_ALWAYS, 3), std::pair(TPFSDP_RESHARD_NEVER, 5),
                                      std::pair(TPFSDP_RESHARD_ALWAYS, 3)}) {
      for (size_t block = 0; block < 4; ++block)
        API(tpfsdp_fsdp_module_set_reshard_after_forward, model.block(block), kind, 0);
      model.step(iteration++);
      EXPECT_EQ(api::memory(model.root()).slot_bytes, has_slots ? slots * part(full_bytes) : 0);
      EXPECT_EQ(api::memory(model.root()).total_bytes, api::memory(model.root()).planned_peak_bytes);
    }
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3, {.blocks = 4}));
    }
  });
}

// ---- Writes inside backward -------------------------------------------------------------------------------------

// An optimizer in the callbacks of all parameters. Counts its calls.
struct Optimizer {
  explicit Optimizer(const chain::Chain &model) {
    tpfsdp_grad_reduced_callback callback{};
    callback.call = apply;
    callback.user = this;
    for (const toy::Layer<float> &layer : model.layers) {
      API(tpfsdp_param_set_grad_reduced_callback, layer.weight, &callback);
      API(tpfsdp_param_set_grad_reduced_callback, layer.bias, &callback);
    }
  }
  static tpfsdp_status apply(void *user, const tpfsdp_grad_reduced_args *args) {
    ++static_cast<Optimizer *>(user)->calls;
    tpfsdp_view shard{}, grad{};
    if (tpfsdp_param_get_view(args->param, TPFSDP_FACE_SHARD, &shard, nullptr) != TPFSDP_OK) return -1;
    if (tpfsdp_param_get_view(args->param, TPFSDP_FACE_GRAD, &grad, nullptr) != TPFSDP_OK) return -2;
    for (int64_t i = 0; i < api::count_of(shard); ++i)
      static_cast<float *>(shard.data)[i] -= static_cast<const float *>(grad.data)[i] / 64;
    return TPFSDP_OK;
  }
  int calls = 0;
};

void step_with_callbacks(chain::Chain &model, int iteration) {
  model.backward(model.forward(iteration));
  model.end();
  API(tpfsdp_module_zero_grad, model.root(), 1);
}

TEST_P(Common, CallbacksThatWriteShardsTrainToTheSameBits) {
  for (const int32_t world : {2, 3}) {
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(GetParam()));
      Optimizer optimizer(model);
      for (int i = 0; i < 4; ++i) step_with_callbacks(model, i);
      EXPECT_EQ(optimizer.calls, 4 * 8);
      const Values full = model.full();
      if (rank == 0) {
        EXPECT_EQ(full, chain::clean_run(world, 4));
      }
    });
  }
}

// A unit that stays full after its backward is what peers may compute on: its callback does not come to run.
TEST(Mapped, ACallbackOfAUnitThatStaysFullIsRefused) {
  const chain::Shared<std::atomic<int>> refused(0);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    Optimizer optimizer(model);
    step_with_callbacks(model, 0);
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 0, 1);
    optimizer.calls = 0;
    const api::Error error = caught([&] { step_with_callbacks(model, 1); });
    EXPECT_EQ(optimizer.calls, 0);
    // Who comes to it first tells the other, which may be there, too.
    EXPECT_TRUE(error.status == TPFSDP_ERR_STATE || error.status == TPFSDP_ERR_REMOTE) << error.what();
    if (error.status == TPFSDP_ERR_STATE) ++*refused;
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("unit 'b"), HasSubstr("is still in use on"), HasSubstr("reshard it first")));
    API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), 1, 1);
    model.reset();
    for (int i = 1; i < 3; ++i) step_with_callbacks(model, i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
  EXPECT_GE(refused->load(), 1);
}

// ---- Failures ---------------------------------------------------------------------------------------------------

// Rank 1 fails at `point` of step `in_step`; all reset, and train on.
void fail_at(tpfsdp_unshard_mode mode, int in_step, const std::string &point) {
  SCOPED_TRACE(point + " of step " + std::to_string(in_step));
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(mode));
    API(tpfsdp_root_prepare, model.root());
    const tpfsdp_memory_info before = api::memory(model.root());
    for (int i = 0; i < in_step; ++i) model.step(i);
    if (rank == 1) {
      model.at = [&](const std::string &here) {
        if (here == point) API(tpfsdp_root_fail, model.root(), "planted");
      };
    }
    if (rank == 1 && point == "start") {
      API(tpfsdp_root_fail, model.root(), "planted");
    } else {
      const api::Error error = caught([&] { model.step(in_step); });
      EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("planted"));
    }
    model.at = [](const std::string &) {};
    model.reset();
    model.expect_idle();
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    for (int i = in_step; i < 4; ++i) model.step(i);
    EXPECT_EQ(take_counters(context).spare_slots, 0);
    const tpfsdp_memory_info after = api::memory(model.root());
    EXPECT_EQ(after.slot_bytes, before.slot_bytes);
    EXPECT_EQ(after.total_bytes, before.total_bytes);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 4));
    }
  });
}

TEST_P(Common, AFailureBetweenThePlanAndTheFirstStepsEndIsRepaired) {
  for (const char *point : {"start", "forward b0", "in forward b1", "backward b1", "end"})
    fail_at(GetParam(), 0, point);
}

TEST_P(Common, AFailureInTheMiddleOfAStepIsRepaired) {
  for (const char *point : {"start", "in forward b0", "forward b2", "in backward b2", "backward b0", "end"})
    fail_at(GetParam(), 2, point);
}

// One rank has never made the plan when the other fails with common slots in its hands: both make them anew.
TEST(Shared, ARankThatHasNoPlanYetAndOneThatHasMeetAgain) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED));
    if (rank == 0) {
      const chain::Interrupt interrupt(context);
      EXPECT_EQ(caught([&] { API(tpfsdp_root_prepare, model.root()); }).status, TPFSDP_ERR_CANCELLED);
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(caught([&] { API(tpfsdp_root_prepare, model.root()); }).status, TPFSDP_ERR_REMOTE);
    }
    model.reset();
    for (int i = 0; i < 2; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

// ---- Several trees, several groups ------------------------------------------------------------------------------

TEST(UnshardModes, TreesOfAllModesShareAGroupAndGoInAnyOrder) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    const std::array<tpfsdp_unshard_mode, 3> kinds{modes::kShared, modes::kMapped, modes::kPrivate};
    std::vector<std::unique_ptr<chain::Chain>> models;
    for (const tpfsdp_unshard_mode mode : kinds)
      models.push_back(std::make_unique<chain::Chain>(context, rank, modes::shape(mode, 2)));
    for (int i = 0; i < 2; ++i) {
      // One inside the other.
      const Values y = models[0]->forward(i);
      const Values z = models[1]->forward(i);
      models[2]->step(i);
      models[0]->backward(y);
      models[1]->backward(z);
      models[1]->end();
      models[0]->end();
      models[0]->sgd();
      models[1]->sgd();
    }
    const Values clean = chain::clean_run(2, 2, {.blocks = 2});
    for (const auto &model : models) EXPECT_EQ(model->full(), clean);
    // The first ends in the middle of a step, with units full: nobody waits for what it held.
    unshard(models[0]->block(0));
    models[0].reset();
    models[1]->step(2);
    unshard(models[2]->block(0));
    models[2].reset();
    models[1]->step(3);
    EXPECT_EQ(models[1]->full(), chain::clean_run(2, 4, {.blocks = 2}));
    models[1].reset();
    chain::Chain again(context, rank, modes::shape(TPFSDP_UNSHARD_SHARED, 2));
    for (int i = 0; i < 2; ++i) again.step(i);
    EXPECT_EQ(again.full(), clean);
  });
}

// One tree fails and is reset on the group while the other has a unit full. Its peer does not take that for a release.
TEST_P(Common, AResetOfOneTreeReleasesNothingOfAnother) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(GetParam())), other(context, rank, modes::shape(GetParam(), 1));
    model.step(0);
    other.step(0);
    unshard(model.block(0));
    const Values before = full_values(model.weight(1));
    const auto *const view = static_cast<const float *>(api::face(model.weight(1), TPFSDP_FACE_FULL).data);
    API(tpfsdp_root_fail, other.root(), "planted");
    other.reset();
    other.step(1);
    const auto try_block_2 = [&] {  // where block 0 lies
      return api::check([&](tpfsdp_error **error) { return tpfsdp_module_try_pre_forward(model.block(2), error); });
    };
    if (rank == 1) {
      reshard(model.block(0));
      if (GetParam() == TPFSDP_UNSHARD_SHARED) {
        EXPECT_EQ(try_block_2(), TPFSDP_PENDING);
      } else {
        expect_waits(context, [&] { begin_write(model); });
      }
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(Values(view, view + 25), before);
      reshard(model.block(0));
    }
    if (GetParam() == TPFSDP_UNSHARD_SHARED) {
      while (try_block_2() == TPFSDP_PENDING) sched_yield();
      API(tpfsdp_module_post_forward, model.block(2));
      model.reset();  // of that forward nothing is left
    } else {
      begin_write(model);
      end_write(model);
    }
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

// A pin outlives the reset of its own tree, and so does what it holds.
TEST(Mapped, APinOutlivesAResetAndTheWriteStillWaits) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_MAPPED));
    model.step(0);
    unshard(model.block(1));
    if (rank == 1) API(tpfsdp_unit_pin, modes::unit_of(model.block(1)));
    API(tpfsdp_root_fail, model.root(), "planted");
    model.reset();
    EXPECT_EQ(modes::is_full(model.block(1)), rank == 1);
    if (rank == 0) {
      expect_waits(context, [&] { begin_write(model); });
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      API(tpfsdp_unit_unpin, modes::unit_of(model.block(1)));
    }
    begin_write(model);
    end_write(model);
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

// Ranks {0, 1} and {2, 3} or {0, 2} and {1, 3}: a group each of its own memory.
Values train_on_grid(tpfsdp_unshard_mode roots, tpfsdp_unshard_mode blocks, int fails_in) {
  chain::SharedValues of_rank[4];
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    const int32_t sizes[] = {2, 2};
    const char *names[] = {"column", "row"};
    tpfsdp_mesh *made = nullptr;
    API(tpfsdp_mesh_create, info.group, sizes, 2, names, 2, &made);
    const api::Owned<tpfsdp_mesh> whole(made);
    API(tpfsdp_mesh_slice, whole.get(), names, 1, &made);
    const api::Owned<tpfsdp_mesh> columns(made);
    API(tpfsdp_mesh_slice, whole.get(), names + 1, 1, &made);
    const api::Owned<tpfsdp_mesh> rows(made);
    chain::Chain model(context, rank, {.blocks = 4, .is_sharded = false});
    for (size_t i = 1; i < model.layers.size(); ++i)  // neighbours of different groups
      model.tree.shard({model.layers[i].module}, TPFSDP_RESHARD_AUTO, modes::options(blocks),
                       i % 2 == 0 ? rows.get() : columns.get());
    model.tree.shard({model.root()}, TPFSDP_RESHARD_AUTO, modes::options(roots), rows.get());
    for (int i = 0; i < 3; ++i) {
      if (i == fails_in) {
        if (rank == 3) API(tpfsdp_root_fail, model.root(), "planted");
        const api::Error error = caught([&] { model.step(i); });
        EXPECT_THAT(error.what(), HasSubstr("planted"));
        model.reset();
        model.expect_idle();
      }
      model.step(i);
    }
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
    of_rank[rank] = model.full();
  });
  Values all;
  for (const chain::SharedValues &shared : of_rank) {
    const Values values = shared.get();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_P(Common, UnitsOfSeveralGroupsHaveMemoryOfTheirOwn) {
  const Values copies = train_on_grid(TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_PRIVATE, -1);
  EXPECT_FALSE(copies.empty());
  EXPECT_EQ(train_on_grid(GetParam(), GetParam(), -1), copies);
  EXPECT_EQ(train_on_grid(TPFSDP_UNSHARD_PRIVATE, GetParam(), -1), copies);
  EXPECT_EQ(train_on_grid(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED, -1), copies);
  EXPECT_EQ(train_on_grid(GetParam(), GetParam(), 0), copies);
  EXPECT_EQ(train_on_grid(GetParam(), GetParam(), 1), copies);
}

INSTANTIATE_TEST_SUITE_P(Modes, Common, testing::Values(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED),
                         modes::name_of_test);

}  // namespace
