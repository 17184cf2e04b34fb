// SPDX-License-Identifier: Apache-2.0
// What fully_shard and the first calls after it refuse: the text names the thing, and nothing has changed.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using testing::AllOf;

tpfsdp_fully_shard_options plain() { return TPFSDP_INIT(tpfsdp_fully_shard_options); }

// No module is sharded, all parameters are as they were.
void expect_untouched(const std::vector<tpfsdp_module *> &modules, const std::vector<tpfsdp_param *> &params) {
  for (tpfsdp_module *module : modules) {
    tpfsdp_module_info info = TPFSDP_INIT(tpfsdp_module_info);
    API(tpfsdp_module_get_info, module, &info);
    EXPECT_EQ(info.is_fsdp, 0);
  }
  for (tpfsdp_param *param : params) {
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, param, &info);
    EXPECT_EQ(info.is_sharded, 0);
    EXPECT_EQ(info.unit, nullptr);
    EXPECT_EQ(info.is_unsharded, 1);
    EXPECT_NE(api::face(param, TPFSDP_FACE_FULL).data, nullptr);
  }
}

TEST(FullyShardErrors, AContainerWithoutForwardIsRefused) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *list = tree.module("ModuleList", false);
    API(tpfsdp_module_add_module, tree.root, "layers", list);
    tpfsdp_module *layer = tree.child(list, "0");
    tpfsdp_param *w = tree.param<float>(layer, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    const api::Error error = caught([&] { tree.shard({list}); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"layers\" (ModuleList)"), HasSubstr("without forward"),
                                    HasSubstr("shard its children")));
    expect_untouched({list, layer}, {w});
    tree.shard({layer});
    tree.shard({tree.root});
    EXPECT_EQ(api::unit_info(layer).param_count, 1);
  });
}

TEST(FullyShardErrors, TwiceOnOneModuleIsRefused) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(a, "b");
    tree.param<float>(b, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tree.shard({a});
    const api::Error again = caught([&] { tree.shard({a}); });
    EXPECT_EQ(again.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(again.what(), HasSubstr("already applied to module \"a\""));
    const api::Error below = caught([&] { tree.shard({b}); });
    EXPECT_EQ(below.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(below.what(), AllOf(HasSubstr("\"a.b\""), HasSubstr("shard children first, then their parents")));
    EXPECT_EQ(api::unit_info(a).param_count, 1);
  });
}

TEST(FullyShardErrors, ListsAreNotEmptyAndDistinct) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a");
    tpfsdp_param *w = tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    EXPECT_THAT(caught([&] { tree.shard({}); }).what(), HasSubstr("at least one module"));
    const api::Error twice = caught([&] { tree.shard({a, tree.root, a}); });
    EXPECT_EQ(twice.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(twice.what(), AllOf(HasSubstr("\"a\""), HasSubstr("twice"), HasSubstr("distinct")));
    expect_untouched({a, tree.root}, {w});
  });
}

TEST(FullyShardErrors, invalid_mesh_ndim) {
  on_ranks(4, [](tpfsdp_context *context, int32_t) {
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    const auto mesh_of = [&](const std::vector<int32_t> &sizes, const std::vector<const char *> &names) {
      tpfsdp_mesh *mesh = nullptr;
      API(tpfsdp_mesh_create, info.group, sizes.data(), static_cast<int64_t>(sizes.size()), names.data(),
          static_cast<int64_t>(names.size()), &mesh);
      return api::Owned<tpfsdp_mesh>(mesh);
    };
    const auto cube = mesh_of({2, 2, 1}, {"a", "b", "c"}), unnamed = mesh_of({2, 2}, {}),
               plane = mesh_of({2, 2}, {"dp", "tp"});
    api::Tree tree(context);
    tpfsdp_param *w = tree.param<float>(tree.root, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, plain(), cube.get()); }).what(),
                HasSubstr("1-D or 2-D mesh, got 3-D"));
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, plain(), unnamed.get()); }).what(),
                HasSubstr("dimension names"));
    const api::Error hsdp = caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, plain(), plane.get()); });
    EXPECT_EQ(hsdp.status, TPFSDP_ERR_UNSUPPORTED);
    EXPECT_THAT(hsdp.what(), AllOf(HasSubstr("dp"), HasSubstr("tp"), HasSubstr("1-D")));
    expect_untouched({tree.root}, {w});
    tree.shard({tree.root});
    EXPECT_EQ(api::unit_info(tree.root).param_count, 1);
    // The refusals were told to their meshes, which are not this one.
    API(tpfsdp_root_prepare, tree.root);
  });
}

TEST(FullyShardErrors, raise_scalar_parameter) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a");
    tpfsdp_param *w = tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tpfsdp_param *scale = tree.param<float>(a, "scale", TPFSDP_DTYPE_F32, {}, {3});
    const api::Error error = caught([&] { tree.shard({tree.root}); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("parameter a.scale"), HasSubstr("1-D with one element"), HasSubstr("ignore")));
    expect_untouched({a, tree.root}, {w, scale});
    tpfsdp_fully_shard_options options = plain();
    options.ignored_params = &scale;
    options.ignored_param_count = 1;
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
    EXPECT_EQ(api::unit_info(tree.root).param_count, 1);
  });
}

TEST(FullyShardErrors, B007_raise_noncontiguous_parameter) {
  float values[6] = {0, 3, 1, 4, 2, 5};
  const int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  tpfsdp_view view{};
  view.data = values;
  view.size_bytes = sizeof values;
  view.shape = shape;
  view.strides = strides;
  view.ndim = 2;
  view.dtype = TPFSDP_DTYPE_F32;
  view.device_type = TPFSDP_DEVICE_CPU;
  tpfsdp_param *param = nullptr;
  const api::Error error = caught([&] { API(tpfsdp_param_create, &view, 1, &param); });
  EXPECT_EQ(error.status, TPFSDP_ERR_UNSUPPORTED);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("(2, 3)"), HasSubstr("(1, 2)"), HasSubstr("(3, 1)")));
  EXPECT_EQ(param, nullptr);
}

TEST(FullyShardErrors, B060_shared_params_separate_fsdp_groups_error) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(tree.root, "b");
    tpfsdp_param *tied = tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    API(tpfsdp_module_register_parameter, b, "w", tied);
    tpfsdp_param *bias = tree.param<float>(b, "bias", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tree.shard({a});
    const api::Error error = caught([&] { tree.shard({b}); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a.w"), HasSubstr("\"a\""), HasSubstr("in one call, as a list")));
    expect_untouched({b}, {bias});
    EXPECT_EQ(api::unit_info(a).param_count, 1);

    api::Tree whole(context);
    tpfsdp_module *c = whole.child(whole.root, "a"), *d = whole.child(whole.root, "b");
    tpfsdp_param *shared = whole.param<float>(c, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    API(tpfsdp_module_register_parameter, d, "w", shared);
    whole.shard({c, d});
    EXPECT_EQ(api::unit_info(c).param_count, 1);
    EXPECT_STREQ(api::unit_info(d).name, "a, b");
  });
}

TEST(FullyShardErrors, ATreeIsBuiltBeforeItIsSharded) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    chain::Chain model(context, 0, {.blocks = 1});
    tpfsdp_module *late = model.tree.module();
    EXPECT_THAT(caught([&] { API(tpfsdp_module_add_module, model.block(0), "late", late); }).what(),
                AllOf(HasSubstr("\"late\""), HasSubstr("\"b0\""), HasSubstr("build the tree first")));
    EXPECT_THAT(caught([&] { API(tpfsdp_module_register_parameter, model.root(), "w", model.weight(0)); }).what(),
                HasSubstr("sharded already"));
    // Also in a module that is not sharded itself.
    const api::Error tied = caught([&] { API(tpfsdp_module_register_parameter, late, "w", model.weight(0)); });
    EXPECT_EQ(tied.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(tied.what(), AllOf(HasSubstr("in.weight"), HasSubstr("tie parameters before fully_shard")));
  });
}

TEST(FullyShardErrors, fully_shard_multi_module_root) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(tree.root, "b");
    tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tree.shard({a, b});
    const api::Error error = caught([&] { API(tpfsdp_module_pre_forward, a); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"a, b\""), HasSubstr("2 modules"), HasSubstr("one module above")));
  });
}

TEST(FullyShardErrors, fully_shard_double_lazy_init) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    chain::Chain model(context, 0, {.blocks = 2});
    API(tpfsdp_module_pre_forward, model.block(1));
    API(tpfsdp_module_post_forward, model.block(1));
    const api::Error error = caught([&] { API(tpfsdp_module_pre_forward, model.root()); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"b1\""), HasSubstr("run the forward through the root first")));
  });
}

TEST(FullyShardErrors, TrainableParametersOfAUnitAreOfOneDtype) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a");
    tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    tpfsdp_param *wide = tree.param<double>(a, "wide", TPFSDP_DTYPE_F64, {2}, {1, 2});
    tree.shard({tree.root});
    const api::Error error = caught([&] { API(tpfsdp_root_prepare, tree.root); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a.w is f32"), HasSubstr("a.wide is f64"), HasSubstr("freeze one")));
    API(tpfsdp_param_set_requires_grad, wide, 0);
    API(tpfsdp_fsdp_module_reset_iter_state, tree.root);
    API(tpfsdp_root_prepare, tree.root);
    API(tpfsdp_module_pre_forward, tree.root);
    EXPECT_EQ(api::values_of<double>(api::face(wide, TPFSDP_FACE_FULL)), (std::vector<double>{1, 2}));
  });
}

TEST(FullyShardErrors, invalid_meta_device_init) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a");
    tree.param<float>(a, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    std::vector<api::Owned<tpfsdp_param>> made;
    for (const char *name : {"x", "y"}) {
      const std::vector<int64_t> shape{3};
      tpfsdp_view view = {};
      view.size_bytes = 12;
      view.shape = shape.data();
      view.ndim = 1;
      view.dtype = TPFSDP_DTYPE_F32;
      view.device_type = TPFSDP_DEVICE_META;
      tpfsdp_param *param = nullptr;
      API(tpfsdp_param_create, &view, 1, &param);
      made.emplace_back(param);
      API(tpfsdp_module_register_parameter, a, name, param);
    }
    tree.shard({tree.root});
    const api::Error error = caught([&] { API(tpfsdp_module_pre_forward, tree.root); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a.x, a.y"), HasSubstr("META"), HasSubstr("tpfsdp_param_set_tensor")));
    // Rows 0, 1 and 2: two on rank 0, one on rank 1.
    std::vector<float> mine = rank == 0 ? std::vector<float>{7, 8} : std::vector<float>{9};
    const std::vector<int64_t> local{static_cast<int64_t>(mine.size())};
    const tpfsdp_view values = api::view(mine.data(), TPFSDP_DTYPE_F32, local);
    tpfsdp_tensor *tensor = nullptr;
    API(tpfsdp_tensor_create_borrowed, &values, nullptr, &tensor);
    const api::Owned<tpfsdp_tensor> held(tensor);
    for (const auto &param : made) API(tpfsdp_param_set_tensor, param.get(), tensor);
    API(tpfsdp_fsdp_module_reset_iter_state, tree.root);
    API(tpfsdp_module_pre_forward, tree.root);
    for (const auto &param : made)
      EXPECT_EQ(api::values_of<float>(api::face(param.get(), TPFSDP_FACE_FULL)), (std::vector<float>{7, 8, 9}));
  });
}

TEST(FullyShardErrors, ComputingWithAShardedParameterIsRefused) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    chain::Chain model(context, 0, {.blocks = 1});
    const api::Error error = caught([&] { api::face(model.weight(1), TPFSDP_FACE_FULL); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("parameter b0.weight is sharded"), HasSubstr("pre_forward"), HasSubstr("unshard")));
    EXPECT_EQ(caught([&] { api::face(model.weight(1), TPFSDP_FACE_GRAD); }).status, TPFSDP_ERR_NOT_FOUND);
  });
}

TEST(FullyShardErrors, OptionsOutOfRangeAreNamed) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_param *w = tree.param<float>(tree.root, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tpfsdp_fully_shard_options options = plain();
    options.init = 4;
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options); }).what(), HasSubstr("init is 4"));
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, 7); }).what(), HasSubstr("kind is 7"));
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_SIZE); }).what(), HasSubstr("SIZE(0)"));
    options = plain();
    options.reshard_after_forward.size = 2;
    EXPECT_THAT(caught([&] { tree.shard({tree.root}, TPFSDP_RESHARD_ALWAYS, options); }).what(),
                HasSubstr("size is 2"));
    expect_untouched({tree.root}, {w});
    tree.shard({tree.root});
  });
}

TEST(FullyShardErrors, AfterTheSameMistakeOnAllRanksAResetIsNeededOnce) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .is_sharded = false});
    model.tree.param<float>(model.block(0), "scale", TPFSDP_DTYPE_F32, {}, {3});
    const api::Error error = caught([&] { model.tree.shard({model.block(0)}); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(rank) + " of 2"));
    API(tpfsdp_module_register_parameter, model.block(0), "scale", nullptr);
    model.tree.shard({model.block(0)});
    model.tree.shard({model.root()});
    model.reset();
    model.step(0);
    model.expect_idle();
  });
}

// A mistake of one rank is an error on all at the next call of the mesh, naming rank and text, and never a hang.
TEST(FullyShardErrors, AMistakeOfOneRankIsToldToTheMesh) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .is_sharded = false});
    if (rank == 1) model.tree.param<float>(model.block(0), "scale", TPFSDP_DTYPE_F32, {}, {3});
    const auto shard = [&] { model.tree.shard({model.block(0)}, TPFSDP_RESHARD_AUTO, api::privately()); };
    if (rank == 1) {
      const api::Error error = caught(shard);
      EXPECT_EQ(error.rank, 1);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 of 3"), HasSubstr("b0.scale")));
      API(tpfsdp_module_register_parameter, model.block(0), "scale", nullptr);
      shard();
    } else {
      shard();
    }
    model.tree.shard({model.root()}, TPFSDP_RESHARD_AUTO, api::privately());
    if (rank != 1) {
      const api::Error error = caught([&] { API(tpfsdp_root_prepare, model.root()); });
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);
      EXPECT_EQ(error.rank, 1);
      EXPECT_THAT(error.what(), HasSubstr("b0.scale is a scalar"));
    }
    model.reset();
    model.step(0);
    EXPECT_EQ(api::counters(context).all_gathers > 0, true);
  });
}

}  // namespace
