// SPDX-License-Identifier: Apache-2.0
// One tree over the two dimensions of a mesh: units of two groups, of which no rank is in all. Failures reach every
// rank, and a reset goes out on all groups at once.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using chain::Values;

// The root over rows {0, 1} and {2, 3}, the blocks over columns {0, 2} and {1, 3}.
struct Grid {
  explicit Grid(tpfsdp_context *context) {
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    const int32_t sizes[] = {2, 2};
    const char *names[] = {"column", "row"};
    tpfsdp_mesh *mesh = nullptr;
    API(tpfsdp_mesh_create, info.group, sizes, 2, names, 2, &mesh);
    whole.reset(mesh);
    API(tpfsdp_mesh_slice, mesh, names, 1, &mesh);
    columns.reset(mesh);
    API(tpfsdp_mesh_slice, whole.get(), names + 1, 1, &mesh);
    rows.reset(mesh);
  }
  chain::Shape shape(int64_t blocks) const {
    return {.blocks = blocks, .mesh = rows.get(), .block_mesh = columns.get()};
  }
  api::Owned<tpfsdp_mesh> whole, columns, rows;
};

Values run(int steps, const std::function<void(chain::Chain &, int32_t)> &trouble = {}) {
  chain::SharedValues of_rank[4];
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    const Grid grid(context);
    chain::Chain model(context, rank, grid.shape(2));
    model.step(0);
    if (trouble) {
      trouble(model, rank);
      model.at = [](const std::string &) {};
      model.reset();
      model.expect_idle();
    }
    for (int i = 1; i < steps; ++i) model.step(i);
    of_rank[rank] = model.full();
  });
  Values all;
  for (const chain::SharedValues &shared : of_rank) {
    const Values values = shared.get();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(TwoGroups, UnitsAreGatheredAndReducedInTheirOwn) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    const Grid grid(context);
    chain::Chain model(context, rank, grid.shape(1));
    chain::take_counters(context);
    API(tpfsdp_root_prepare, model.root());
    EXPECT_EQ(chain::take_counters(context).all_gathers, 2);  // one comparison a group
    model.step(0);
    const tpfsdp_counters counters = chain::take_counters(context);
    EXPECT_EQ(counters.all_gathers, 3);
    EXPECT_EQ(counters.reduce_scatters, 2);
    const tpfsdp_view shard = api::face(model.weight(0), TPFSDP_FACE_SHARD);
    EXPECT_EQ(shard.shape[0], rank % 2 == 0 ? 3 : 2);
    EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_SHARD).shape[0], rank < 2 ? 3 : 2);
    EXPECT_EQ(api::memory(model.root()).grad_slot_count, 2);
  });
}

TEST(TwoGroups, AFailureReachesRanksThatShareNoGroupWithIt) {
  const Values clean = run(4);
  for (const char *point : {"forward b1", "in backward b0", "end"}) {
    SCOPED_TRACE(point);
    Meeting meeting(4);
    const Values repaired = run(4, [&](chain::Chain &model, int32_t rank) {
      struct Stop {};
      if (rank == 0) {
        model.at = [&](const std::string &here) {
          if (here != point) return;
          API(tpfsdp_root_fail, model.root(), "rank zero is out");
          throw Stop();
        };
        EXPECT_THROW(model.step(1), Stop);
      } else {
        // Rank 3 waits for ranks 1 and 2 only, which tell it before anybody resets.
        const api::Error error = caught([&] { model.step(1); });
        EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("rank zero is out"));
      }
      meeting.arrive_and_wait();
    });
    EXPECT_EQ(repaired, clean);
  }
}

TEST(TwoGroups, ADifferenceInOneGroupIsToldToTheOther) {
  Meeting meeting(4);
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    const Grid grid(context);
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a");
    tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4}, Values(4, rank == 1 ? 2.0f : 1.0f));  // rows: 0 and 1 differ
    tree.param(a, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tree.shard({a}, TPFSDP_RESHARD_AUTO, TPFSDP_INIT(tpfsdp_fully_shard_options), grid.columns.get());
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, TPFSDP_INIT(tpfsdp_fully_shard_options), grid.rows.get());
    const api::Error error = caught([&] {
      for (int i = 0; i < 2; ++i) {
        API(tpfsdp_module_pre_forward, tree.root);
        API(tpfsdp_module_pre_forward, a);
        API(tpfsdp_module_post_forward, a);
      }
    });
    EXPECT_EQ(error.status, rank < 2 ? TPFSDP_ERR_MISMATCH : TPFSDP_ERR_REMOTE) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("start with different models"));
    meeting.arrive_and_wait();
    API(tpfsdp_fsdp_module_reset_iter_state, tree.root);
  });
}

// Ranks 1 and 2 reset in the middle of a step while 0 and 3 wait, each for one of them on one group, and are waited for
// on the other: group by group this has no end.
TEST(TwoGroups, AResetGoesOutOnAllGroupsBeforeItWaitsOnAny) {
  Meeting meeting(4);
  const Values repaired = run(3, [&](chain::Chain &model, int32_t rank) {
    API(tpfsdp_module_pre_forward, model.root());
    meeting.arrive_and_wait();
    if (rank == 1 || rank == 2) return;  // to reset
    const api::Error error = caught([&] { API(tpfsdp_module_pre_forward, model.block(0)); });
    EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("reset"));
  });
  EXPECT_EQ(repaired, run(3));
}

}  // namespace
