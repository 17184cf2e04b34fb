// SPDX-License-Identifier: Apache-2.0
// Layout CONTIGUOUS: each rank owns a slice of a unit's parameters in a row, of whole rows or of single elements. What
// is trained is in numerics_test_equal_to_unsharded; here what a program sees of it.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;
using Shape = std::vector<int64_t>;

// "a" is (2, 3) with 0 to 5, "b" is (4) with 6 to 9.
struct Model {
  Model(tpfsdp_context *context, tpfsdp_granule granule) : tree(context) {
    a = tree.param<float>(tree.root, "a", TPFSDP_DTYPE_F32, {2, 3}, {0, 1, 2, 3, 4, 5});
    b = tree.param<float>(tree.root, "b", TPFSDP_DTYPE_F32, {4}, {6, 7, 8, 9});
    options.layout = TPFSDP_LAYOUT_CONTIGUOUS;
    options.granule = granule;
  }
  void shard() { tree.shard({tree.root}, TPFSDP_RESHARD_ALWAYS, options); }
  static Values shard_of(tpfsdp_param *param) { return api::values_of<float>(api::face(param, TPFSDP_FACE_SHARD)); }
  static tpfsdp_shard_info info_of(tpfsdp_param *param) {
    tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
    API(tpfsdp_param_get_shard_info, param, &info);
    return info;
  }

  api::Tree tree;
  tpfsdp_param *a, *b;
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
};

TEST(Contiguous, RowsLieInOneSlice) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, TPFSDP_GRANULE_DEFAULT);
    model.shard();
    const std::vector<Values> a{{0, 1, 2}, {3, 4, 5}, {}}, b{{}, {6}, {7, 8, 9}};
    EXPECT_EQ(Model::shard_of(model.a), a[static_cast<size_t>(rank)]);
    EXPECT_EQ(Model::shard_of(model.b), b[static_cast<size_t>(rank)]);
    const tpfsdp_shard_info info = Model::info_of(model.a);
    EXPECT_EQ(info.is_ragged, 0);
    EXPECT_EQ(info.shard_dim, 0);
    EXPECT_EQ(info.flat_offset, -1);
    EXPECT_EQ(Shape(info.local_shape, info.local_shape + 2), (Shape{rank < 2 ? 1 : 0, 3}));
    EXPECT_EQ(Shape(info.offsets, info.offsets + 2), (Shape{rank, 0}));
    const std::vector<int64_t> begins{4, 0, 1};  // an empty shard is nowhere that another one is
    EXPECT_EQ(Model::info_of(model.b).offsets[0], begins[static_cast<size_t>(rank)]);
    EXPECT_EQ(api::unit_info(model.tree.root).layout, TPFSDP_LAYOUT_CONTIGUOUS);
  });
}

// Shards, gradients, replacement and tensors are one-dimensional runs.
TEST(Contiguous, ElementsAreRunsOfTheWhole) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, TPFSDP_GRANULE_ELEMENT);
    model.shard();
    const std::vector<Values> a{{0, 1}, {2, 3, 4}, {5}, {}}, b{{}, {}, {6}, {7, 8, 9}};
    const std::vector<int64_t> begins{0, 2, 5, 6};
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(Model::shard_of(model.a), a[r]);
    EXPECT_EQ(Model::shard_of(model.b), b[r]);
    const tpfsdp_shard_info info = Model::info_of(model.a);
    EXPECT_EQ(info.is_ragged, 1);
    EXPECT_EQ(info.shard_dim, -1);
    EXPECT_EQ(info.flat_offset, begins[r]);
    EXPECT_EQ(info.local_shape[0], std::ssize(a[r]));
    EXPECT_EQ(info.offsets, nullptr);
    const std::vector<int64_t> begins_of_b{4, 4, 0, 1};  // empty shards are nowhere that another one is
    EXPECT_EQ(Model::info_of(model.b).flat_offset, begins_of_b[r]);
    EXPECT_EQ(Shape(info.global_shape, info.global_shape + info.ndim), (Shape{2, 3}));

    tpfsdp_tensor *made = nullptr;
    API(tpfsdp_param_to_tensor, model.a, TPFSDP_FACE_SHARD, &made);
    const api::Owned<tpfsdp_tensor> tensor(made);
    tpfsdp_shard_info of_tensor = TPFSDP_INIT(tpfsdp_shard_info);
    API(tpfsdp_tensor_get_shard_info, made, &of_tensor);
    EXPECT_EQ(of_tensor.flat_offset, begins[r]);
    EXPECT_EQ(of_tensor.is_ragged, 1);

    API(tpfsdp_module_pre_forward, model.tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(model.a, TPFSDP_FACE_FULL)), (Values{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(api::values_of<float>(api::face(model.b, TPFSDP_FACE_FULL)), (Values{6, 7, 8, 9}));
    API(tpfsdp_module_post_forward, model.tree.root);
    API(tpfsdp_module_pre_backward, model.tree.root);
    Values gradient{1, 2, 3, 4, 5, 6};
    const Shape shape{2, 3};
    const tpfsdp_view given = api::view(gradient.data(), TPFSDP_DTYPE_F32, shape);
    API(tpfsdp_param_add_grad, model.a, &given);
    API(tpfsdp_module_end_backward, model.tree.root);
    Values expected(gradient.begin() + begins[r], gradient.begin() + begins[r] + std::ssize(a[r]));
    EXPECT_EQ(api::values_of<float>(api::face(model.a, TPFSDP_FACE_GRAD)), expected);
    EXPECT_FALSE(api::has_grad(model.b));

    Values values(a[r].size(), static_cast<float>(rank));
    const Shape run{std::ssize(values)};
    const tpfsdp_view new_values = api::view(values.empty() ? nullptr : values.data(), TPFSDP_DTYPE_F32, run);
    tpfsdp_tensor *replacement = nullptr;
    API(tpfsdp_tensor_create_borrowed, &new_values, nullptr, &replacement);
    const api::Owned<tpfsdp_tensor> held(replacement);
    API(tpfsdp_param_set_tensor, model.a, replacement);
    API(tpfsdp_module_pre_forward, model.tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(model.a, TPFSDP_FACE_FULL)), (Values{0, 0, 1, 1, 1, 2}));
    API(tpfsdp_module_post_forward, model.tree.root);
  });
}

// A rank has what it would not have by rows.
TEST(Contiguous, SmallUnitsAreEverybodys) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    for (const tpfsdp_layout layout : {TPFSDP_LAYOUT_ROWS, TPFSDP_LAYOUT_CONTIGUOUS}) {
      api::Tree tree(context);
      std::vector<tpfsdp_param *> params;
      for (int i = 0; i < 4; ++i)
        params.push_back(tree.param(tree.root, "p" + std::to_string(i), TPFSDP_DTYPE_F32, {1, 16}, Values(16, 1)));
      tpfsdp_fully_shard_options options = api::privately();
      options.layout = layout;
      tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
      int64_t elements = 0;
      for (tpfsdp_param *param : params) elements += api::count_of(api::face(param, TPFSDP_FACE_SHARD));
      EXPECT_EQ(elements, layout == TPFSDP_LAYOUT_CONTIGUOUS ? 16 : rank == 0 ? 64 : 0);
    }
  });
}

TEST(Contiguous, WrongWishesAreRefused) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    const auto refused = [&](tpfsdp_layout layout, tpfsdp_granule granule, int32_t size, const char *part) {
      Model model(context, granule);
      model.options.layout = layout;
      model.options.granule_size = size;
      const api::Error error = caught([&] { model.shard(); });
      EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(), HasSubstr(part));
    };
    refused(3, 0, 0, "layout is 3");
    refused(TPFSDP_LAYOUT_CONTIGUOUS, 4, 0, "granule is 4");
    refused(TPFSDP_LAYOUT_ROWS, TPFSDP_GRANULE_ELEMENT, 0, "without layout CONTIGUOUS");
    refused(TPFSDP_LAYOUT_CONTIGUOUS, TPFSDP_GRANULE_BLOCK, 0, "granule_size is 0");
    refused(TPFSDP_LAYOUT_CONTIGUOUS, TPFSDP_GRANULE_ROW, 2, "granule_size is 2");
    refused(TPFSDP_LAYOUT_CONTIGUOUS, TPFSDP_GRANULE_BLOCK, -1, "granule_size is -1");
  });
}

TEST(Contiguous, RanksThatCutElsewhereAreTold) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, rank == 0 ? TPFSDP_GRANULE_ELEMENT : TPFSDP_GRANULE_ROW);
    model.options.unshard_mode = TPFSDP_UNSHARD_PRIVATE;
    model.shard();
    const api::Error error = caught([&] { API(tpfsdp_root_prepare, model.tree.root); });
    EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("parameter a"), HasSubstr("granules of 0 rows"),
                                             HasSubstr("granules of 1 rows")));
  });
}

TEST(Contiguous, ThePlanSaysWhoOwnsWhat) {
  on_ranks(4, [](tpfsdp_context *context, int32_t) {
    Model model(context, TPFSDP_GRANULE_ELEMENT);
    model.shard();
    API(tpfsdp_root_prepare, model.tree.root);
    tpfsdp_blob *blob = nullptr;
    API(tpfsdp_root_export_plan, model.tree.root, TPFSDP_PLAN_TEXT, &blob);
    const api::Owned<tpfsdp_blob> held(blob);
    const void *data = nullptr;
    int64_t size_bytes = 0;
    API(tpfsdp_blob_get, blob, &data, &size_bytes);
    EXPECT_THAT(static_cast<const char *>(data),
                testing::AllOf(HasSubstr("elements 2-4"), HasSubstr("elements 1-3"), HasSubstr("none")));
  });
}

}  // namespace
