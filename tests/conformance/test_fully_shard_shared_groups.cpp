// SPDX-License-Identifier: Apache-2.0
// Several trees, and the program itself, use one group: a failure of one gives up what the others have under way there,
// and they hear of it instead of computing with what was never gathered or reduced.
#include "support/toy_host.hpp"

#include <gtest/gtest.h>

namespace {

constexpr int kWorld = 2;

struct Model {
  Model(tpfsdp_context *context, float value) : tree(context) {
    weight = tree.param(tree.root, "weight", TPFSDP_DTYPE_F32, {4, 2}, std::vector<float>(8, value));
    tree.shard({tree.root});
    API(tpfsdp_root_prepare, tree.root);
  }
  void until_reduced() {
    API(tpfsdp_module_pre_forward, tree.root);
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, weight, 0, &grad);
    std::fill_n(static_cast<float *>(grad.data), 8, 3.0f);
    API(tpfsdp_param_grad_ready, weight);
    API(tpfsdp_module_post_backward, tree.root);
  }
  void step() {
    until_reduced();
    API(tpfsdp_module_end_backward, tree.root);
    const tpfsdp_view shard = api::face(weight, TPFSDP_FACE_GRAD);
    EXPECT_EQ(api::values_of<float>(shard), std::vector<float>(4, 3.0f));
    API(tpfsdp_module_zero_grad, tree.root, 1);
  }

  api::Tree tree;
  tpfsdp_param *weight = nullptr;
};

tpfsdp_group *world_of(tpfsdp_context *context) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  API(tpfsdp_context_get_info, context, &info);
  return info.group;
}

tpfsdp_status status_of(const std::function<void()> &call) {
  try {
    call();
    return TPFSDP_OK;
  } catch (const api::Error &error) {
    return error.status;
  }
}

TEST(SharedGroups, AResetOfOneTreeGivesUpTheGatherOfTheOther) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model a(context, 1), b(context, 2);
    tpfsdp_work *work = nullptr;
    API(tpfsdp_fsdp_module_unshard, a.tree.root, &work);
    API(tpfsdp_root_fail, b.tree.root, "planted");
    API(tpfsdp_fsdp_module_reset_iter_state, b.tree.root);
    for (int step = 0; step < 8; ++step) b.step();  // past anything that the group remembers
    EXPECT_EQ(status_of([&] { API(tpfsdp_module_pre_forward, a.tree.root); }), TPFSDP_ERR_CANCELLED);
    tpfsdp_handle_release(work);
    API(tpfsdp_fsdp_module_reset_iter_state, a.tree.root);
    a.step();
    b.step();
  });
}

TEST(SharedGroups, AResetOfTheGroupGivesUpAReduction) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model a(context, 1);
    a.until_reduced();
    tpfsdp_group *world = world_of(context);
    float value = 0;
    const std::vector<int64_t> one{1};
    const tpfsdp_view view = api::view(&value, TPFSDP_DTYPE_F32, one);
    EXPECT_EQ(status_of([&] { API(tpfsdp_group_all_reduce, world, &view, &view, 99, nullptr, nullptr); }),
              TPFSDP_ERR_INVALID_ARGUMENT);
    API(tpfsdp_group_reset, world);
    for (int i = 0; i < 20; ++i) API(tpfsdp_group_barrier, world);
    EXPECT_EQ(status_of([&] { API(tpfsdp_module_end_backward, a.tree.root); }), TPFSDP_ERR_CANCELLED);
    API(tpfsdp_fsdp_module_reset_iter_state, a.tree.root);
    a.step();
  });
}

TEST(SharedGroups, AFailedCollectiveOfTheProgramEndsTheStepAndNotTheGroup) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model a(context, 1);
    a.step();
    API(tpfsdp_module_pre_forward, a.tree.root);
    API(tpfsdp_module_post_forward, a.tree.root);
    float value = 0;
    const std::vector<int64_t> one{1};
    const tpfsdp_view view = api::view(&value, TPFSDP_DTYPE_F32, one);
    EXPECT_EQ(status_of([&] { API(tpfsdp_group_all_reduce, world_of(context), &view, &view, 99, nullptr, nullptr); }),
              TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(status_of([&] { API(tpfsdp_module_end_backward, a.tree.root); }), TPFSDP_ERR_STATE);
    API(tpfsdp_fsdp_module_reset_iter_state, a.tree.root);
    a.step();
  });
}

TEST(SharedGroups, ATreeOfOneRankAloneDoesNotPartTheOthers) {
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t rank) {
    tpfsdp_group *alone = nullptr;
    API(tpfsdp_group_split, world_of(context), rank, 0, "alone", &alone);
    std::unique_ptr<api::Tree> copy;
    tpfsdp_mesh *mesh = nullptr;
    if (rank == 0) {
      API(tpfsdp_mesh_create_from_groups, &alone, 1, nullptr, 0, &mesh);
      copy = std::make_unique<api::Tree>(context);
      copy->param(copy->root, "average", TPFSDP_DTYPE_F32, {2, 2}, std::vector<float>(4, 1.0f));
      copy->shard({copy->root}, TPFSDP_RESHARD_AUTO, TPFSDP_INIT(tpfsdp_fully_shard_options), mesh);
      API(tpfsdp_root_prepare, copy->root);
    }
    Model a(context, 1);
    a.step();
    copy = nullptr;
    tpfsdp_handle_release(mesh);
    tpfsdp_handle_release(alone);
  });
}

TEST(SharedGroups, AFaultInTheOptionsOfFullyShardIsTold) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.arrival_timeout_ms = 20000;
  api::run_ranks(
      kWorld,
      [](tpfsdp_context *context, int32_t rank) {
        api::Tree tree(context);
        tree.param(tree.root, "weight", TPFSDP_DTYPE_F32, {4, 2}, std::vector<float>(8, 1.0f));
        tpfsdp_fully_shard_options shard = api::privately();  // else fully_shard itself is collective
        if (rank == 1) shard.reshard_after_forward.size = 5;
        EXPECT_EQ(
            status_of([&] { tree.shard({tree.root}, rank == 1 ? TPFSDP_RESHARD_SIZE : TPFSDP_RESHARD_AUTO, shard); }),
            rank == 1 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_OK);
        if (rank == 0) {
          EXPECT_EQ(status_of([&] { API(tpfsdp_module_pre_forward, tree.root); }), TPFSDP_ERR_REMOTE);
        }
        API(tpfsdp_group_reset, world_of(context));
      },
      options);
}

}  // namespace
