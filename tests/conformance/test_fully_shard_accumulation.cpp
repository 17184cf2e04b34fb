// SPDX-License-Identifier: Apache-2.0
// Gradients of several micro-batches: exact counts of reference 5.1.1, and sums that are those of one larger batch.
#include "order.hpp"

namespace {

using chain::Chain;
using chain::on_ranks;
using chain::take_counters;

constexpr int kMicroBatches = 3;

enum class Off { kAll, kRootOnly, kSomeBlocks };  // where sync is off on all but the last micro-batch

struct Case {
  const char *name;
  Off off;
  tpfsdp_reshard_kind reshard;
  bool keeps_after_backward;  // until the last micro-batch
  int64_t reduce_scatters, all_gathers;
};

void set_sync(const Chain &model, Off off, tpfsdp_bool enabled) {
  if (off == Off::kSomeBlocks) {
    for (const size_t block : {0, 1})
      API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.block(block), enabled, 1);
  } else {
    API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.root(), enabled, off == Off::kAll);
  }
}

// One step of three micro-batches: their gradients, summed.
void step(Chain &model, const Case &tested, int iteration) {
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    const tpfsdp_bool is_last = micro == kMicroBatches - 1;
    set_sync(model, tested.off, is_last);
    if (tested.keeps_after_backward) {
      API(tpfsdp_fsdp_module_set_reshard_after_backward, model.root(), is_last, tested.off == Off::kAll);
      API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), is_last);
    }
    model.backward(model.forward(kMicroBatches * iteration + micro));
    model.end();
  }
}

class Accumulation : public testing::TestWithParam<Case> {};

TEST_P(Accumulation, gradient_accumulation) {
  const Case tested = GetParam();
  const chain::Shape shape{.blocks = 3, .reshard = tested.reshard, .root_reshard = tested.reshard};
  chain::SharedValues reference, values;
  // Every micro-batch reduced by itself: the shards add up.
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape);
    for (int i = 0; i < 5; ++i) {
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        model.backward(model.forward(kMicroBatches * i + micro));
        model.end();
      }
      model.sgd();
    }
    const chain::Values full = model.full();
    if (rank == 0) reference = full;
  });
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape);
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    int64_t accumulators = 0;
    for (int i = 0; i < 5; ++i) {
      step(model, tested, i);
      const tpfsdp_counters counters = take_counters(context);
      EXPECT_EQ(counters.reduce_scatters, tested.reduce_scatters);
      EXPECT_EQ(counters.all_gathers, tested.all_gathers);
      EXPECT_EQ(counters.all_reduces + counters.other_collectives, 0);
      EXPECT_EQ(counters.spare_slots, 0);
      // After the first step nothing is allocated: not for the switches either.
      if (i > 0) {
        EXPECT_EQ(counters.allocations, 0);
        EXPECT_EQ(api::memory(model.root()).accumulator_bytes, accumulators);
      }
      const tpfsdp_memory_info memory = api::memory(model.root());
      accumulators = memory.accumulator_bytes;
      EXPECT_EQ(memory.total_bytes, memory.planned_peak_bytes + accumulators);
      model.expect_idle();
      model.sgd();
    }
    // A full gradient of each unit that went without sync: 100 bytes -> 128, and 20.
    EXPECT_EQ(accumulators, (tested.off == Off::kAll ? 4 : tested.off == Off::kRootOnly ? 1 : 2) * (128 + 20));
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  // Sums in another order: (a + b + c) of each rank before the average, instead of after it.
  const chain::Values expected = reference.get(), got = values.get();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-5F + 1.3e-6F * std::abs(expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Counts, Accumulation,
    testing::Values(Case{"all_reshard", Off::kAll, TPFSDP_RESHARD_ALWAYS, false, 4, 24},
                    Case{"root_only_reshard", Off::kRootOnly, TPFSDP_RESHARD_ALWAYS, false, 10, 24},
                    Case{"some_blocks_reshard", Off::kSomeBlocks, TPFSDP_RESHARD_ALWAYS, false, 8, 24},
                    Case{"all_keep_forward", Off::kAll, TPFSDP_RESHARD_NEVER, false, 4, 12},
                    Case{"root_only_keep_forward", Off::kRootOnly, TPFSDP_RESHARD_NEVER, false, 10, 12},
                    Case{"some_blocks_keep_forward", Off::kSomeBlocks, TPFSDP_RESHARD_NEVER, false, 8, 12},
                    Case{"all_keep_both", Off::kAll, TPFSDP_RESHARD_NEVER, true, 4, 4},
                    Case{"root_only_keep_both", Off::kRootOnly, TPFSDP_RESHARD_NEVER, true, 10, 10}),
    [](const auto &tested) { return std::string(tested.param.name); });

// Without parameters of its own the root is not what the last backward's first block finds before it: that is a block
// of the micro-batch before, whose backward is over.
TEST(AccumulationOf, NothingIsPrefetchedForABackwardThatIsOver) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    order::Host host(context, false);
    for (const char *path : {"a", "b", "c"}) {
      host.add(path);
      host.shard({path}, TPFSDP_RESHARD_NEVER);
    }
    host.shard({""}, TPFSDP_RESHARD_NEVER);
    API(tpfsdp_root_prepare, host.at(""));
    take_counters(context);
    for (const tpfsdp_bool is_last : {0, 0, 1}) {
      API(tpfsdp_fsdp_module_set_is_last_backward, host.at(""), is_last);
      API(tpfsdp_fsdp_module_set_reshard_after_backward, host.at(""), is_last, 1);
      API(tpfsdp_module_pre_forward, host.at(""));
      for (const char *path : {"a", "b", "c"}) host.forward(path);
      API(tpfsdp_module_post_forward, host.at(""));
      host.before("");
      for (const char *path : {"c", "b", "a"}) host.backward(path);
      API(tpfsdp_module_end_backward, host.at(""));
    }
    EXPECT_EQ(take_counters(context).all_gathers, 3);
  });
}

// Parameters of one element, gradients that the test gives: what adds up where is known by hand.
class Sums {
 public:
  Sums(tpfsdp_context *context, int32_t rank) : rank_(rank), tree(context) {
    for (const char *name : {"p", "q", "z"})
      params_.push_back(tree.param<float>(tree.root, name, TPFSDP_DTYPE_F32, {4}, {1, 1, 1, 1}));
    tree.shard({tree.root});
  }
  void backward(const std::vector<int> &used, float gradient, bool handed = false) {
    API(tpfsdp_module_pre_forward, tree.root);
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    for (const int index : used)
      give(params_[static_cast<size_t>(index)], gradient * static_cast<float>(rank_ + 1), handed);
    API(tpfsdp_module_end_backward, tree.root);
  }
  void sync(bool enabled) { API(tpfsdp_fsdp_module_set_requires_gradient_sync, tree.root, enabled, 1); }
  bool has(int index) const { return api::has_grad(params_[static_cast<size_t>(index)]); }
  float gradient(int index) const {
    return static_cast<const float *>(api::face(params_[static_cast<size_t>(index)], TPFSDP_FACE_GRAD).data)[0];
  }

 private:
  void give(tpfsdp_param *param, float value, bool handed) {
    if (handed) {
      std::vector<float> values(4, value);
      const std::vector<int64_t> shape{4};
      const tpfsdp_view view = api::view(values.data(), TPFSDP_DTYPE_F32, shape);
      API(tpfsdp_param_add_grad, param, &view);
      return;
    }
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, param, 0, &grad);
    std::fill_n(static_cast<float *>(grad.data), 4, value);
    API(tpfsdp_param_grad_ready, param);
  }

  int32_t rank_;

 public:
  api::Tree tree;

 private:
  std::vector<tpfsdp_param *> params_;
};

// Gradients of rank 0 and 1 are g and 2 g: their mean is 1.5 g.
TEST(AccumulationOf, AGradientThatComesLaterOrNever) {
  for (const bool handed : {false, true}) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Sums model(context, rank);
      model.sync(false);
      model.backward({0}, 1, handed);
      EXPECT_FALSE(model.has(0));
      model.backward({0}, 2, handed);
      model.sync(true);
      model.backward({0, 1}, 4, handed);
      EXPECT_EQ(model.gradient(0), 1.5F * 7);
      EXPECT_EQ(model.gradient(1), 1.5F * 4);
      EXPECT_FALSE(model.has(2));  // B032: none is not zero
      // What was reduced does not come again; shards add up, as in PyTorch.
      model.backward({0}, 8, handed);
      EXPECT_EQ(model.gradient(0), 1.5F * 15);
    });
  }
}

TEST(AccumulationOf, TheLastBackwardMayBringNothingNew) {
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Sums model(context, rank);
    model.sync(false);
    model.backward({0}, 1);
    model.backward({1}, 2);
    model.sync(true);
    take_counters(context);
    model.backward({}, 0);
    EXPECT_EQ(take_counters(context).reduce_scatters, 1);
    EXPECT_EQ(model.gradient(0), 1.5F);
    EXPECT_EQ(model.gradient(1), 3);
  });
}

TEST(AccumulationOf, AResetForgetsWhatWasNotReduced) {
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Sums model(context, rank);
    model.sync(false);
    model.backward({0}, 1);
    API(tpfsdp_fsdp_module_reset_iter_state, model.tree.root);
    model.sync(true);
    model.backward({0}, 2);
    EXPECT_EQ(model.gradient(0), 3);
  });
}

TEST(AccumulationOf, NothingIsFrozenWhileGradientsWait) {
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Sums model(context, rank);
    model.sync(false);
    model.backward({0}, 1);
    const auto refused = chain::caught([&] { API(tpfsdp_module_set_requires_grad, model.tree.root, 0); });
    EXPECT_EQ(refused.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(refused.what(), chain::HasSubstr("between steps"));
  });
}

// B024, B031: the switch is read back, and each micro-batch counts once.
TEST(AccumulationOf, B024_B031_EveryMicroBatchCountsOnce) {
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Sums model(context, rank);
    for (int i = 0; i < 3; ++i) {
      take_counters(context);
      model.sync(i == 2);
      tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
      API(tpfsdp_fsdp_module_get_info, model.tree.root, &info);
      EXPECT_EQ(info.requires_gradient_sync, i == 2);
      model.backward({0}, 4.0F / static_cast<float>(rank + 1));
      EXPECT_EQ(take_counters(context).reduce_scatters, i == 2);
    }
    EXPECT_EQ(model.gradient(0), 12);
  });
}

}  // namespace
