// SPDX-License-Identifier: Apache-2.0
// Training steps in every order that hosts drive them: nested and repeated forwards, recomputation, evaluation, parts
// of the tree alone, parameters that are tied, frozen or unused.
#include "support/single.hpp"

namespace {

using chain::on_ranks;
using chain::Single;
using chain::take_counters;
using chain::take_events;
using chain::Values;

TEST(Training, train_parity_multi_group) {
  for (const int32_t world : {1, 2, 3, 4}) {
    const Values always =
        chain::clean_run(world, 3, {.reshard = TPFSDP_RESHARD_ALWAYS, .root_reshard = TPFSDP_RESHARD_ALWAYS});
    EXPECT_EQ(always, chain::clean_run(world, 3));
    EXPECT_EQ(always,
              chain::clean_run(world, 3, {.reshard = TPFSDP_RESHARD_NEVER, .root_reshard = TPFSDP_RESHARD_NEVER}));
  }
}

TEST(Training, param_registration_after_forward) {
  for (const tpfsdp_reshard_kind kind : {TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER}) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, {.blocks = 1, .reshard = kind});
      const auto full = [&](size_t layer) {
        tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
        API(tpfsdp_param_get_info, model.weight(layer), &info);
        return info.is_unsharded != 0;
      };
      EXPECT_FALSE(full(1));
      const Values y = model.forward(0);
      EXPECT_TRUE(full(0));  // the root keeps its own
      EXPECT_EQ(full(1), kind == TPFSDP_RESHARD_NEVER);
      API(tpfsdp_fsdp_module_reshard, model.block(0));
      API(tpfsdp_fsdp_module_reshard, model.root());
      model.expect_idle();
      take_counters(context);
      model.backward(y);  // manual_reshard_with_reshard_after_forward_false: gathered again as many as were resharded
      model.end();
      EXPECT_EQ(take_counters(context).all_gathers, 2);
      model.expect_idle();
      EXPECT_FALSE(full(0) || full(1));
    });
  }
}

TEST(Training, non_root_forward_backward) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    model.step(0);
    toy::Layer<float> &inner = model.layers[2];
    const Values x(10, 0.5f);
    const Values y = toy::forward(inner, x, 2);
    API(tpfsdp_module_pre_backward, inner.module);
    toy::backward(inner, y, 2);
    API(tpfsdp_module_post_backward, inner.module);
    model.end();
    EXPECT_TRUE(api::has_grad(inner.weight));
    EXPECT_FALSE(api::has_grad(model.weight(1)));
    model.expect_idle();
    API(tpfsdp_module_zero_grad, model.root(), 1);
    // All ranks gave it the same input, so nothing else was changed: the next step is that of a run without it.
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, {.blocks = 2}));
    }
  });
}

TEST(Training, B045_TwoForwardsThenTwoBackwards) {
  for (const int32_t world : {1, 2, 3}) {
    on_ranks(
        world,
        [](tpfsdp_context *context, int32_t) {
          Single model(context, 4, TPFSDP_RESHARD_ALWAYS);
          API(tpfsdp_root_prepare, model.tree.root);
          take_events(context);
          model.forward();  // y = w * 1
          model.forward();  // y = w * 2
          model.backward(1);
          EXPECT_EQ(model.state(), TPFSDP_SHARDED_SHARDED);
          model.backward(2);
          model.end();
          EXPECT_EQ(model.gradient(), model.local(3));
          EXPECT_EQ(model.state(), TPFSDP_SHARDED_SHARDED);
          const auto events = take_events(context);
          EXPECT_EQ(chain::count_lines(events, "UNSHARD "), 4);
          EXPECT_EQ(chain::count_lines(events, "RESHARD "), 4);
        },
        200);
  }
}

TEST(Training, B046_AModuleUsedTwiceWithRecomputation) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t rank) {
        api::Tree tree(context);
        tpfsdp_module *shared = tree.child(tree.root, "u");
        tpfsdp_param *w = tree.param(shared, "w", TPFSDP_DTYPE_F32, {3}, Values(3, 1));
        tree.shard({shared}, TPFSDP_RESHARD_ALWAYS);
        tree.shard({tree.root});
        API(tpfsdp_root_prepare, tree.root);
        take_events(context);
        API(tpfsdp_module_pre_forward, tree.root);
        for (int use = 0; use < 2; ++use) {
          API(tpfsdp_module_pre_forward, shared);
          API(tpfsdp_module_post_forward, shared);
        }
        API(tpfsdp_module_post_forward, tree.root);
        API(tpfsdp_module_pre_backward, tree.root);
        for (int use = 2; use > 0; --use) {
          API(tpfsdp_module_pre_backward, shared);
          API(tpfsdp_module_pre_forward, shared);  // recomputed
          EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), Values(3, 1));
          API(tpfsdp_module_post_forward, shared);
          tpfsdp_view buffer{};
          API(tpfsdp_param_get_grad_buffer, w, 0, &buffer);
          for (int i = 0; i < 3; ++i) static_cast<float *>(buffer.data)[i] = static_cast<float>(use + 2 * rank);
          API(tpfsdp_param_grad_ready, w);
          API(tpfsdp_module_post_backward, shared);
        }
        API(tpfsdp_module_end_backward, tree.root);
        // Means over the ranks: (2 + 4) / 2 of the second use, (1 + 3) / 2 of the first.
        EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)), Values(rank == 0 ? 2 : 1, 5));
        EXPECT_EQ(api::unit_info(shared).sharded_state, TPFSDP_SHARDED_SHARDED);
        const auto events = take_events(context);
        EXPECT_EQ(chain::count_lines(events, "UNSHARD u"), 4);
        EXPECT_EQ(chain::count_lines(events, "RESHARD u"), 4);
      },
      200);
}

TEST(Training, B047_RecomputationPrefetchesNothingForward) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    model.at = [&](const std::string &point) {
      if (point.rfind("in backward", 0) != 0) return;
      tpfsdp_module *block = model.block(static_cast<size_t>(point.back() - '0'));
      API(tpfsdp_module_pre_forward, block);
      API(tpfsdp_module_post_forward, block);
      EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    };
    model.step(0);
    model.expect_idle();
    take_counters(context);
    model.step(1);
    EXPECT_EQ(take_counters(context).all_gathers, 5);  // root, 2 forward, 2 backward
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, {.blocks = 2}));
    }
  });
}

TEST(Training, B048_EvaluationLeavesNoPrefetchBehind) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    for (int i = 0; i < 2; ++i) {
      API(tpfsdp_module_set_grad_enabled, model.root(), 0);
      take_counters(context);
      model.forward(7);
      EXPECT_EQ(take_counters(context).all_gathers, 4);
      // B053: an inference forward leaves nothing full, the root neither.
      model.expect_idle();
    }
    API(tpfsdp_module_set_grad_enabled, model.root(), 1);
    take_counters(context);
    model.step(1);
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.all_gathers, 7);
    EXPECT_EQ(counters.prefetch_hits, 3);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(Training, B049_AUnitOutsideBackwardIsFreedWithoutAGradient) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 3, .reshard = TPFSDP_RESHARD_NEVER});
    for (int i = 0; i < 2; ++i) {
      const Values y = model.forward(i);
      API(tpfsdp_module_pre_backward, model.root());
      for (const size_t block : {2u, 0u}) {
        API(tpfsdp_module_pre_backward, model.block(block));
        toy::backward(model.layers[block + 1], y, 2);
        API(tpfsdp_module_post_backward, model.block(block));
      }
      EXPECT_EQ(api::unit_info(model.block(1)).sharded_state, TPFSDP_SHARDED_UNSHARDED);
      model.end();
      model.expect_idle();
      EXPECT_TRUE(api::has_grad(model.weight(1)) && api::has_grad(model.weight(3)));
      EXPECT_FALSE(api::has_grad(model.weight(2)) || api::has_grad(model.weight(0)));
      model.sgd();
    }
  });
}

TEST(Training, B001_AllRowsOfATiedParameterMove) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(tree.root, "b");
    tpfsdp_param *tied = tree.param(a, "w", TPFSDP_DTYPE_F32, {5, 2}, Values(10, 1));
    API(tpfsdp_module_register_parameter, b, "w", tied);
    API(tpfsdp_module_register_parameter, b, "w", nullptr);
    API(tpfsdp_module_register_parameter, b, "w", tied);  // tied again
    tree.shard({a, b});
    tree.shard({tree.root});
    EXPECT_EQ(api::unit_info(a).param_count, 1);
    EXPECT_EQ(api::unit_info(b).logical_bytes, 40);
    const int64_t rows = rank == 0 ? 3 : 2;
    for (int round = 0; round < 3; ++round) {
      API(tpfsdp_module_pre_forward, tree.root);
      for (tpfsdp_module *module : {a, b}) {
        API(tpfsdp_module_pre_forward, module);
        API(tpfsdp_module_post_forward, module);
      }
      API(tpfsdp_module_post_forward, tree.root);
      API(tpfsdp_module_pre_backward, b);
      Values one(10, 1);
      const std::vector<int64_t> shape{5, 2};
      const tpfsdp_view gradient = api::view(one.data(), TPFSDP_DTYPE_F32, shape);
      for (int use = 0; use < 2; ++use) API(tpfsdp_param_add_grad, tied, &gradient);
      API(tpfsdp_module_end_backward, tree.root);
      EXPECT_EQ(api::values_of<float>(api::face(tied, TPFSDP_FACE_GRAD)), Values(static_cast<size_t>(rows * 2), 2));
      float *shard = static_cast<float *>(api::face(tied, TPFSDP_FACE_SHARD).data);
      for (int64_t i = 0; i < rows * 2; ++i) shard[i] -= 0.5f * 2;
      API(tpfsdp_module_zero_grad, tree.root, 1);
      tpfsdp_scope *scope = nullptr;
      API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
      EXPECT_EQ(api::values_of<float>(api::face(tied, TPFSDP_FACE_FULL)), Values(10, 0));
      API(tpfsdp_scope_close, scope);
      tpfsdp_handle_release(scope);
      // Loaded: ones again, which the next round must move the same way. And laid out anew.
      Values ones(static_cast<size_t>(rows * 2), 1);
      const std::vector<int64_t> local{rows, 2};
      const tpfsdp_view loaded = api::view(ones.data(), TPFSDP_DTYPE_F32, local);
      tpfsdp_tensor *tensor = nullptr;
      API(tpfsdp_tensor_create_borrowed, &loaded, nullptr, &tensor);
      API(tpfsdp_param_set_tensor, tied, tensor);
      tpfsdp_handle_release(tensor);
      API(tpfsdp_param_set_requires_grad, tied, 0);
      API(tpfsdp_param_set_requires_grad, tied, 1);
    }
  });
}

TEST(Training, double_partial_forward_then_backward) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *unused = tree.child(tree.root, "unused");
    tpfsdp_param *w = tree.param(a, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tpfsdp_param *other = tree.param(unused, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tree.shard({a, unused});
    tree.shard({tree.root});
    for (int i = 0; i < 2; ++i) {
      API(tpfsdp_module_pre_forward, tree.root);
      API(tpfsdp_module_pre_forward, a);
      API(tpfsdp_module_post_forward, a);
      EXPECT_EQ(api::unit_info(a).sharded_state, TPFSDP_SHARDED_UNSHARDED);  // its other module may still run
      API(tpfsdp_module_post_forward, tree.root);
      EXPECT_EQ(api::unit_info(a).sharded_state, TPFSDP_SHARDED_SHARDED);
    }
    API(tpfsdp_module_pre_backward, a);
    tpfsdp_view buffer{};
    API(tpfsdp_param_get_grad_buffer, w, 0, &buffer);
    for (int i = 0; i < 4; ++i) static_cast<float *>(buffer.data)[i] = 3;
    API(tpfsdp_param_grad_ready, w);
    API(tpfsdp_module_end_backward, tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)), Values(2, 3));
    EXPECT_FALSE(api::has_grad(other));
  });
}

}  // namespace
