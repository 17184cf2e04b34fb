// SPDX-License-Identifier: Apache-2.0
// reshard_after_forward SIZE(k): backward gathers among k ranks, from what each of them kept of the full values.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using chain::take_counters;

chain::Shape sized(int32_t size, int64_t width = 5) {
  chain::Shape shape{.blocks = 3, .width = width, .reshard = TPFSDP_RESHARD_SIZE, .root_reshard = TPFSDP_RESHARD_SIZE};
  shape.options.reshard_after_forward.size = size;
  return shape;
}

chain::Shape always(int64_t width = 5) {
  return {.blocks = 3, .width = width, .reshard = TPFSDP_RESHARD_ALWAYS, .root_reshard = TPFSDP_RESHARD_ALWAYS};
}

// A unit: weight (5, 5) at 0 and bias (5) at 128 of 148 bytes. Two ranks keep 128 and 20 of them, without the alignment
// between the two 100 and 20.
constexpr int64_t kPart = 128;

TEST(PostForward, CountsAndMemory) {
  chain::SharedValues values;
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    API(tpfsdp_root_prepare, model.root());
    const tpfsdp_memory_info memory = api::memory(model.root());
    EXPECT_EQ(memory.part_bytes, 4 * kPart);
    EXPECT_EQ(memory.total_bytes, memory.planned_peak_bytes);
    take_counters(context);
    for (int i = 0; i < 3; ++i) {
      const chain::Values y = model.forward(i);
      const tpfsdp_counters forward = take_counters(context);
      EXPECT_EQ(forward.all_gathers, 4);
      EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_POST_FORWARD);
      model.backward(y);
      model.end();
      const tpfsdp_counters backward = take_counters(context);
      EXPECT_EQ(backward.all_gathers, 4);
      EXPECT_EQ(backward.reduce_scatters, 4);
      EXPECT_EQ(backward.allocations + backward.spare_slots, 0);
      // What the other one of the two kept, and this rank's rows of four gradients from three peers.
      const int64_t rows = rank < 2 ? 2 : rank == 2 ? 1 : 0;  // of 5 over 4 ranks: 2, 2, 1, 0
      EXPECT_EQ(backward.wire_bytes, 4 * (rank % 2 == 0 ? 20 : 100) + 4 * 3 * rows * 24);
      model.expect_idle();
      model.sgd();
    }
    EXPECT_EQ(api::memory(model.root()).peak_bytes, memory.planned_peak_bytes);
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(4, 3, always()));
}

// param_registration_after_forward: what is there after forward; after a manual reshard it is the shard, and backward
// gathers over all ranks again.
TEST(PostForward, param_registration_after_forward) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    const chain::Values y = model.forward(0);
    EXPECT_EQ(caught([&] { api::face(model.weight(1), TPFSDP_FACE_FULL); }).status, TPFSDP_ERR_STATE);
    for (size_t block = 0; block < 3; ++block) API(tpfsdp_fsdp_module_reshard, model.block(block));
    EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_SHARDED);
    take_counters(context);
    model.backward(y);
    model.end();
    const int64_t own = rank < 2 ? 48 : rank == 2 ? 24 : 0;  // bytes of this rank's rows of one unit
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.all_gathers, 4);
    EXPECT_EQ(counters.wire_bytes, 3 * (120 - own) + (rank % 2 == 0 ? 20 : 100) + 4 * 3 * own);
    model.expect_idle();
  });
}

TEST(PostForward, TwoForwardsThenABackwardOfEach) {
  chain::SharedValues parts, whole;
  const auto train = [](chain::SharedValues &out, const chain::Shape &shape) {
    on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, shape);
      for (int i = 0; i < 2; ++i) {
        model.forward(2 * i);
        const chain::Values y = model.forward(2 * i + 1);
        model.backward(y);
        model.backward(y);
        model.end();
        model.sgd();
      }
      const chain::Values full = model.full();
      if (rank == 0) out = full;
    });
  };
  train(parts, sized(2));
  train(whole, always());
  EXPECT_EQ(parts.get(), whole.get());
}

// A view that one rank holds puts off its reshard only; its peers gather among each other, and so does it.
TEST(PostForward, APinOnOneRankPartsNobody) {
  chain::SharedValues values;
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    for (int i = 0; i < 3; ++i) {
      tpfsdp_unit *unit = nullptr;
      API(tpfsdp_fsdp_module_get_unit, model.block(1), 0, &unit);
      model.at = [&](const std::string &point) {
        if (rank == 3 && point == "in forward b1") API(tpfsdp_unit_pin, unit);
        if (rank == 3 && point == "in backward b1") API(tpfsdp_unit_unpin, unit);
      };
      model.step(i);
    }
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(4, 3, always()));
}

TEST(PostForward, WhatWasKeptIsNotUsedAfterTheShardsWereWritten) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    model.forward(0);  // no backward follows
    API(tpfsdp_module_end_backward, model.root());
    API(tpfsdp_shards_begin_write, model.root());
    for (size_t layer = 0; layer < 4; ++layer) {
      const tpfsdp_view shard = api::face(model.weight(layer), TPFSDP_FACE_SHARD);
      std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), 7.0F);
    }
    API(tpfsdp_shards_end_write, model.root());
    EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_SHARDED);
    model.at = [&](const std::string &point) {
      if (point.rfind("in ", 0) != 0) return;
      const tpfsdp_view full = api::face(model.weight(static_cast<size_t>(point.back() - '0') + 1), TPFSDP_FACE_FULL);
      for (int64_t i = 0; i < api::count_of(full); ++i) EXPECT_EQ(static_cast<const float *>(full.data)[i], 7);
    };
    model.step(1);
  });
}

TEST(PostForward, AFailedStepIsRepaired) {
  chain::SharedValues values;
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    model.step(0);
    const chain::Values y = model.forward(1);
    model.at = [&](const std::string &point) {
      if (rank == 2 && point == "backward b0") API(tpfsdp_root_fail, model.root(), "out of luck");
    };
    EXPECT_THROW(
        {
          model.backward(y);
          model.end();
        },
        api::Error);
    model.at = [](const std::string &) {};
    model.reset();
    API(tpfsdp_module_zero_grad, model.root(), 1);
    model.expect_idle();
    for (int i = 1; i < 3; ++i) model.step(i);
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(4, 3, always()));
}

TEST(PostForward, SizesAreDivisorsOfTheWorld) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    for (const int32_t size : {0, -2, 3, 5, 8}) {
      const api::Error error = caught([&] { Chain model(context, rank, sized(size)); });
      EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(), HasSubstr("SIZE(" + std::to_string(size) + ")"));
      EXPECT_THAT(error.what(), HasSubstr("4 ranks"));
      tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
      API(tpfsdp_context_get_info, context, &info);
      API(tpfsdp_group_reset, info.group);
    }
    for (const auto &[size, kind] : {std::pair{1, TPFSDP_RESHARD_NEVER}, std::pair{4, TPFSDP_RESHARD_ALWAYS}}) {
      Chain model(context, rank, sized(size));
      tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
      API(tpfsdp_fsdp_module_get_info, model.root(), &info);
      EXPECT_EQ(info.reshard_after_forward.kind, kind);
      EXPECT_EQ(info.reshard_after_forward.size, 0);
      model.step(0);
      EXPECT_EQ(api::memory(model.root()).part_bytes, 0);
    }
    Chain model(context, rank, sized(2));
    tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
    API(tpfsdp_fsdp_module_get_info, model.block(0), &info);
    EXPECT_EQ(info.reshard_after_forward.kind, TPFSDP_RESHARD_SIZE);
    EXPECT_EQ(info.reshard_after_forward.size, 2);
    model.step(0);
    API(tpfsdp_fsdp_module_set_reshard_after_forward, model.root(), TPFSDP_RESHARD_ALWAYS, 1);
    model.step(1);
    EXPECT_EQ(api::memory(model.root()).part_bytes, 0);
  });
}

// The forms that do not wait leave the making of the groups to the form that does.
TEST(PostForward, TheFirstTryIsPending) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, sized(2));
    while (API(tpfsdp_module_try_pre_forward, model.root()) == TPFSDP_PENDING) API(tpfsdp_root_prepare, model.root());
    API(tpfsdp_module_post_forward, model.root());
    EXPECT_EQ(api::unit_info(model.root()).sharded_state, TPFSDP_SHARDED_POST_FORWARD);
  });
}

}  // namespace
