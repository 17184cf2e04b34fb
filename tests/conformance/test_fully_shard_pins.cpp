// SPDX-License-Identifier: Apache-2.0
// Pins: full parameters stay as long as somebody holds a view, and what that forbids meanwhile.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;
using testing::AllOf;

tpfsdp_unit *unit_of(tpfsdp_module *module) {
  tpfsdp_unit *unit = nullptr;
  API(tpfsdp_fsdp_module_get_unit, module, 0, &unit);
  return unit;
}

bool is_full(tpfsdp_module *module) { return api::unit_info(module).sharded_state == TPFSDP_SHARDED_UNSHARDED; }

api::Owned<tpfsdp_tensor> tensor_of(tpfsdp_param *param, tpfsdp_face face) {
  tpfsdp_tensor *tensor = nullptr;
  API(tpfsdp_param_to_tensor, param, face, &tensor);
  return api::Owned<tpfsdp_tensor>(tensor);
}

TEST(Pins, PutTheReshardOffToTheLastUnpin) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    tpfsdp_unit *unit = unit_of(model.block(0));
    const api::Error early = caught([&] { API(tpfsdp_unit_pin, unit); });
    EXPECT_EQ(early.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(early.what(), AllOf(HasSubstr("b0"), HasSubstr("not full")));
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    API(tpfsdp_unit_pin, unit);
    API(tpfsdp_unit_pin, unit);
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 2);
    for (int i = 0; i < 2; ++i) API(tpfsdp_fsdp_module_reshard, model.block(0));
    EXPECT_TRUE(is_full(model.block(0)));
    EXPECT_EQ(api::unit_info(model.block(0)).deferred_reshards, 1);
    EXPECT_EQ(chain::take_counters(context).deferred_reshards, 1);
    API(tpfsdp_unit_unpin, unit);
    EXPECT_TRUE(is_full(model.block(0)));
    API(tpfsdp_unit_unpin, unit);
    EXPECT_FALSE(is_full(model.block(0)));
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 0);
    const api::Error late = caught([&] { API(tpfsdp_unit_unpin, unit); });
    EXPECT_EQ(late.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(late.what(), HasSubstr("not pinned"));
    // An unpin without a reshard that was put off frees nothing.
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    API(tpfsdp_unit_pin, unit);
    API(tpfsdp_unit_unpin, unit);
    EXPECT_TRUE(is_full(model.block(0)));
    API(tpfsdp_fsdp_module_reshard, model.block(0));
  });
}

// A pin of one rank, from forward into backward: the ranks make the same collectives, and an unpin in the middle of the
// unit's backward takes nothing away.
TEST(Pins, OfOneRankDoNotPartTheRanks) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.options = api::privately()});
    tpfsdp_unit *unit = nullptr;
    model.at = [&](const std::string &point) {
      if (rank != 1) return;
      if (point == "in forward b2") {
        unit = unit_of(model.block(2));
        API(tpfsdp_unit_pin, unit);
      } else if (point == "in backward b2") {
        EXPECT_EQ(api::unit_info(model.block(2)).deferred_reshards, 1);
        API(tpfsdp_unit_unpin, unit);
        EXPECT_TRUE(is_full(model.block(2)));
      }
    };
    API(tpfsdp_root_prepare, model.root());
    chain::take_counters(context);
    model.step(0);
    EXPECT_EQ(chain::take_counters(context).all_gathers, 7);
    model.expect_idle();
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 1));
    }
  });
}

TEST(Pins, AWindowUnderAPinIsRefusedByName) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    for (const size_t block : {0u, 2u}) {
      API(tpfsdp_fsdp_module_unshard, model.block(block), nullptr);
      API(tpfsdp_unit_pin, unit_of(model.block(block)));
    }
    const api::Error error = caught([&] { API(tpfsdp_shards_begin_write, model.root()); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit(s) b0, b2"), HasSubstr("release the views")));
    const auto shard = tensor_of(model.weight(1), TPFSDP_FACE_SHARD);
    EXPECT_EQ(caught([&] { API(tpfsdp_param_set_tensor, model.weight(1), shard.get()); }).status, TPFSDP_ERR_STATE);
    for (const size_t block : {0u, 2u}) {
      API(tpfsdp_unit_unpin, unit_of(model.block(block)));
      API(tpfsdp_fsdp_module_reshard, model.block(block));
    }
    API(tpfsdp_shards_begin_write, model.root());
    API(tpfsdp_shards_end_write, model.root());
    model.step(1);
  });
}

// Blocks 0 and 2 share memory. A gather that needs what a pin holds fails on that rank and is told to the others.
TEST(Pins, AGatherIntoPinnedMemoryIsToldToTheRanks) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.options = api::privately()});
    model.step(0);
    ASSERT_EQ(api::unit_info(model.block(0)).slot, api::unit_info(model.block(2)).slot);
    api::Owned<tpfsdp_tensor> view;
    model.at = [&](const std::string &point) {
      if (rank == 1 && point == "in forward b0") view = tensor_of(model.weight(1), TPFSDP_FACE_FULL);
    };
    const api::Error error = caught([&] { model.step(1); });
    EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_STATE : TPFSDP_ERR_REMOTE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit b2 cannot be gathered"), HasSubstr("1 pin(s) of unit b0")));
    model.at = [](const std::string &) {};
    model.reset();
    if (rank == 1) {
      // The view is still good: its unit is freed when it goes.
      tpfsdp_view of_tensor{};
      API(tpfsdp_tensor_get_view, view.get(), &of_tensor);
      EXPECT_EQ(api::values_of<float>(of_tensor), api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL)));
      view.reset();
    }
    model.expect_idle();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

// A pinned unit is gathered again when its failed step is over, and the memory under the view stays mapped throughout.
TEST(Pins, OutliveAFailedStep) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2, .options = api::privately()});
    model.step(0);
    API(tpfsdp_fsdp_module_unshard, model.block(1), nullptr);
    auto view = tensor_of(model.weight(2), TPFSDP_FACE_FULL);
    API(tpfsdp_fsdp_module_reshard, model.block(1));
    tpfsdp_work *work = nullptr;
    API(tpfsdp_fsdp_module_unshard, model.block(1), &work);  // under way again when the step fails
    tpfsdp_handle_release(work);
    API(tpfsdp_root_fail, model.root(), "both stop here");
    model.reset();
    tpfsdp_view of_tensor{};
    API(tpfsdp_tensor_get_view, view.get(), &of_tensor);
    EXPECT_EQ(api::values_of<float>(of_tensor).size(), 25u);
    EXPECT_TRUE(is_full(model.block(1)));
    EXPECT_EQ(api::unit_info(model.block(1)).pin_count, 1);
    view.reset();
    model.expect_idle();
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, {.blocks = 2}));
    }
  });
}

TEST(Pins, AFullTensorHoldsOneAsLongAsAnythingMadeFromIt) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    EXPECT_EQ(caught([&] { tensor_of(model.weight(1), TPFSDP_FACE_FULL); }).status, TPFSDP_ERR_STATE);
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    EXPECT_EQ(caught([&] { API(tpfsdp_param_to_tensor, model.weight(1), TPFSDP_FACE_FULL, nullptr); }).status,
              TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 0);
    auto tensor = tensor_of(model.weight(1), TPFSDP_FACE_FULL);
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 1);
    DLManagedTensorVersioned *managed = nullptr;
    API(tpfsdp_tensor_to_dlpack, tensor.get(), &managed);
    API(tpfsdp_fsdp_module_reshard, model.block(0));
    tensor.reset();
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 1);
    EXPECT_TRUE(is_full(model.block(0)));
    tpfsdp_tensor *back = nullptr;
    API(tpfsdp_tensor_from_dlpack, managed, &back);
    tpfsdp_view view{};
    API(tpfsdp_tensor_get_view, back, &view);
    EXPECT_EQ(api::values_of<float>(view), chain::weight_values(2, 25));
    tpfsdp_handle_release(back);
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 0);
    EXPECT_FALSE(is_full(model.block(0)));
    // Of the two other faces none.
    const auto shard = tensor_of(model.weight(1), TPFSDP_FACE_SHARD);
    EXPECT_EQ(api::unit_info(model.block(0)).pin_count, 0);
    tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
    API(tpfsdp_tensor_get_shard_info, shard.get(), &info);
    EXPECT_EQ(info.global_shape[0], 5);
    EXPECT_EQ(info.offsets[0], rank == 0 ? 0 : 3);
  });
}

TEST(Pins, AGradientTensorOutlivesItsPlan) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    model.backward(model.forward(0));
    model.end();
    const auto gradient = tensor_of(model.weight(1), TPFSDP_FACE_GRAD);
    tpfsdp_view view{};
    API(tpfsdp_tensor_get_view, gradient.get(), &view);
    const Values before = api::values_of<float>(view);
    const int64_t total = api::memory(model.root()).total_bytes;
    API(tpfsdp_param_set_requires_grad, model.weight(0), 0);
    model.layers[0].weight_trains = false;
    API(tpfsdp_root_prepare, model.root());
    EXPECT_TRUE(api::has_grad(model.weight(1)));  // it still trains
    EXPECT_FALSE(api::has_grad(model.weight(0)));
    EXPECT_EQ(api::values_of<float>(view), before);  // memory that nobody else uses any more
    EXPECT_LT(api::memory(model.root()).total_bytes, total);
    model.step(1);
    EXPECT_EQ(api::values_of<float>(view), before);
  });
}

}  // namespace
