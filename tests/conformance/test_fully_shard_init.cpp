// SPDX-License-Identifier: Apache-2.0
// What a module is after fully_shard: shards, names, identities, roots, dtypes.
#include "support/chain.hpp"

namespace {

using chain::on_ranks;
using Shape = std::vector<int64_t>;

struct Place {
  Shape global, local, offsets;
  int32_t dim;
};

Place place_of(tpfsdp_param *param) {
  tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
  API(tpfsdp_param_get_shard_info, param, &info);
  const auto take = [&](const int64_t *values) { return Shape(values, values + info.ndim); };
  return {take(info.global_shape), take(info.local_shape), take(info.offsets), info.shard_dim};
}

tpfsdp_param_info info_of(tpfsdp_param *param) {
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  API(tpfsdp_param_get_info, param, &info);
  return info;
}

std::vector<std::string> parameter_names(tpfsdp_module *module, std::vector<int64_t> *ids = nullptr) {
  tpfsdp_list *list = nullptr;
  API(tpfsdp_module_list_parameters, module, 1, &list);
  const api::Owned<tpfsdp_list> held(list);
  int64_t count = 0;
  API(tpfsdp_list_get_count, list, &count);
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) {
    const char *name = nullptr;
    API(tpfsdp_list_get_name, list, i, &name);
    names.emplace_back(name);
    tpfsdp_param *param = nullptr;
    API(tpfsdp_list_get_param, list, i, &param);
    if (ids) ids->push_back(info_of(param).id);
  }
  return names;
}

std::vector<float> counting(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i) + 0.5f);
  return values;
}

TEST(Init, shard_tensor_parameters) {
  for (const int32_t world : {1, 2, 3, 4}) {
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      api::Tree tree(context);
      const std::vector<Shape> shapes{{5, 3}, {3}, {1, 2, 2}, {8, 1}, {2, 0}, {0, 3}};
      std::vector<tpfsdp_param *> params;
      for (size_t i = 0; i < shapes.size(); ++i) {
        int64_t count = 1;
        for (const int64_t extent : shapes[i]) count *= extent;
        params.push_back(tree.param(tree.root, "p" + std::to_string(i), TPFSDP_DTYPE_F32, shapes[i], counting(count)));
      }
      tree.shard({tree.root});
      API(tpfsdp_module_pre_forward, tree.root);
      for (size_t i = 0; i < shapes.size(); ++i) {
        const int64_t rows = shapes[i][0], chunk = (rows + world - 1) / world;
        const int64_t begin = std::min(rank * chunk, rows), end = std::min(begin + chunk, rows);
        const Place place = place_of(params[i]);
        Shape local = shapes[i], offsets(shapes[i].size(), 0);
        local[0] = end - begin;
        offsets[0] = begin;
        EXPECT_EQ(place.global, shapes[i]);
        EXPECT_EQ(place.local, local);
        EXPECT_EQ(place.offsets, offsets);
        EXPECT_EQ(place.dim, 0);
        const std::vector<float> full = api::values_of<float>(api::face(params[i], TPFSDP_FACE_FULL));
        EXPECT_EQ(full, counting(static_cast<int64_t>(full.size())));
        const int64_t row = rows > 0 ? static_cast<int64_t>(full.size()) / rows : 0;
        EXPECT_EQ(api::values_of<float>(api::face(params[i], TPFSDP_FACE_SHARD)),
                  std::vector<float>(full.begin() + begin * row, full.begin() + end * row));
      }
    });
  }
}

TEST(Init, B004_TheWholeShapeIsStoredNotInferred) {
  on_ranks(4, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {10, 2}, counting(20));
    tree.shard({tree.root});
    const Place place = place_of(w);
    EXPECT_EQ(place.global, (Shape{10, 2}));
    EXPECT_EQ(place.local, (Shape{rank < 3 ? 3 : 1, 2}));
    EXPECT_EQ(place.offsets, (Shape{3 * rank, 0}));
    EXPECT_EQ(info_of(w).ndim, 2);
    EXPECT_EQ(info_of(w).global_shape[0], 10);
  });
}

TEST(Init, B005_RanksWithEmptyShardsTakePartInEverything) {
  on_ranks(8, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {18, 4}, counting(72));
    tree.shard({tree.root});
    int calls = 0;
    tpfsdp_grad_reduced_callback reduced{};
    reduced.user = &calls;
    reduced.call = [](void *user, const tpfsdp_grad_reduced_args *) -> tpfsdp_status {
      ++*static_cast<int *>(user);
      return TPFSDP_OK;
    };
    API(tpfsdp_param_set_grad_reduced_callback, w, &reduced);
    API(tpfsdp_module_pre_forward, tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), counting(72));
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    tpfsdp_view buffer{};
    API(tpfsdp_param_get_grad_buffer, w, 0, &buffer);
    for (int i = 0; i < 72; ++i) static_cast<float *>(buffer.data)[i] = static_cast<float>(rank + i);
    API(tpfsdp_param_grad_ready, w);
    API(tpfsdp_module_end_backward, tree.root);
    const tpfsdp_view shard = api::face(w, TPFSDP_FACE_SHARD), grad = api::face(w, TPFSDP_FACE_GRAD);
    const int64_t rows = rank < 6 ? 3 : 0;
    EXPECT_EQ(place_of(w).offsets[0], rank < 6 ? 3 * rank : 18);
    for (const tpfsdp_view &view : {shard, grad}) {
      EXPECT_EQ(view.shape[0], rows);
      EXPECT_EQ(view.size_bytes, rows * 16);
      EXPECT_EQ(view.data == nullptr, rows == 0);
    }
    for (int64_t i = 0; i < rows * 4; ++i)
      EXPECT_EQ(static_cast<const float *>(grad.data)[i], static_cast<float>(12 * rank + i) + 3.5f);
    EXPECT_EQ(calls, 1);  // also where the shard is empty
    API(tpfsdp_param_set_grad_reduced_callback, w, nullptr);
  });
}

TEST(Init, B014_EveryRankListsTheSameParameters) {
  chain::SharedText names[4];
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .width = 3});
    std::vector<int64_t> ids;
    const std::vector<std::string> mine = parameter_names(model.root(), &ids);
    names[rank] = testing::PrintToString(mine);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    std::vector<int64_t> again;
    API(tpfsdp_module_pre_forward, model.root());
    EXPECT_EQ(parameter_names(model.root(), &again), mine);
    EXPECT_EQ(again, ids);
  });
  const std::vector<std::string> expected{"in.weight", "in.bias", "b0.weight", "b0.bias"};
  for (const chain::SharedText &of_rank : names) EXPECT_EQ(of_rank.text(), testing::PrintToString(expected));
}

TEST(Init, fully_shard_is_root) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    const auto is_root = [](tpfsdp_module *module) {
      tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
      API(tpfsdp_fsdp_module_get_info, module, &info);
      EXPECT_EQ(info.unit_count, 1);
      EXPECT_EQ(info.module_count, 1);
      return info.is_root;
    };
    for (tpfsdp_module *module : {model.root(), model.block(0), model.block(1)}) EXPECT_EQ(is_root(module), -1);
    model.forward(0);
    EXPECT_EQ(is_root(model.root()), 1);
    EXPECT_EQ(is_root(model.block(0)), 0);
    EXPECT_EQ(is_root(model.block(1)), 0);
  });
}

TEST(Init, fully_shard_module_and_param_fqns) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(tree.root, "b"), *c = tree.child(a, "c");
    tpfsdp_param *w = tree.param(c, "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    tree.param(a, "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    tree.param(b, "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    tree.shard({c});
    tree.shard({a, b});
    tree.shard({tree.root});
    API(tpfsdp_root_prepare, tree.root);
    EXPECT_STREQ(api::unit_info(c).name, "a.c");
    EXPECT_STREQ(api::unit_info(b).name, "a, b");
    EXPECT_STREQ(api::unit_info(tree.root).name, "<root>");
    EXPECT_STREQ(info_of(w).name, "a.c.w");
  });
}

TEST(Init, B054_AHandleMeansTheSameParameterForEver) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *before = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    const int64_t id = info_of(before).id;
    const auto look_up = [&] {
      tpfsdp_param *found = nullptr;
      API(tpfsdp_module_get_parameter, tree.root, "w", &found);
      EXPECT_EQ(info_of(found).id, id);
      return found;
    };
    EXPECT_EQ(look_up(), before);
    tree.shard({tree.root});
    EXPECT_EQ(look_up(), before);
    // B055: a write through the old handle is seen by the next gather.
    static_cast<float *>(api::face(before, TPFSDP_FACE_SHARD).data)[0] = 40.0f + static_cast<float>(rank);
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
    EXPECT_EQ(look_up(), before);
    EXPECT_EQ(api::values_of<float>(api::face(before, TPFSDP_FACE_FULL)), (std::vector<float>{40, 1.5, 41, 3.5}));
    API(tpfsdp_scope_close, scope);
    tpfsdp_handle_release(scope);
    EXPECT_EQ(look_up(), before);
  });
}

TEST(Init, non_float_params) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {5, 3}, counting(15));
    tpfsdp_param *table = tree.param<int64_t>(tree.root, "table", TPFSDP_DTYPE_I64, {3}, {5, -6, INT64_MAX}, false);
    tpfsdp_param *bytes = tree.param<uint8_t>(tree.root, "bytes", TPFSDP_DTYPE_U8, {3}, {1, 200, 255}, false);
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, api::privately());
    API(tpfsdp_root_prepare, tree.root);
    chain::take_counters(context);
    API(tpfsdp_module_pre_forward, tree.root);
    // Rank 0 has 3, 2 and 2 rows, rank 1 has 2, 1 and 1: one gather of bytes.
    const tpfsdp_counters gathered = chain::take_counters(context);
    EXPECT_EQ(gathered.all_gathers, 1);
    EXPECT_EQ(gathered.gathered_bytes, 60 + 24 + 3);
    EXPECT_EQ(gathered.wire_bytes, rank == 0 ? 24 + 8 + 1 : 36 + 16 + 2);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), counting(15));
    EXPECT_EQ(api::values_of<int64_t>(api::face(table, TPFSDP_FACE_FULL)), (std::vector<int64_t>{5, -6, INT64_MAX}));
    EXPECT_EQ(api::values_of<uint8_t>(api::face(bytes, TPFSDP_FACE_FULL)), (std::vector<uint8_t>{1, 200, 255}));
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    const chain::Values gradient(15, static_cast<float>(rank + 1));
    const Shape shape{5, 3};
    const tpfsdp_view given = api::view(const_cast<float *>(gradient.data()), TPFSDP_DTYPE_F32, shape);
    API(tpfsdp_param_add_grad, w, &given);
    const api::Error frozen = chain::caught([&] { API(tpfsdp_param_add_grad, table, &given); });
    EXPECT_EQ(frozen.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(frozen.what(), testing::HasSubstr("table is frozen"));
    API(tpfsdp_module_end_backward, tree.root);
    const tpfsdp_counters reduced = chain::take_counters(context);
    EXPECT_EQ(reduced.reduce_scatters, 1);
    EXPECT_EQ(reduced.reduced_bytes, 60);
    EXPECT_EQ(reduced.wire_bytes, rank == 0 ? 36 : 24);
    EXPECT_EQ(reduced.copies, 1);
    EXPECT_EQ(reduced.copied_bytes, 60);
    EXPECT_EQ(static_cast<const float *>(api::face(w, TPFSDP_FACE_GRAD).data)[0], 1.5f);
    EXPECT_FALSE(api::has_grad(table));
    EXPECT_EQ(api::unit_info(tree.root).grad_bytes, 60);
  });
}

TEST(Init, unshard_without_lazy_init) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
    EXPECT_EQ(api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL)), chain::weight_values(2, 25));
    API(tpfsdp_fsdp_module_reshard, model.block(0));
    EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_SHARDED);
    model.step(0);  // the outermost module is the root all the same
    model.expect_idle();
  });
}

TEST(Init, unshard_no_param_group) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tree.param(tree.child(tree.root, "a"), "w", TPFSDP_DTYPE_F32, {4}, counting(4));
    tpfsdp_module *a = nullptr;
    API(tpfsdp_module_get_submodule, tree.root, "a", &a);
    tree.shard({a});
    tree.shard({tree.root});
    tpfsdp_work *work = nullptr;
    API(tpfsdp_fsdp_module_unshard, tree.root, &work);
    const api::Owned<tpfsdp_work> held(work);
    ASSERT_NE(work, nullptr);
    API(tpfsdp_work_wait, work, nullptr);
    API(tpfsdp_work_wait, work, nullptr);
    tpfsdp_unit *unit = nullptr;
    EXPECT_EQ(chain::caught([&] { API(tpfsdp_fsdp_module_get_unit, tree.root, 0, &unit); }).status,
              TPFSDP_ERR_NOT_FOUND);
  });
}

TEST(Init, B061_ATiedParameterOnMetaIsOneParameter) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *a = tree.child(tree.root, "a"), *b = tree.child(tree.root, "b");
    const Shape shape{2};
    tpfsdp_view meta{};
    meta.size_bytes = 8;
    meta.shape = shape.data();
    meta.ndim = 1;
    meta.dtype = TPFSDP_DTYPE_F32;
    meta.device_type = TPFSDP_DEVICE_META;
    tpfsdp_param *tied = nullptr;
    API(tpfsdp_param_create, &meta, 1, &tied);
    const api::Owned<tpfsdp_param> held(tied);
    API(tpfsdp_module_register_parameter, a, "w", tied);
    API(tpfsdp_module_register_parameter, b, "w", tied);
    // Materialized before it is sharded: one memory for both places.
    chain::Values values{3, 4};
    const tpfsdp_view real = api::view(values.data(), TPFSDP_DTYPE_F32, shape);
    tpfsdp_tensor *tensor = nullptr;
    API(tpfsdp_tensor_create_borrowed, &real, nullptr, &tensor);
    const api::Owned<tpfsdp_tensor> held_tensor(tensor);
    API(tpfsdp_param_set_tensor, tied, tensor);
    tpfsdp_param *through_b = nullptr;
    API(tpfsdp_module_get_parameter, tree.root, "b.w", &through_b);
    EXPECT_EQ(api::face(through_b, TPFSDP_FACE_FULL).data, values.data());
    EXPECT_EQ(info_of(through_b).place_count, 2);
    EXPECT_EQ(parameter_names(tree.root), (std::vector<std::string>{"a.w"}));
    tree.shard({tree.root});
    EXPECT_EQ(api::unit_info(tree.root).param_count, 1);
    EXPECT_EQ(api::unit_info(tree.root).logical_bytes, 8);
  });
}

}  // namespace
