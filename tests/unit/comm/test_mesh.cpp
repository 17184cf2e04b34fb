// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.hpp"
#include "comm/exchange.hpp"
#include "comm/mesh.hpp"
#include "comm/run_ranks.hpp"
#include "unit/comm/refusal.hpp"

#include <gtest/gtest.h>

#include <atomic>

namespace tpfsdp {
namespace {

using Ranks = std::vector<int32_t>;

template <class Body>
void on(int32_t ranks, Body &&body) {
  run_ranks(ranks, {},
            [&](int32_t rank, int32_t, const Ref<Context> &context) { body(rank, Ref<Group>(&context->group())); });
}

TEST(Mesh, LaysRanksOutRowMajor) {
  on(12, [](int32_t rank, const Ref<Group> &group) {
    const Ref<Mesh> mesh = Mesh::create(group, {2, 3, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(mesh->sizes(), (Ranks{2, 3, 2}));
    EXPECT_EQ(mesh->coordinates(), (Ranks{rank / 6, rank / 2 % 3, rank % 2}));
    EXPECT_EQ(mesh->rank_count(), 12);
    EXPECT_EQ(mesh->names(), (std::vector<std::string>{"pp", "dp", "tp"}));
    EXPECT_STREQ(mesh->name_pointers()[1], "dp");
    const int32_t plane = rank / 6 * 6, in_plane = rank % 6;
    EXPECT_EQ(mesh->group(0)->global_ranks(), (Ranks{in_plane, in_plane + 6}));
    EXPECT_EQ(mesh->group(1)->global_ranks(), (Ranks{plane + rank % 2, plane + rank % 2 + 2, plane + rank % 2 + 4}));
    EXPECT_EQ(mesh->group(2)->global_ranks(), (Ranks{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(mesh->group(1)->name(), "dp");
    for (int32_t dim = 0; dim < 3; ++dim) {
      const auto seen = exchange(mesh->group(dim), rank);
      EXPECT_EQ(seen, mesh->group(dim)->global_ranks());
    }
  });
}

TEST(Mesh, DimensionOfAllRanksIsTheGroupItselfAndOfOneNeedsNone) {
  on(3, [](int32_t, const Ref<Group> &group) {
    const Ref<Mesh> mesh = Mesh::create(group, {1, 3}, {"replicate", "shard"});
    EXPECT_EQ(mesh->group(1), group);
    EXPECT_EQ(mesh->group(0)->comm(), nullptr);
    EXPECT_TRUE(Mesh::create(group, {3}, {})->names().empty());
  });
}

TEST(Mesh, BadShapesAreRefusedOnEveryRank) {
  on(4, [](int32_t rank, const Ref<Group> &group) {
    const auto refused = [&](const Ranks &sizes, const std::vector<std::string> &names) {
      const std::string text = refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { Mesh::create(group, sizes, names); });
      group->reset();
      return text;
    };
    EXPECT_TRUE(contains(refused({2, 3}, {"a", "b"}), "a mesh of a=2 x b=3 holds 6 ranks"));
    EXPECT_TRUE(contains(refused({}, {}), "at least one dimension"));
    EXPECT_TRUE(contains(refused({-2, -2}, {}), "sizes[0] is -2"));
    EXPECT_TRUE(contains(refused({65536, 65536, 65536, 65536, 4}, {}), "holds"));
    EXPECT_TRUE(contains(refused({2, 2}, {"a"}), "2 dimensions was given 1 names"));
    EXPECT_TRUE(contains(refused({2, 2}, {"a", "a"}), "two dimensions are called \"a\""));
    EXPECT_TRUE(contains(refused({2, 2}, {"a", ""}), "names[1] is empty"));
    // One rank alone: the others hear it.
    const Status status = rank == 2 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_ERR_REMOTE;
    EXPECT_TRUE(contains(refusal(status, [&] { Mesh::create(group, {2, rank == 2 ? 3 : 2}, {}); }), "holds 6 ranks"));
  });
}

TEST(Mesh, RanksThatAskForDifferentMeshesAreTold) {
  on(4, [](int32_t rank, const Ref<Group> &group) {
    const Ranks sizes = rank == 3 ? Ranks{4} : Ranks{2, 2};
    const std::string text = refusal(TPFSDP_ERR_MISMATCH, [&] { Mesh::create(group, sizes, {}); });
    EXPECT_TRUE(contains(text, "rank 0 2 x 2, rank 1 2 x 2, rank 2 2 x 2, rank 3 4")) << text;
    barrier(group);  // nothing is left behind
    EXPECT_EQ(Mesh::create(group, {2, 2}, {})->ndim(), 2);
  });
}

TEST(Mesh, SliceTakesDimensionsInAnyOrder) {
  on(4, [](int32_t, const Ref<Group> &group) {
    const Ref<Mesh> mesh = Mesh::create(group, {2, 2}, {"dp", "tp"});
    const Ref<Mesh> turned = mesh->slice({"tp", "dp"});
    EXPECT_EQ(turned->group(0), mesh->group(1));
    EXPECT_EQ(turned->coordinates(), (Ranks{mesh->coordinates()[1], mesh->coordinates()[0]}));
    EXPECT_EQ(mesh->slice({"dp"})->rank_count(), 2);
    EXPECT_TRUE(contains(refusal(TPFSDP_ERR_NOT_FOUND, [&] { mesh->slice({"pp"}); }),
                         "no dimension \"pp\"; it has \"dp\", \"tp\""));
    EXPECT_TRUE(contains(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { mesh->slice({"dp", "dp"}); }), "named twice"));
    EXPECT_TRUE(contains(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { mesh->slice({}); }), "no dimension was named"));
    EXPECT_TRUE(contains(refusal(TPFSDP_ERR_NOT_FOUND, [&] { Mesh::create(group, {4}, {})->slice({"dp"}); }),
                         "it has no names"));
  });
}

TEST(Mesh, FlattenMergesInTheOrderGiven) {
  on(12, [](int32_t rank, const Ref<Group> &group) {
    const Ref<Mesh> mesh = Mesh::create(group, {2, 3, 2}, {"pp", "dp", "tp"});
    const int32_t tp = rank % 2, pp = rank / 6;
    const Ref<Mesh> outer = mesh->flatten({"pp", "dp"}, "pp_dp");
    EXPECT_EQ(outer->group(0)->global_ranks(), (Ranks{tp, tp + 2, tp + 4, tp + 6, tp + 8, tp + 10}));
    EXPECT_EQ(outer->names(), std::vector<std::string>{"pp_dp"});
    EXPECT_EQ(exchange(outer->group(0), rank), outer->group(0)->global_ranks());
    const Ref<Mesh> turned = mesh->flatten({"tp", "dp"}, "tp_dp");  // dp varies fastest
    const int32_t first = 6 * pp;
    EXPECT_EQ(turned->group(0)->global_ranks(), (Ranks{first, first + 2, first + 4, first + 1, first + 3, first + 5}));
    EXPECT_EQ(mesh->flatten({"dp"}, "only")->group(0), mesh->group(1));
    refusal(TPFSDP_ERR_NOT_FOUND, [&] { mesh->flatten({"dp", "ep"}, "x"); });
    for (int32_t dim = 0; dim < 3; ++dim) mesh->group(dim)->reset();
  });
}

TEST(Mesh, FromGroupsTakesTheLinesOfAGrid) {
  on(6, [](int32_t rank, const Ref<Group> &group) {
    const Ref<Group> row = Group::split(group, rank / 3, rank, "row");
    const Ref<Group> column = Group::split(group, rank % 3, rank, "column");
    const Ref<Mesh> mesh = Mesh::from_groups({column, row}, {"replicate", "shard"});
    EXPECT_EQ(mesh->sizes(), (Ranks{2, 3}));
    EXPECT_EQ(mesh->coordinates(), (Ranks{rank / 3, rank % 3}));
    EXPECT_EQ(mesh->flatten({"replicate", "shard"}, "all")->group(0)->global_ranks(), (Ranks{0, 1, 2, 3, 4, 5}));
    const std::string twice = refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { Mesh::from_groups({row, row}, {}); });
    EXPECT_TRUE(contains(twice, "twice")) << twice;
    refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { Mesh::from_groups({column, row}, {"one name"}); });
    for (const Ref<Group> &line : {column, row}) line->reset();
    EXPECT_EQ(Mesh::from_groups({row}, {})->rank_count(), 3);
  });
}

TEST(Mesh, FromGroupsRefusesLinesThatDoNotCross) {
  on(4, [](int32_t rank, const Ref<Group> &group) {
    // Rows 01 and 23; the columns are crossed the wrong way round: 02 13 for some, 03 12 would be another grid.
    const Ref<Group> row = Group::split(group, rank / 2, rank, "row");
    const Ref<Group> column = Group::split(group, rank % 2, rank < 2 ? rank : (rank == 2 ? -1 : rank), "column");
    const std::string text = refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { Mesh::from_groups({column, row}, {}); });
    EXPECT_TRUE(contains(text, "not the lines of one grid")) << text;
  });
}

}  // namespace
}  // namespace tpfsdp
