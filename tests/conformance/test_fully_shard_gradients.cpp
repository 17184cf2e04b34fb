// SPDX-License-Identifier: Apache-2.0
// Gradients: frozen and unfrozen parameters, accumulation, many pieces of one backward, none against zero.
#include "support/single.hpp"

namespace {

using chain::on_ranks;
using chain::Single;
using chain::take_counters;
using chain::Values;

TEST(Gradients, B058_FrozenParametersCostNoGradientMemory) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tree.param(tree.root, "frozen", TPFSDP_DTYPE_F32, {1000}, Values(1000, 1), false);
    tpfsdp_param *w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {10}, Values(10, 1));
    tree.shard({tree.root});
    API(tpfsdp_root_prepare, tree.root);
    EXPECT_EQ(api::unit_info(tree.root).grad_bytes, 40);
    EXPECT_EQ(api::memory(tree.root).grad_shard_bytes, 20);
    EXPECT_EQ(api::memory(tree.root).grad_slot_bytes, 40);
    API(tpfsdp_module_pre_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    take_counters(context);
    tpfsdp_view buffer{};
    API(tpfsdp_param_get_grad_buffer, w, 1, &buffer);
    EXPECT_EQ(api::values_of<float>(buffer), Values(10, 0));
    API(tpfsdp_param_grad_ready, w);
    API(tpfsdp_module_end_backward, tree.root);
    EXPECT_EQ(take_counters(context).reduced_bytes, 40);
    EXPECT_EQ(api::face(w, TPFSDP_FACE_GRAD).shape[0], 5);
  });
}

TEST(Gradients, B057_FrozenUnitsAreFreedAsBackwardGoes) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 10, .options = api::privately()});
    API(tpfsdp_module_set_requires_grad, model.root(), 0);
    model.forward(0);
    for (size_t block = 10; block-- > 0;) {
      API(tpfsdp_module_pre_backward, model.block(block));
      int full = 0;
      for (size_t other = 0; other < 10; ++other)
        full += api::unit_info(model.block(other)).sharded_state == TPFSDP_SHARDED_UNSHARDED;
      EXPECT_EQ(full, 1);
      API(tpfsdp_module_post_backward, model.block(block));
    }
    model.end();
    model.expect_idle();
    EXPECT_EQ(api::memory(model.root()).slot_bytes, 3 * (128 + 20));
    EXPECT_EQ(api::memory(model.root()).grad_slot_bytes + api::memory(model.root()).grad_shard_bytes, 0);
    EXPECT_EQ(take_counters(context).reduce_scatters, 0);
  });
}

TEST(Gradients, B059_UnfrozenBetweenSteps) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Single model(context);
    API(tpfsdp_param_set_requires_grad, model.w, 0);
    for (int i = 0; i < 2; ++i) {
      model.forward();
      API(tpfsdp_module_pre_backward, model.tree.root);
      EXPECT_EQ(chain::caught([&] { model.add(1); }).status, TPFSDP_ERR_STATE);
      model.end();
      EXPECT_FALSE(api::has_grad(model.w));
    }
    API(tpfsdp_param_set_requires_grad, model.w, 1);
    model.forward();
    model.backward(rank == 0 ? 1.0f : 3.0f);
    model.end();
    EXPECT_EQ(model.gradient(), model.local(2));
    API(tpfsdp_module_pre_forward, model.tree.root);
    const api::Error inside = chain::caught([&] { API(tpfsdp_param_set_requires_grad, model.w, 0); });
    EXPECT_EQ(inside.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(inside.what(), testing::HasSubstr("between steps"));
  });
}

TEST(Gradients, B062_ManySmallBackwardsInOneModule) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Single model(context);
    model.forward();
    take_counters(context);
    API(tpfsdp_module_pre_backward, model.tree.root);
    for (int piece = 0; piece < 4; ++piece) {
      API(tpfsdp_module_pre_backward, model.tree.root);
      EXPECT_EQ(model.state(), TPFSDP_SHARDED_UNSHARDED);
      model.add(rank == 0 ? 1.0f : 3.0f);
    }
    API(tpfsdp_module_post_backward, model.tree.root);
    model.end();
    EXPECT_EQ(model.gradient(), model.local(8));  // 4 pieces, mean of 1 and 3
    EXPECT_EQ(take_counters(context).reduce_scatters, 1);
  });
}

TEST(Gradients, GradientsAddUpUntilTheyAreZeroedAndNoneIsNotZero) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Single model(context);
    const auto step = [&](float value) {
      model.forward();
      model.backward(value);
      model.end();
    };
    step(1);
    step(2);
    EXPECT_EQ(model.gradient(), model.local(3));
    API(tpfsdp_module_zero_grad, model.tree.root, 0);
    EXPECT_EQ(model.gradient(), model.local(0));
    model.forward();
    API(tpfsdp_module_pre_backward, model.tree.root);  // no gradient this time
    model.end();
    EXPECT_EQ(model.gradient(), model.local(0));
    step(5);
    EXPECT_EQ(model.gradient(), model.local(5));
    API(tpfsdp_module_zero_grad, model.tree.root, 1);
    EXPECT_FALSE(api::has_grad(model.w));
    model.forward();
    API(tpfsdp_module_pre_backward, model.tree.root);
    model.end();
    EXPECT_FALSE(api::has_grad(model.w));
    Values set(static_cast<size_t>(model.local(0).size()), 9);
    const std::vector<int64_t> shape{static_cast<int64_t>(set.size())};
    const tpfsdp_view given = api::view(set.data(), TPFSDP_DTYPE_F32, shape);
    API(tpfsdp_param_set_grad, model.w, &given);
    step(1);
    EXPECT_EQ(model.gradient(), model.local(10));
    API(tpfsdp_param_set_grad, model.w, nullptr);
    EXPECT_FALSE(api::has_grad(model.w));
  });
}

}  // namespace
