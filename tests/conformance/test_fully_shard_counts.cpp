// SPDX-License-Identifier: Apache-2.0
// Exact counts of one step: collectives, bytes, copies, slots, for every policy.
#include "support/chain.hpp"

namespace {

using chain::on_ranks;
using chain::take_counters;

// Every unit: a weight (5, 5) and a bias (5) of f32, 120 bytes; rank 0 of 2 owns three rows, 72 bytes, rank 1 48.
constexpr int64_t kUnitBytes = 120;
int64_t own_bytes(int32_t rank) { return rank == 0 ? 72 : 48; }

struct Expected {
  const char *name;
  tpfsdp_reshard_kind blocks, root;
  int64_t backward_gathers, hits, misses;
};

class Counts : public testing::TestWithParam<Expected> {};

// Upstream: blocks + 1 gathers in forward; in backward blocks (automatic), blocks + 1 (true) or none (false).
TEST_P(Counts, fully_shard_communication_count) {
  const Expected expected = GetParam();
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    // What a gather brings: a peer's rows, or with one copy for all nothing but this rank's own, written once.
    const tpfsdp_unshard_mode mode = api::unshard_mode_of_suite();
    const int64_t moved = mode == TPFSDP_UNSHARD_AUTO ? own_bytes(1 - rank) : 0;
    const int64_t filled = mode == TPFSDP_UNSHARD_SHARED ? own_bytes(rank) : 0;
    chain::Chain model(context, rank, {.blocks = 3, .reshard = expected.blocks, .root_reshard = expected.root});
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    for (int iteration = 0; iteration < 3; ++iteration) {
      const chain::Values y = model.forward(iteration);
      const tpfsdp_counters forward = take_counters(context);
      EXPECT_EQ(forward.all_gathers, 4);
      EXPECT_EQ(forward.gathered_bytes, 4 * kUnitBytes);
      EXPECT_EQ(forward.wire_bytes, 4 * moved);
      EXPECT_EQ(forward.filled_bytes, 4 * filled);
      EXPECT_EQ(forward.reduce_scatters + forward.all_reduces + forward.other_collectives, 0);
      EXPECT_EQ(forward.prefetch_hits + forward.prefetch_misses, 0);

      model.backward(y);
      model.end();
      const tpfsdp_counters backward = take_counters(context);
      EXPECT_EQ(backward.all_gathers, expected.backward_gathers);
      EXPECT_EQ(backward.reduce_scatters, 4);
      EXPECT_EQ(backward.all_reduces + backward.other_collectives, 0);
      EXPECT_EQ(backward.gathered_bytes, expected.backward_gathers * kUnitBytes);
      EXPECT_EQ(backward.reduced_bytes, 4 * kUnitBytes);
      EXPECT_EQ(backward.wire_bytes, expected.backward_gathers * moved + 4 * own_bytes(rank));
      EXPECT_EQ(backward.filled_bytes, expected.backward_gathers * filled);
      EXPECT_EQ(backward.prefetch_hits, expected.hits);
      EXPECT_EQ(backward.prefetch_misses, expected.misses);
      EXPECT_EQ(forward.copies + backward.copies, 0);
      EXPECT_EQ(forward.spare_slots + backward.spare_slots, 0);
      EXPECT_EQ(forward.allocations + backward.allocations, 0);
      model.expect_idle();
      model.sgd();
      EXPECT_EQ(take_counters(context).all_gathers, 0);
    }
    EXPECT_EQ(api::unit_info(model.block(1)).wire_bytes, moved);
    EXPECT_EQ(api::unit_info(model.block(1)).logical_bytes, kUnitBytes);
    EXPECT_EQ(api::unit_info(model.block(1)).unshards, expected.backward_gathers == 0 ? 3 : 6);
  });
}

INSTANTIATE_TEST_SUITE_P(Policies, Counts,
                         testing::Values(Expected{"automatic", TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_AUTO, 3, 3, 0},
                                         Expected{"always", TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_ALWAYS, 4, 3, 1},
                                         Expected{"never", TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_NEVER, 0, 0, 0}),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(CountsOnce, world_size_1) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 3});
    for (int i = 0; i < 3; ++i) model.step(i);
    const tpfsdp_counters counters = take_counters(context);
    EXPECT_EQ(counters.all_gathers + counters.reduce_scatters + counters.all_reduces + counters.other_collectives, 0);
    EXPECT_EQ(counters.wire_bytes, 0);
    EXPECT_EQ(counters.gathered_bytes, 3 * 7 * kUnitBytes);
    EXPECT_EQ(counters.reduced_bytes, 3 * 4 * kUnitBytes);
  });
  // Two ranks with the same input average two equal gradients: the same bits.
  chain::SharedValues two;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, 0, {.blocks = 3});
    for (int i = 0; i < 3; ++i) model.step(i);
    const chain::Values full = model.full();
    if (rank == 0) two = full;
  });
  EXPECT_EQ(two.get(), chain::clean_run(1, 3));
}

TEST(CountsOnce, TheStartComparesOnceAndTheMemoryIsWhatTheFormulaSays) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 12, .options = api::privately()});
    take_counters(context);
    API(tpfsdp_root_prepare, model.root());
    EXPECT_EQ(take_counters(context).all_gathers, 1);
    API(tpfsdp_root_prepare, model.root());
    EXPECT_EQ(take_counters(context).all_gathers, 0);
    const tpfsdp_memory_info memory = api::memory(model.root());
    // Weight at 0, bias at the next 64-byte bound: 100 bytes -> 128 + 20 in full; rank 0 has 60 -> 64 + 12 in its
    // shard.
    const int64_t full = 128 + 20, shard = 64 + (rank == 0 ? 12 : 8);
    EXPECT_EQ(memory.slot_count, 3);
    EXPECT_EQ(memory.grad_slot_count, 3);
    EXPECT_EQ(memory.spare_slot_count, 0);
    EXPECT_EQ(memory.shard_bytes, 13 * shard);
    EXPECT_EQ(memory.grad_shard_bytes, 13 * shard);
    EXPECT_EQ(memory.slot_bytes, 3 * full);
    EXPECT_EQ(memory.grad_slot_bytes, 3 * full);
    EXPECT_EQ(memory.host_bytes, 0);
    EXPECT_EQ(memory.total_bytes, 26 * shard + 6 * full);
    EXPECT_EQ(memory.planned_peak_bytes, memory.total_bytes);
    for (int i = 0; i < 3; ++i) model.step(i);
    const tpfsdp_memory_info after = api::memory(model.root());
    EXPECT_EQ(after.total_bytes, memory.total_bytes);
    EXPECT_EQ(after.peak_bytes, after.planned_peak_bytes);
  });
}

TEST(CountsOnce, AUnitKeepsItsAddressesUntilTheNextPlan) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 5, .root_reshard = TPFSDP_RESHARD_ALWAYS});
    std::vector<const void *> addresses;
    std::vector<int64_t> epochs;
    for (int i = 0; i < 3; ++i) {
      size_t at = 0;
      model.at = [&](const std::string &point) {
        if (point.rfind("in ", 0) != 0) return;
        const size_t block = static_cast<size_t>(point.back() - '0');
        const tpfsdp_view view = api::face(model.weight(block + 1), TPFSDP_FACE_FULL);
        if (at == addresses.size()) {
          addresses.push_back(view.data);
          epochs.push_back(view.epoch);
        }
        EXPECT_EQ(view.data, addresses[at]) << point;
        EXPECT_EQ(view.epoch, epochs[at]) << point;
        ++at;
      };
      model.step(i);
    }
    ASSERT_EQ(addresses.size(), 10u);
    for (size_t block = 0; block < 5; ++block) EXPECT_EQ(addresses[block], addresses[9 - block]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(addresses[0]) % 64, 0u);
  });
}

TEST(CountsOnce, AListUnitAndWhatRunsBetweenItsModulesNeedNoSpareMemory) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    std::vector<tpfsdp_module *> modules;
    for (const char *name : {"a", "mid", "c"}) {
      modules.push_back(tree.child(tree.root, name));
      tree.param(modules.back(), "w", TPFSDP_DTYPE_F32, {4}, chain::Values(4, 1));
      tpfsdp_module *inner = tree.child(modules.back(), "inner");
      tree.param(inner, "w", TPFSDP_DTYPE_F32, {4}, chain::Values(4, 1));
      tree.shard({inner});
      modules.push_back(inner);
    }
    tree.shard({modules[2]});
    tree.shard({modules[0], modules[4]});
    tree.shard({tree.root});
    for (int i = 0; i < 2; ++i) {
      API(tpfsdp_module_pre_forward, tree.root);
      for (size_t m = 0; m < 6; m += 2) {
        API(tpfsdp_module_pre_forward, modules[m]);
        API(tpfsdp_module_pre_forward, modules[m + 1]);
        API(tpfsdp_module_post_forward, modules[m + 1]);
        API(tpfsdp_module_post_forward, modules[m]);
      }
      API(tpfsdp_module_post_forward, tree.root);
      API(tpfsdp_module_end_backward, tree.root);
    }
    EXPECT_EQ(api::memory(tree.root).spare_slot_count, 0);
    EXPECT_EQ(take_counters(context).spare_slots, 0);
  });
}

}  // namespace
