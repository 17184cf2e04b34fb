// SPDX-License-Identifier: Apache-2.0
// Full values that were there when the write window opened are old: whatever asks for them next gathers again, however
// the unit came to be full.
#include "support/toy_host.hpp"

#include <gtest/gtest.h>

namespace {

constexpr int kWorld = 2;

struct Model {
  explicit Model(tpfsdp_context *context, tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO) : tree(context) {
    weight = tree.param(tree.root, "weight", TPFSDP_DTYPE_F32, {4, 2}, std::vector<float>(8, 1.0f));
    tree.shard({tree.root}, reshard, api::privately());
  }
  tpfsdp_scope *open() {
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
    return scope;
  }
  static void close(tpfsdp_scope *scope) {
    API(tpfsdp_scope_close, scope);
    tpfsdp_handle_release(scope);
  }
  void give_gradient() {
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, weight, 0, &grad);
    std::fill_n(static_cast<float *>(grad.data), 8, 1.0f);
    API(tpfsdp_param_grad_ready, weight);
  }
  // The optimizer: every shard becomes 100.
  void write() {
    const tpfsdp_view shard = api::face(weight, TPFSDP_FACE_SHARD);
    std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), 100.0f);
  }
  void expect_new_values() {
    EXPECT_EQ(api::values_of<float>(api::face(weight, TPFSDP_FACE_FULL)), std::vector<float>(8, 100.0f));
  }

  api::Tree tree;
  tpfsdp_param *weight = nullptr;
};

TEST(StaleValues, AfterAnUnshardThatNobodyEnded) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context);
    API(tpfsdp_fsdp_module_unshard, model.tree.root, nullptr);
    tpfsdp_scope *scope = model.open();
    model.give_gradient();
    API(tpfsdp_grad_reduce, model.tree.root);
    Model::close(scope);
    API(tpfsdp_module_end_backward, model.tree.root);
    model.write();
    API(tpfsdp_module_pre_forward, model.tree.root);
    model.expect_new_values();
    API(tpfsdp_module_post_forward, model.tree.root);
  });
}

TEST(StaleValues, AfterAScopeThatSpansTheEndOfBackward) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context);
    tpfsdp_scope *outer = model.open();
    model.give_gradient();
    API(tpfsdp_grad_reduce, model.tree.root);
    API(tpfsdp_module_end_backward, model.tree.root);
    model.write();
    tpfsdp_scope *inner = model.open();
    model.expect_new_values();
    Model::close(inner);
    Model::close(outer);
  });
}

TEST(StaleValues, AfterAnUnshardBetweenPostBackwardAndTheEnd) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context);
    API(tpfsdp_module_pre_forward, model.tree.root);
    API(tpfsdp_module_post_forward, model.tree.root);
    API(tpfsdp_module_pre_backward, model.tree.root);
    model.give_gradient();
    API(tpfsdp_module_post_backward, model.tree.root);
    API(tpfsdp_fsdp_module_unshard, model.tree.root, nullptr);
    API(tpfsdp_module_end_backward, model.tree.root);
    model.write();
    API(tpfsdp_module_pre_forward, model.tree.root);
    model.expect_new_values();
    API(tpfsdp_module_post_forward, model.tree.root);
  });
}

}  // namespace
