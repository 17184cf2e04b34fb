// SPDX-License-Identifier: Apache-2.0
// Segment mode and inspection: scopes that nest, gradients handed over inside them, reductions by block.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;

api::Owned<tpfsdp_scope> open(std::vector<tpfsdp_module *> modules, bool recurse = true) {
  tpfsdp_scope_options options = TPFSDP_INIT(tpfsdp_scope_options);
  options.recurse = recurse ? TPFSDP_TOGGLE_DEFAULT : TPFSDP_TOGGLE_OFF;
  tpfsdp_scope *scope = nullptr;
  API(tpfsdp_scope_open, modules.data(), static_cast<int64_t>(modules.size()), &options, &scope);
  return api::Owned<tpfsdp_scope>(scope);
}

bool is_full(tpfsdp_module *module) { return api::unit_info(module).sharded_state == TPFSDP_SHARDED_UNSHARDED; }

void add(tpfsdp_param *param, tpfsdp_dtype dtype, void *values) {
  const std::vector<int64_t> shape{4};
  const tpfsdp_view view = api::view(values, dtype, shape);
  API(tpfsdp_param_add_grad, param, &view);
}
void add(tpfsdp_param *param, float value) {
  Values values(4, value);
  add(param, TPFSDP_DTYPE_F32, values.data());
}

// One unit with one parameter of four ones, two rows on each of two ranks.
struct One {
  explicit One(tpfsdp_context *context)
      : tree(context), w(tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1))) {
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, api::privately());
  }
  Values gradient() const { return api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)); }
  void end() { API(tpfsdp_module_end_backward, tree.root); }
  api::Tree tree;
  tpfsdp_param *w;
};

TEST(Scopes, B052_NestAndCount) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    auto outer = open({model.block(0)});
    EXPECT_EQ(api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL)), chain::weight_values(2, 25));
    EXPECT_FALSE(is_full(model.block(1)));
    take_counters(context);
    auto all = open({model.root()});
    EXPECT_EQ(take_counters(context).all_gathers, 2);  // what was not full yet
    auto inner = open({model.block(0)});
    API(tpfsdp_scope_close, all.get());
    EXPECT_FALSE(is_full(model.root()));
    EXPECT_FALSE(is_full(model.block(1)));
    EXPECT_TRUE(is_full(model.block(0)));
    API(tpfsdp_scope_close, outer.get());
    EXPECT_TRUE(is_full(model.block(0)));
    const api::Error again = caught([&] { API(tpfsdp_scope_close, outer.get()); });
    EXPECT_EQ(again.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(again.what(), testing::AllOf(HasSubstr("\"b0\""), HasSubstr("closed already")));
    inner.reset();  // a release closes
    EXPECT_FALSE(is_full(model.block(0)));
  });
}

TEST(Scopes, WithoutRecursionTheModulesAlone) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    const auto scope = open({model.root(), model.block(1)}, false);
    EXPECT_TRUE(is_full(model.root()) && is_full(model.block(1)));
    EXPECT_FALSE(is_full(model.block(0)));
  });
}

TEST(Scopes, WhatNeedsItFullOutsideOutlivesThem) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    tpfsdp_module *block = model.block(0);
    API(tpfsdp_fsdp_module_unshard, block, nullptr);  // before
    {
      const auto scope = open({block});
    }
    EXPECT_TRUE(is_full(block));
    API(tpfsdp_fsdp_module_reshard, block);
    {
      const auto scope = open({block});
      API(tpfsdp_fsdp_module_unshard, block, nullptr);  // inside
    }
    EXPECT_TRUE(is_full(block));
    {
      const auto scope = open({block});
      API(tpfsdp_fsdp_module_reshard, block);  // no more; the scope still needs it
      EXPECT_TRUE(is_full(block));
    }
    EXPECT_FALSE(is_full(block));
    // A forward that began before the scope and ends inside it.
    API(tpfsdp_module_pre_forward, model.root());
    API(tpfsdp_module_pre_forward, block);
    {
      const auto scope = open({block});
      API(tpfsdp_module_post_forward, block);
      EXPECT_TRUE(is_full(block));
    }
    EXPECT_FALSE(is_full(block));
    // And one that begins inside it and ends after it.
    {
      const auto scope = open({block});
      API(tpfsdp_module_pre_forward, block);
    }
    EXPECT_TRUE(is_full(block));
    API(tpfsdp_module_post_forward, block);
    EXPECT_FALSE(is_full(block));
    API(tpfsdp_module_post_forward, model.root());
    API(tpfsdp_module_pre_backward, model.root());
    model.end();
    model.expect_idle();
  });
}

TEST(Scopes, AreRefusedInAWindowAndOverTwoRoots) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1}), other(context, rank, {.blocks = 1});
    model.step(0);
    API(tpfsdp_shards_begin_write, model.root());
    const api::Error window = caught([&] { open({model.block(0)}); });
    EXPECT_EQ(window.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(window.what(), HasSubstr("end_write first"));
    API(tpfsdp_shards_end_write, model.root());
    model.reset();
    const api::Error roots = caught([&] { open({model.root(), other.root()}); });
    EXPECT_EQ(roots.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(roots.what(), HasSubstr("two roots"));
    EXPECT_EQ(caught([&] { open({model.tree.module()}); }).status, TPFSDP_ERR_STATE);
    model.expect_idle();
  });
}

// The whole model as blocks without module calls, the next block's gather overlapped: the bits and counts of the hooks.
TEST(Segments, TrainLikeHooks) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    const auto module_of = [&](size_t layer) { return layer == 0 ? model.root() : model.layers[layer].module; };
    for (int iteration = 0; iteration < 3; ++iteration) {
      Values x(10);
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>((3 * rank + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
      tpfsdp_work *work = nullptr;
      const size_t count = model.layers.size();
      for (size_t i = 0; i < count; ++i) {
        const auto scope = open({module_of(i)}, false);
        if (work) tpfsdp_handle_release(std::exchange(work, nullptr));
        if (i + 1 < count) API(tpfsdp_fsdp_module_unshard, module_of(i + 1), &work);
        toy::Layer<float> layer = model.layers[i];
        layer.module = nullptr;
        x = toy::forward(layer, x, 2);
        model.layers[i].x = layer.x;
        model.layers[i].y = layer.y;
        API(tpfsdp_scope_close, scope.get());
        if (i > 0) {
          EXPECT_FALSE(is_full(module_of(i - 1)));
        }
      }
      for (size_t i = count; i-- > 0;) {
        const auto scope = open({module_of(i)}, false);
        x = toy::backward(model.layers[i], x, 2);
        API(tpfsdp_grad_reduce, module_of(i));
        API(tpfsdp_scope_close, scope.get());
      }
      model.end();
      model.sgd();
    }
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.all_gathers, 3 * 8);
    EXPECT_EQ(counters.reduce_scatters, 3 * 4);
    EXPECT_EQ(counters.spare_slots, 0);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

TEST(Segments, GradientsOfEveryFloatingDtypeAddUp) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    One model(context);
    const auto scope = open({model.tree.root});
    take_counters(context);
    std::vector<double> f64(4, 0.5);
    std::vector<uint16_t> f16(4, 0x3c00), bf16(4, 0x4000);  // 1 and 2
    add(model.w, TPFSDP_DTYPE_F64, f64.data());
    add(model.w, TPFSDP_DTYPE_F16, f16.data());
    add(model.w, TPFSDP_DTYPE_BF16, bf16.data());
    add(model.w, rank == 0 ? 4.0f : 8.0f);
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.copies, 4);
    EXPECT_EQ(counters.copied_bytes, 64);
    model.end();
    EXPECT_EQ(model.gradient(), Values(2, 9.5f));
    API(tpfsdp_scope_close, scope.get());
  });
}

TEST(Segments, BuffersOverwriteAccumulateAndAddASecondTime) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    One model(context);
    const auto scope = open({model.tree.root});
    const auto buffer = [&](bool accumulate) {
      tpfsdp_view view{};
      API(tpfsdp_param_get_grad_buffer, model.w, accumulate ? 1 : 0, &view);
      return static_cast<float *>(view.data);
    };
    const auto fill = [](float *data, float value) { std::fill_n(data, 4, value); };
    const auto ready = [&] { API(tpfsdp_param_grad_ready, model.w); };
    take_counters(context);
    fill(buffer(false), 7);  // never committed
    fill(buffer(false), 1);
    ready();
    EXPECT_EQ(take_counters(context).copies, 0);
    float *second = buffer(false);  // a second gradient of the same backward is added
    fill(second, 2);
    ready();
    EXPECT_EQ(take_counters(context).copies, 1);
    float *sum = buffer(true);
    EXPECT_EQ(sum[0], 3);
    EXPECT_NE(sum, second);
    for (int i = 0; i < 4; ++i) sum[i] += 10;
    ready();
    fill(buffer(false), 100);  // asked for and given up
    sum = buffer(true);
    EXPECT_EQ(sum[3], 13);
    ready();
    EXPECT_EQ(take_counters(context).copies, 0);
    model.end();
    EXPECT_EQ(model.gradient(), Values(2, 13));
    EXPECT_GT(api::memory(model.tree.root).grad_slot_bytes, 16);  // the memory of the second one is reported
    // The next backward starts from nothing.
    EXPECT_EQ(buffer(true)[0], 0);
    API(tpfsdp_scope_close, scope.get());
  });
}

TEST(Segments, ReductionsOfOneUnitAddUp) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    One model(context);
    const auto scope = open({model.tree.root});
    for (int i = 1; i <= 3; ++i) {
      add(model.w, static_cast<float>(i));
      API(tpfsdp_grad_reduce, model.tree.root);
    }
    API(tpfsdp_grad_reduce, model.tree.root);  // nothing was handed over
    model.end();
    EXPECT_EQ(model.gradient(), Values(2, 6));
    EXPECT_EQ(take_counters(context).reduce_scatters, 3);
  });
}

TEST(Segments, OutsideAScopeNothingIsTaken) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    One model(context);
    API(tpfsdp_root_prepare, model.tree.root);
    const api::Error error = caught([&] { add(model.w, 1.0f); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("parameter w"), HasSubstr("inside a scope")));
    {
      const auto scope = open({model.tree.root});
      add(model.w, 1.0f);
    }
    model.end();  // what was handed over counts, though the scope is closed
    EXPECT_EQ(model.gradient(), Values(4, 1));
    EXPECT_EQ(caught([&] { API(tpfsdp_grad_reduce, model.tree.module()); }).status, TPFSDP_ERR_STATE);
  });
}

}  // namespace
