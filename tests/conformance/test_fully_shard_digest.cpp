// SPDX-License-Identifier: Apache-2.0
// Ranks that start with different models: every rank is told the parameter and what each rank has; nothing is trained.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;
using testing::AllOf;

// root { a { w, b } }, built by rank; `differ` changes rank 1's before it is sharded.
struct Model {
  Model(tpfsdp_context *context, int32_t rank, tpfsdp_init_mode init = TPFSDP_INIT_DEFAULT)
      : tree(context), rank_(rank) {
    options.init = init;
    a = tree.child(tree.root, "a");
  }
  tpfsdp_param *add(const std::string &name, const std::vector<int64_t> &shape, float value) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return tree.param(a, name, TPFSDP_DTYPE_F32, shape, Values(static_cast<size_t>(count), value));
  }
  void shard(tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO) {
    tree.shard({a}, reshard, options);
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
  }
  // Every rank fails alike, with a text that has all of these.
  void expect_mismatch(const std::vector<std::string> &parts) {
    const api::Error error = caught([&] { API(tpfsdp_module_pre_forward, tree.root); });
    EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH) << error.what();
    for (const std::string &part : parts) EXPECT_THAT(error.what(), HasSubstr(part)) << "rank " << rank_;
    EXPECT_THAT(error.what(), HasSubstr("on every rank"));
  }
  void reset() { API(tpfsdp_fsdp_module_reset_iter_state, tree.root); }

  api::Tree tree;
  tpfsdp_module *a;
  tpfsdp_fully_shard_options options = api::privately();

 private:
  int32_t rank_;
};

TEST(Digest, Values) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank);
    model.add("w", {4, 2}, 1);
    tpfsdp_param *b = model.add("b", {3}, rank == 1 ? 2.0f : 1.0f);
    model.shard();
    model.expect_mismatch({"parameter a.b of unit a", "rank 0 has", "rank 1 has", "rank 2 has", "values ", "f32 (3)"});
    // Loaded on every rank; then it starts.
    Values loaded(1, static_cast<float>(rank));
    const std::vector<int64_t> shape{1};
    const tpfsdp_view view = api::view(loaded.data(), TPFSDP_DTYPE_F32, shape);
    tpfsdp_tensor *tensor = nullptr;
    API(tpfsdp_tensor_create_borrowed, &view, nullptr, &tensor);
    API(tpfsdp_param_set_tensor, b, tensor);
    tpfsdp_handle_release(tensor);
    model.reset();
    API(tpfsdp_module_pre_forward, model.tree.root);
    API(tpfsdp_module_pre_forward, model.a);
    EXPECT_EQ(api::values_of<float>(api::face(b, TPFSDP_FACE_FULL)), (Values{0, 1, 2}));
  });
}

// One bit of one element is enough.
TEST(Digest, OneBitOfAnEmptyRanksCopyCounts) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank);
    model.add("w", {2}, rank == 3 ? -0.0f : 0.0f);  // rank 3 owns no row
    model.shard();
    model.expect_mismatch({"parameter a.w", "rank 3 has"});
  });
}

TEST(Digest, ShapeDtypeAndName) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Model shape(context, rank);
    shape.add("w", {rank == 1 ? 6 : 4, 2}, 1);
    shape.shard();
    shape.expect_mismatch({"a.w", "(4, 2)", "(6, 2)"});
    shape.reset();

    Model dtype(context, rank);
    if (rank == 1) {
      dtype.tree.param<double>(dtype.a, "w", TPFSDP_DTYPE_F64, {2}, {1, 1});
    } else {
      dtype.add("w", {2}, 1);
    }
    dtype.shard();
    dtype.expect_mismatch(
        {"rank 0 has parameter a.w of unit a: f32 (2)", "rank 1 has parameter a.w of unit a: f64 (2)"});
    dtype.reset();

    Model name(context, rank);
    name.add(rank == 1 ? "weight" : "w", {2}, 1);
    name.shard();
    name.expect_mismatch({"rank 0 has parameter a.w ", "rank 1 has parameter a.weight "});
  });
}

TEST(Digest, TrainabilityTiesAndPolicy) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Model frozen(context, rank);
    tpfsdp_param *w = frozen.add("w", {2}, 1);
    if (rank == 1) API(tpfsdp_param_set_requires_grad, w, 0);
    frozen.shard();
    frozen.expect_mismatch({"a.w", "rank 1 has", "trainable", "frozen"});
    // Repaired on the one rank that was wrong.
    if (rank == 1) API(tpfsdp_param_set_requires_grad, w, 1);
    frozen.reset();
    API(tpfsdp_module_pre_forward, frozen.tree.root);
    API(tpfsdp_module_post_forward, frozen.tree.root);

    Model tied(context, rank);
    tpfsdp_param *t = tied.add("w", {2}, 1);
    if (rank == 1) API(tpfsdp_module_register_parameter, tied.a, "again", t);
    tied.shard();
    tied.expect_mismatch({"a.w", "registered 1 time(s)", "registered 2 time(s)"});
    tied.reset();

    Model policy(context, rank);
    policy.add("w", {2}, 1);
    policy.shard(rank == 1 ? TPFSDP_RESHARD_NEVER : TPFSDP_RESHARD_ALWAYS);
    policy.expect_mismatch({"a.w", "reshard always", "reshard never"});
    policy.reset();

    Model number(context, rank);
    number.add("w", {2}, 1);
    if (rank == 0) number.add("z", {2}, 1);
    number.shard();
    number.expect_mismatch({"rank 0 has parameter a.z", "rank 1 has no such parameter"});
  });
}

TEST(Digest, TrustComparesEverythingButValues) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank, TPFSDP_INIT_TRUST);
    tpfsdp_param *w = model.add("w", {2}, static_cast<float>(rank));
    model.shard();
    API(tpfsdp_module_pre_forward, model.tree.root);
    API(tpfsdp_module_pre_forward, model.a);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), (Values{0, 1}));  // as the host wanted

    Model other(context, rank, TPFSDP_INIT_TRUST);
    other.add("w", {rank == 1 ? 3 : 2}, 1);
    other.shard();
    other.expect_mismatch({"(2)", "(3)"});
  });
}

TEST(Digest, BroadcastMakesRanksEqual) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank, TPFSDP_INIT_BROADCAST);
    tpfsdp_param *w = model.add("w", {5}, static_cast<float>(rank + 3));
    tpfsdp_param *empty = model.add("none", {0}, 0);
    chain::take_counters(context);
    model.shard();
    EXPECT_EQ(chain::take_counters(context).other_collectives, 1);  // parameter by parameter, the empty one not
    API(tpfsdp_module_pre_forward, model.tree.root);
    API(tpfsdp_module_pre_forward, model.a);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), Values(5, 3));
    EXPECT_EQ(api::face(empty, TPFSDP_FACE_FULL).size_bytes, 0);
  });
}

TEST(Digest, BroadcastWithAFailingRankFailsOnAllWithoutAChange) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank, TPFSDP_INIT_BROADCAST);
    tpfsdp_param *w = model.add("w", {5}, static_cast<float>(rank));
    tpfsdp_param *scalar = rank == 2 ? model.add("s", {}, 1) : nullptr;
    const api::Error error = caught([&] { model.tree.shard({model.a}, TPFSDP_RESHARD_AUTO, model.options); });
    EXPECT_EQ(error.status, rank == 2 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_ERR_REMOTE);
    EXPECT_EQ(error.rank, 2);
    EXPECT_THAT(error.what(), HasSubstr("a.s is a scalar"));
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, w, &info);
    EXPECT_EQ(info.is_sharded, 0);
    EXPECT_EQ(static_cast<const float *>(api::face(w, TPFSDP_FACE_FULL).data)[4], static_cast<float>(rank));
    if (scalar) API(tpfsdp_module_register_parameter, model.a, "s", nullptr);
    tpfsdp_context_info of = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &of);
    API(tpfsdp_group_reset, of.group);
    model.shard();
    API(tpfsdp_module_pre_forward, model.tree.root);
    API(tpfsdp_module_pre_forward, model.a);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), Values(5, 0));
  });
}

// B059: a flag that one rank alone changes later is found by the first reduction.
TEST(Digest, B059_UnfrozenOnOneRankOnly) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    API(tpfsdp_param_set_requires_grad, model.weight(1), 0);
    model.layers[1].weight_trains = false;
    model.step(0);
    if (rank == 1) {
      API(tpfsdp_param_set_requires_grad, model.weight(1), 1);
      model.layers[1].weight_trains = true;
    }
    const api::Error error = caught([&] { model.step(1); });
    EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr("b0"), HasSubstr("rank 0"), HasSubstr("rank 1")));
    model.reset();
    if (rank == 1) {
      API(tpfsdp_param_set_requires_grad, model.weight(1), 0);
      model.layers[1].weight_trains = false;
    }
    model.step(1);
    model.expect_idle();
  });
}

}  // namespace
