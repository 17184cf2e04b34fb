// SPDX-License-Identifier: Apache-2.0
// What the setters change, exactly, and from when on.
#include "order.hpp"

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using chain::take_counters;
using order::Host;

tpfsdp_fsdp_module_info info_of(tpfsdp_module *module) {
  tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
  API(tpfsdp_fsdp_module_get_info, module, &info);
  return info;
}

struct Reshard {
  const char *name;
  tpfsdp_reshard_kind built, set;  // set 0: nothing is
  bool recurse;
  int64_t backward_gathers;
};

class SetReshardAfterForward : public testing::TestWithParam<Reshard> {};

TEST_P(SetReshardAfterForward, set_reshard_after_forward) {
  const Reshard tested = GetParam();
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3, .reshard = tested.built, .root_reshard = tested.built});
    if (tested.set != 0)
      API(tpfsdp_fsdp_module_set_reshard_after_forward, model.root(), tested.set, tested.recurse ? 1 : 0);
    for (int i = 0; i < 3; ++i) {
      const chain::Values y = model.forward(i);
      take_counters(context);
      model.backward(y);
      model.end();
      EXPECT_EQ(take_counters(context).all_gathers, tested.backward_gathers);
      model.expect_idle();
      model.sgd();
    }
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, SetReshardAfterForward,
                         testing::Values(Reshard{"true_recurse", TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_ALWAYS, true, 4},
                                         Reshard{"true_alone", TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_ALWAYS, false, 1},
                                         Reshard{"false_recurse", TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER, true, 0},
                                         Reshard{"false_alone", TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER, false, 3},
                                         Reshard{"untouched", TPFSDP_RESHARD_AUTO, 0, false, 3},
                                         Reshard{"automatic_ends", TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_ALWAYS, false,
                                                 4}),
                         [](const auto &tested) { return std::string(tested.param.name); });

// Between the steps of one program: each plan has the slots of its policy, and the numbers do not change.
TEST(Switches, partial_group_reshard_toggle) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3});
    for (int i = 0; i < 6; ++i) {
      const auto kind = i % 2 == 0 ? TPFSDP_RESHARD_NEVER : TPFSDP_RESHARD_ALWAYS;
      API(tpfsdp_fsdp_module_set_reshard_after_forward, model.root(), kind, 1);
      model.step(i);
      EXPECT_EQ(api::memory(model.root()).slot_count, api::slots_of_suite(kind == TPFSDP_RESHARD_NEVER ? 4 : 3));
      EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
    }
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 6));
}

TEST(Switches, APolicyThatChangesInsideAStepHoldsForIt) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3});
    model.step(0);
    const chain::Values y = model.forward(1);
    API(tpfsdp_fsdp_module_set_reshard_after_forward, model.root(), TPFSDP_RESHARD_NEVER, 1);
    model.backward(y);
    model.end();
    model.sgd();
    EXPECT_EQ(api::memory(model.root()).slot_count, api::slots_of_suite(3));
    model.step(2);
    EXPECT_EQ(api::memory(model.root()).slot_count, api::slots_of_suite(4));
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 3));
}

TEST(Switches, EveryOneIsReadBack) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 2});
    for (tpfsdp_module *module : {model.root(), model.block(0)}) {
      const tpfsdp_fsdp_module_info info = info_of(module);
      EXPECT_EQ(info.reshard_after_forward.kind, TPFSDP_RESHARD_AUTO);
      EXPECT_EQ(info.reshard_after_backward, 1);
      EXPECT_EQ(info.requires_gradient_sync, 1);
      EXPECT_EQ(info.is_last_backward, 1);
      EXPECT_EQ(info.manual_backward_finalization, 0);
      EXPECT_EQ(info.unshard_in_backward, 1);
      EXPECT_EQ(info.reduce_unused_params, 0);
    }
    tpfsdp_module *const root = model.root();
    API(tpfsdp_fsdp_module_set_reshard_after_forward, root, TPFSDP_RESHARD_NEVER, 0);
    API(tpfsdp_fsdp_module_set_reshard_after_backward, root, 0, 1);
    API(tpfsdp_fsdp_module_set_requires_gradient_sync, root, 0, 0);
    API(tpfsdp_fsdp_module_set_is_last_backward, model.block(1), 0);
    API(tpfsdp_fsdp_module_set_manual_backward_finalization, root, 1);
    API(tpfsdp_fsdp_module_set_unshard_in_backward, model.block(0), 0);
    API(tpfsdp_fsdp_module_set_reduce_scatter_unused_params, root, 1, 1);
    const tpfsdp_fsdp_module_info of_root = info_of(root), of_block = info_of(model.block(0));
    EXPECT_EQ(of_root.reshard_after_forward.kind, TPFSDP_RESHARD_NEVER);
    EXPECT_EQ(of_block.reshard_after_forward.kind, TPFSDP_RESHARD_AUTO);
    EXPECT_EQ(of_root.reshard_after_backward + of_block.reshard_after_backward, 0);
    EXPECT_EQ(of_root.requires_gradient_sync, 0);
    EXPECT_EQ(of_block.requires_gradient_sync, 1);
    EXPECT_EQ(of_root.is_last_backward + of_block.is_last_backward, 0);
    EXPECT_EQ(of_root.manual_backward_finalization, 1);
    EXPECT_EQ(of_root.unshard_in_backward, 1);
    EXPECT_EQ(of_block.unshard_in_backward, 0);
    EXPECT_EQ(of_root.reduce_unused_params + of_block.reduce_unused_params, 2);
  });
}

TEST(Switches, WrongUseIsRefused) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 2});
    api::Tree other(context);
    other.param<float>(other.root, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    const auto expect = [](tpfsdp_status status, const char *text, const std::function<void()> &call) {
      const api::Error error = caught(call);
      EXPECT_EQ(error.status, status) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(text));
    };
    expect(TPFSDP_ERR_STATE, "not sharded",
           [&] { API(tpfsdp_fsdp_module_set_requires_gradient_sync, other.root, 0, 1); });
    expect(TPFSDP_ERR_STATE, "not sharded",
           [&] { API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, model.root(), &other.root, 1); });
    for (const int32_t kind : std::initializer_list<int32_t>{TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_SIZE, 17, -1})
      expect(TPFSDP_ERR_INVALID_ARGUMENT, "kind is",
             [&] { API(tpfsdp_fsdp_module_set_reshard_after_forward, model.root(), kind, 1); });
    expect(TPFSDP_ERR_STATE, "is for the root",
           [&] { API(tpfsdp_fsdp_module_set_manual_backward_finalization, model.block(0), 1); });
    other.shard({other.root});
    API(tpfsdp_root_prepare, other.root);
    API(tpfsdp_root_prepare, model.root());
    expect(TPFSDP_ERR_INVALID_ARGUMENT, "another root",
           [&] { API(tpfsdp_fsdp_module_set_modules_to_backward_prefetch, model.root(), &other.root, 1); });
    const chain::Values y = model.forward(0);
    model.at = [&](const std::string &point) {
      if (point == "in backward b0")
        expect(TPFSDP_ERR_STATE, "inside a backward",
               [&] { API(tpfsdp_fsdp_module_set_manual_backward_finalization, model.root(), 1); });
    };
    model.backward(y);
    model.end();
  });
}

TEST(Switches, AModuleThatEndsFallsOutOfTheLists) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Host host(context, true);
    {
      api::Tree passing(context);
      passing.param<float>(passing.root, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
      passing.shard({passing.root});
      host.shard({""}, TPFSDP_RESHARD_ALWAYS);
      API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, host.at(""), &passing.root, 1);
    }
    host.forward("");
    host.backward("");
    API(tpfsdp_module_end_backward, host.at(""));
    EXPECT_TRUE(api::has_grad(host.param("")));
  });
}

TEST(Switches, set_unshard_in_backward) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, true);
        for (const char *path : {"a", "b"}) {
          host.add(path);
          host.shard({path}, TPFSDP_RESHARD_ALWAYS);
        }
        host.shard({""}, TPFSDP_RESHARD_ALWAYS);
        API(tpfsdp_fsdp_module_set_unshard_in_backward, host.at("a"), 0);
        API(tpfsdp_module_pre_forward, host.at(""));
        for (const char *path : {"a", "b"}) host.forward(path);
        API(tpfsdp_module_post_forward, host.at(""));
        order::take(context, "U");
        host.before("");
        host.backward("b");
        host.before("a");
        const api::Error error = caught([&] { api::face(host.param("a"), TPFSDP_FACE_FULL); });
        EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
        host.after("a");  // its gradient needs no parameters
        API(tpfsdp_module_end_backward, host.at(""));
        EXPECT_EQ(order::take(context, "U"), "U <root> B, U b B");
        EXPECT_TRUE(api::has_grad(host.param("a")));
      },
      512);
}

TEST(Switches, set_manual_backward_finalization) {
  for (const bool async : {false, true}) {
    const auto two_steps = [&](tpfsdp_context *context, int32_t rank) {
      const auto windows = [&] { return chain::count_lines(chain::take_events(context), "WRITE open"); };
      Chain model(context, rank, {.blocks = 2});
      API(tpfsdp_fsdp_module_finalize_backward, model.root(), nullptr);  // before the first forward: no effect
      API(tpfsdp_fsdp_module_set_manual_backward_finalization, model.root(), 1);
      for (int i = 0; i < 2; ++i) {
        for (int micro = 0; micro < 2; ++micro) {
          model.backward(model.forward(2 * i + micro));
          model.end();
          EXPECT_EQ(windows(), 0);
        }
        if (async) {
          tpfsdp_work *work = nullptr;
          API(tpfsdp_fsdp_module_finalize_backward, model.root(), &work);
          const api::Owned<tpfsdp_work> held(work);
          API(tpfsdp_work_wait, work, nullptr);
        } else {
          API(tpfsdp_fsdp_module_finalize_backward, model.root(), nullptr);
        }
        EXPECT_EQ(windows(), 1);
        EXPECT_TRUE(api::has_grad(model.weight(0)));
        model.sgd();
      }
      model.expect_idle();
    };
    on_ranks(2, two_steps, 512);
  }
}

// B029: the layout of a unit does not depend on which gradients there are; B028: missing ones count as zero.
TEST(Switches, B028_B029_set_reduce_scatter_unused_params) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *a = tree.param<float>(tree.root, "a", TPFSDP_DTYPE_F32, {3}, {1, 1, 1});
    tpfsdp_param *b = tree.param<float>(tree.root, "b", TPFSDP_DTYPE_F32, {5}, {1, 1, 1, 1, 1});
    tree.shard({tree.root});
    API(tpfsdp_fsdp_module_set_reduce_scatter_unused_params, tree.root, 1, 1);
    API(tpfsdp_module_pre_forward, tree.root);
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, rank == 0 ? a : b, 0, &grad);
    std::fill_n(static_cast<float *>(grad.data), api::count_of(grad), rank == 0 ? 2.0F : 4.0F);
    API(tpfsdp_param_grad_ready, rank == 0 ? a : b);
    API(tpfsdp_module_end_backward, tree.root);
    for (const auto &[param, expected] : {std::pair{a, 1.0F}, std::pair{b, 2.0F}}) {
      const tpfsdp_view shard = api::face(param, TPFSDP_FACE_GRAD);
      for (int64_t i = 0; i < api::count_of(shard); ++i) EXPECT_EQ(static_cast<const float *>(shard.data)[i], expected);
    }
  });
}

// A unit that only one rank has gradients of; its backward ends on both, at the same place.
TEST(Switches, AUnitThatOneRankHasNothingForIsReducedOnBoth) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Host host(context, true);
    host.add("a");
    host.shard({"a"}, TPFSDP_RESHARD_NEVER);
    host.shard({""}, TPFSDP_RESHARD_NEVER);
    API(tpfsdp_fsdp_module_set_reduce_scatter_unused_params, host.at(""), 1, 1);
    API(tpfsdp_module_pre_forward, host.at(""));
    host.forward("a");
    API(tpfsdp_module_post_forward, host.at(""));
    host.before("");
    host.before("a");
    if (rank == 0) host.give_gradient("a");
    API(tpfsdp_module_post_backward, host.at("a"));
    host.give_gradient("");
    API(tpfsdp_module_end_backward, host.at(""));
    EXPECT_EQ(static_cast<const float *>(api::face(host.param("a"), TPFSDP_FACE_GRAD).data)[0], 0.5F);
    EXPECT_EQ(static_cast<const float *>(api::face(host.param(""), TPFSDP_FACE_GRAD).data)[0], 1);
  });
}

// B047: a recomputation gathers nothing that follows in forward.
TEST(Switches, B047_ARecomputationDoesNotPrefetchForward) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, false);
        for (const char *path : {"a", "b"}) {
          host.add(path);
          host.shard({path}, TPFSDP_RESHARD_ALWAYS);
        }
        host.shard({""}, TPFSDP_RESHARD_ALWAYS);
        tpfsdp_module *const next = host.at("b");
        API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, host.at("a"), &next, 1);
        API(tpfsdp_module_pre_forward, host.at(""));
        for (const char *path : {"a", "b"}) host.forward(path);
        API(tpfsdp_module_post_forward, host.at(""));
        host.before("");
        for (const char *path : {"b", "a"}) {
          host.before(path);
          host.forward(path);
          host.after(path);
        }
        API(tpfsdp_module_end_backward, host.at(""));
        EXPECT_EQ(order::take(context, "U"), "U a F, U b F, U b B, U a B");
        EXPECT_EQ(api::unit_info(host.at("a")).sharded_state, TPFSDP_SHARDED_SHARDED);
        EXPECT_EQ(api::unit_info(host.at("b")).sharded_state, TPFSDP_SHARDED_SHARDED);
      },
      512);
}

// A member of a list that runs alone, outside the root's forward: gathered and freed for each run.
TEST(Switches, partial_group_forward_then_standalone) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Host host(context, true);
    for (const char *path : {"norm", "head"}) host.add(path);
    host.shard({"norm", "head"}, TPFSDP_RESHARD_ALWAYS);
    host.shard({""}, TPFSDP_RESHARD_ALWAYS);
    API(tpfsdp_fsdp_module_set_is_last_backward, host.at(""), 0);
    API(tpfsdp_module_pre_forward, host.at(""));
    host.forward("norm");
    API(tpfsdp_module_post_forward, host.at(""));
    EXPECT_EQ(api::unit_info(host.at("head")).sharded_state, TPFSDP_SHARDED_SHARDED);
    for (int chunk = 0; chunk < 3; ++chunk) {
      host.forward("head");
      EXPECT_EQ(api::unit_info(host.at("head")).sharded_state, TPFSDP_SHARDED_SHARDED);
      host.before("head");
      host.give_gradient("head");
      API(tpfsdp_module_end_backward, host.at(""));
    }
    API(tpfsdp_fsdp_module_set_is_last_backward, host.at(""), 1);
    host.before("");
    host.before("norm");
    host.give_gradient("norm");
    host.give_gradient("");
    API(tpfsdp_module_end_backward, host.at(""));
    EXPECT_EQ(static_cast<const float *>(api::face(host.param("head"), TPFSDP_FACE_GRAD).data)[0], 3);
    EXPECT_EQ(static_cast<const float *>(api::face(host.param("norm"), TPFSDP_FACE_GRAD).data)[0], 1);
  });
}

// B048: what forward prefetched and nobody used is given up when the step ends.
TEST(Switches, B048_APrefetchThatNobodyUsesEndsWithTheStep) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3});
    tpfsdp_module *const wrong = model.block(0);
    API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, model.block(2), &wrong, 1);
    for (int i = 0; i < 3; ++i) {
      model.step(i);
      model.expect_idle();
    }
    for (tpfsdp_bool grad : {0, 1}) {
      API(tpfsdp_module_set_grad_enabled, model.root(), grad);
      if (grad == 0) model.forward(7);
    }
    model.step(3);
    model.expect_idle();
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 4));
}

}  // namespace
