// SPDX-License-Identifier: Apache-2.0
// What a step costs: memory by the library's counters and by the account of its allocations, and no allocation at all
// in the steady state, also none through operator new.
#include "support/allocation.hpp"
#include "support/toy_host.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace {

constexpr int kGroups = 12;
constexpr int64_t kWidth = 128;                      // a weight of 64 KiB
constexpr int64_t kUnitBytes = kWidth * kWidth * 4;  // gathered; whole multiples of every alignment
constexpr int64_t kRootBytes = 32 * 1024;

struct Model {
  Model(tpfsdp_context *context, tpfsdp_reshard_kind reshard, tpfsdp_dtype param_dtype = 0) : tree(context) {
    tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
    policy.param_dtype = param_dtype;
    tpfsdp_fully_shard_options options = api::privately();
    options.mp_policy = &policy;
    const std::vector<float> values(static_cast<size_t>(kWidth * kWidth), 0.25f);
    for (int g = 0; g < kGroups; ++g) {
      modules.push_back(tree.child(tree.root, "g" + std::to_string(g)));
      weights.push_back(tree.param(modules.back(), "weight", TPFSDP_DTYPE_F32, {kWidth, kWidth}, values));
      tree.shard({modules.back()}, reshard, options);
    }
    root_weight = tree.param(tree.root, "weight", TPFSDP_DTYPE_F32, {64, 128}, std::vector<float>(64 * 128, 1.0f));
    tree.shard({tree.root}, reshard, options);
  }

  void step() {
    tpfsdp_view grad{};
    API(tpfsdp_module_pre_forward, tree.root);
    for (tpfsdp_module *module : modules) {
      API(tpfsdp_module_pre_forward, module);
      API(tpfsdp_module_post_forward, module);
    }
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    for (size_t g = modules.size(); g-- > 0;) {
      API(tpfsdp_module_pre_backward, modules[g]);
      API(tpfsdp_param_get_grad_buffer, weights[g], 0, &grad);
      std::memset(grad.data, 0x3f, static_cast<size_t>(grad.size_bytes));
      API(tpfsdp_param_grad_ready, weights[g]);
      API(tpfsdp_module_post_backward, modules[g]);
    }
    API(tpfsdp_param_get_grad_buffer, root_weight, 1, &grad);
    API(tpfsdp_param_grad_ready, root_weight);
    API(tpfsdp_module_end_backward, tree.root);
    API(tpfsdp_module_zero_grad, tree.root, 1);
  }

  api::Tree tree;
  std::vector<tpfsdp_module *> modules;
  std::vector<tpfsdp_param *> weights;
  tpfsdp_param *root_weight = nullptr;
};

TEST(Memory, TwelveGroupsWithAlwaysHoldShardsRootAndTwoGroups) {
  constexpr int kWorld = 4;
  api::run_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context, TPFSDP_RESHARD_ALWAYS);
    for (int step = 0; step < 3; ++step) model.step();
    const tpfsdp_memory_info info = api::memory(model.tree.root);
    const int64_t shards = (kGroups * kUnitBytes + kRootBytes) / kWorld;
    EXPECT_EQ(info.shard_bytes, shards);
    EXPECT_EQ(info.grad_shard_bytes, shards);
    EXPECT_EQ(info.slot_count, 3);  // the root's, and two that the groups share
    EXPECT_EQ(info.slot_bytes, kRootBytes + 2 * kUnitBytes);
    EXPECT_EQ(info.grad_slot_bytes, kRootBytes + 2 * kUnitBytes);
    EXPECT_EQ(info.spare_slot_count, 0);
    // Parameter bytes of a rank, by counter; and all bytes, by the allocations' own account, now and at the peak.
    EXPECT_LE(info.shard_bytes + info.slot_bytes, shards + kRootBytes + 2 * kUnitBytes);
    const int64_t formula = 2 * shards + 2 * (kRootBytes + 2 * kUnitBytes);
    EXPECT_EQ(info.planned_peak_bytes, formula);
    EXPECT_EQ(info.total_bytes, formula);
    EXPECT_EQ(info.peak_bytes, formula);
  });
}

TEST(Memory, NothingIsAllocatedInASteadyStep) {
  api::run_ranks(2, [](tpfsdp_context *context, int32_t) {
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    struct Case {
      tpfsdp_reshard_kind reshard;
      tpfsdp_dtype param_dtype;
    };
    for (const Case &c : {Case{TPFSDP_RESHARD_ALWAYS, 0}, Case{TPFSDP_RESHARD_AUTO, 0}, Case{TPFSDP_RESHARD_NEVER, 0},
                          Case{TPFSDP_RESHARD_ALWAYS, TPFSDP_DTYPE_BF16}}) {
      Model model(context, c.reshard, c.param_dtype);
      for (int step = 0; step < 3; ++step) model.step();
      tpfsdp_counters before = TPFSDP_INIT(tpfsdp_counters);
      API(tpfsdp_trace_get_counters, context, 1, &before);
      API(tpfsdp_group_barrier, info.group);
      const int64_t made = tpfsdp::allocation::made();
      for (int step = 0; step < 5; ++step) model.step();
      EXPECT_EQ(tpfsdp::allocation::made(), made) << "on any rank";
      API(tpfsdp_group_barrier, info.group);
      EXPECT_EQ(api::counters(context).allocations, 0);
    }
  });
}

TEST(Memory, CountsOfOneStep) {
  constexpr int kWorld = 4;
  struct Case {
    tpfsdp_reshard_kind reshard;
    int64_t gathers;
  };
  for (const Case &c : {Case{TPFSDP_RESHARD_ALWAYS, 2 * (kGroups + 1)}, Case{TPFSDP_RESHARD_AUTO, 2 * kGroups + 1},
                        Case{TPFSDP_RESHARD_NEVER, kGroups + 1}}) {
    api::run_ranks(kWorld, [&](tpfsdp_context *context, int32_t) {
      Model model(context, c.reshard);
      model.step();
      tpfsdp_counters start = TPFSDP_INIT(tpfsdp_counters);
      API(tpfsdp_trace_get_counters, context, 1, &start);
      model.step();
      const tpfsdp_counters counts = api::counters(context);
      EXPECT_EQ(counts.all_gathers, c.gathers);
      EXPECT_EQ(counts.reduce_scatters, kGroups + 1);
      EXPECT_EQ(counts.all_reduces + counts.other_collectives, 0);
      const int64_t root_gathers = c.reshard == TPFSDP_RESHARD_ALWAYS ? 2 : 1;
      const int64_t gathered = (c.gathers - root_gathers) * kUnitBytes + root_gathers * kRootBytes;
      const int64_t reduced = kGroups * kUnitBytes + kRootBytes;
      EXPECT_EQ(counts.gathered_bytes, gathered);
      EXPECT_EQ(counts.reduced_bytes, reduced);
      EXPECT_EQ(counts.wire_bytes, (gathered + reduced) / kWorld * (kWorld - 1));
      EXPECT_EQ(counts.copies, 0);
      EXPECT_EQ(counts.copied_bytes, 0);
      EXPECT_EQ(counts.spare_slots, 0);
    });
  }
}

}  // namespace
