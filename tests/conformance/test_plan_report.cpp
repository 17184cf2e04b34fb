// SPDX-License-Identifier: Apache-2.0
// The plan says before the first step what the counters say after it.
#include "support/chain.hpp"

#include <nlohmann/json.hpp>

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using json = nlohmann::ordered_json;

std::string plan_of(tpfsdp_module *root, tpfsdp_plan_format format) {
  tpfsdp_blob *blob = nullptr;
  API(tpfsdp_root_export_plan, root, format, &blob);
  const api::Owned<tpfsdp_blob> held(blob);
  const void *data = nullptr;
  int64_t size_bytes = 0;
  API(tpfsdp_blob_get, blob, &data, &size_bytes);
  return std::string(static_cast<const char *>(data), static_cast<size_t>(size_bytes));
}

struct Policy {
  const char *name;
  tpfsdp_reshard_kind kind;
  int32_t size;
};

class PlanReport : public testing::TestWithParam<Policy> {};

TEST_P(PlanReport, SaysWhatAStepCosts) {
  const Policy policy = GetParam();
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    chain::Shape shape{.blocks = 3, .reshard = policy.kind, .root_reshard = policy.kind};
    shape.options.reshard_after_forward.size = policy.size;
    Chain model(context, rank, shape);
    API(tpfsdp_root_prepare, model.root());
    const json plan = json::parse(plan_of(model.root(), TPFSDP_PLAN_JSON));
    chain::take_counters(context);
    model.step(0);
    const tpfsdp_counters counters = chain::take_counters(context);
    EXPECT_EQ(plan["gathers_per_step"], counters.all_gathers);
    EXPECT_EQ(plan["reductions_per_step"], counters.reduce_scatters);
    EXPECT_EQ(plan["received_bytes_per_step"], counters.wire_bytes);
    const tpfsdp_memory_info memory = api::memory(model.root());
    EXPECT_EQ(plan["planned_peak_bytes"], memory.peak_bytes);
    EXPECT_EQ(plan["slot_bytes"].size(), static_cast<size_t>(memory.slot_count));
    EXPECT_EQ(plan["shard_bytes"], memory.shard_bytes);
    EXPECT_EQ(plan["part_bytes"], memory.part_bytes);
    EXPECT_EQ(plan["rank"], rank);
    EXPECT_EQ(plan_of(model.root(), TPFSDP_PLAN_DEFAULT), plan.dump(1));
  });
}

INSTANTIATE_TEST_SUITE_P(Policies, PlanReport,
                         testing::Values(Policy{"automatic", TPFSDP_RESHARD_AUTO, 0},
                                         Policy{"always", TPFSDP_RESHARD_ALWAYS, 0},
                                         Policy{"never", TPFSDP_RESHARD_NEVER, 0},
                                         Policy{"to_size_2", TPFSDP_RESHARD_SIZE, 2}),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(PlanReportOf, ASmallTreeAsText) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_module *const block = tree.child(tree.root, "block");
    tree.param<float>(block, "weight", TPFSDP_DTYPE_F32, {3, 2}, {1, 2, 3, 4, 5, 6});
    tree.param<float>(block, "scale", TPFSDP_DTYPE_F32, {1}, {1}, false);
    tree.param<float>(tree.root, "<bias>", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    tree.shard({block}, TPFSDP_RESHARD_AUTO, api::privately());
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, api::privately());
    EXPECT_EQ(caught([&] { plan_of(tree.root, TPFSDP_PLAN_TEXT); }).status, TPFSDP_ERR_STATE);
    API(tpfsdp_root_prepare, tree.root);
    if (rank == 0) {
      EXPECT_EQ(plan_of(tree.root, TPFSDP_PLAN_TEXT),
                R"(Plan of rank 0: bytes, and counts of a step of one forward and one backward

unit    ranks            reshard     mode  slot  gradient slot  shard  full  padding  gathers  reductions  received
<root>      2   automatic: never  private     0              0      8    16        0        1           1        16
block       2  automatic: always  private     1              1     68    68       40        2           1        32
all                                                                76                       3           2        48

Rows of dimension 0 that each rank owns

parameter               unit  dtype   shape  rank 0  rank 1
<bias>                <root>    f32     (4)     0-1     2-3
block.weight           block    f32  (3, 2)     0-1     2-2
block.scale (frozen)   block    f32     (1)     0-0    none

memory of this rank         bytes
shards of parameters           76
shards of gradients            24
slot 0 for full parameters     16
slot 1 for full parameters     68
slot 0 for full gradients      16
slot 1 for full gradients      24
planned peak                  224
)");
      const std::string page = plan_of(tree.root, TPFSDP_PLAN_HTML);
      EXPECT_THAT(page, HasSubstr("<td>&lt;bias&gt;</td>"));
      EXPECT_THAT(page, HasSubstr("<h3>Slot 1, 68 bytes</h3>\n<div class=bar style='width:100%'>block</div>"));
    }
    EXPECT_EQ(caught([&] { plan_of(tree.root, 4); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(caught([&] { plan_of(block, TPFSDP_PLAN_TEXT); }).status, TPFSDP_ERR_STATE);
  });
}

}  // namespace
