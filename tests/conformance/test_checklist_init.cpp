// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about what fully_shard takes and where it leaves it: devices, META, replaced values, meshes.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;
using Shape = std::vector<int64_t>;

tpfsdp_param_info info_of(tpfsdp_param *param) {
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  API(tpfsdp_param_get_info, param, &info);
  return info;
}

tpfsdp_group *world_of(tpfsdp_context *context) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  API(tpfsdp_context_get_info, context, &info);
  return info.group;
}

api::Owned<tpfsdp_param> param_on(tpfsdp_device_type device, void *data, const Shape &shape) {
  tpfsdp_view view{};
  view.data = data;
  view.size_bytes = 4;
  for (const int64_t extent : shape) view.size_bytes *= extent;
  view.shape = shape.data();
  view.ndim = static_cast<int32_t>(shape.size());
  view.dtype = TPFSDP_DTYPE_F32;
  view.device_type = device;
  tpfsdp_param *made = nullptr;
  API(tpfsdp_param_create, &view, 1, &made);
  return api::Owned<tpfsdp_param>(made);
}

void set_values(tpfsdp_param *param, float *data, const Shape &shape) {
  const tpfsdp_view view = api::view(data, TPFSDP_DTYPE_F32, shape);
  tpfsdp_tensor *tensor = nullptr;
  API(tpfsdp_tensor_create_borrowed, &view, nullptr, &tensor);
  const api::Owned<tpfsdp_tensor> held(tensor);
  API(tpfsdp_param_set_tensor, param, tensor);
}

void set_rows_of(tpfsdp_param *param, Values &whole) {
  tpfsdp_shard_info place = TPFSDP_INIT(tpfsdp_shard_info);
  API(tpfsdp_param_get_shard_info, param, &place);
  int64_t row = 1;
  for (int32_t d = 1; d < place.ndim; ++d) row *= place.global_shape[d];
  set_values(param, whole.data() + place.offsets[0] * row, Shape(place.local_shape, place.local_shape + place.ndim));
}

TEST(ChecklistInit, move_states_to_device_tensor) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Chain model(context, 0, {.blocks = 1, .is_sharded = false});
    float running[2] = {1, 2};
    const Shape shape{2};
    const tpfsdp_view view = api::view(running, TPFSDP_DTYPE_F32, shape);
    tpfsdp_tensor *buffer = nullptr;
    API(tpfsdp_tensor_create_borrowed, &view, nullptr, &buffer);
    const api::Owned<tpfsdp_tensor> held(buffer);
    API(tpfsdp_module_register_buffer, model.block(0), "running", buffer, 1);
    model.tree.shard({model.block(0)});
    model.tree.shard({model.root()});
    tpfsdp_mesh_info mesh = TPFSDP_INIT(tpfsdp_mesh_info);
    API(tpfsdp_mesh_get_info, api::unit_info(model.root()).mesh, &mesh);
    EXPECT_EQ(mesh.device_type, TPFSDP_DEVICE_CPU);
    model.at = [&](const std::string &here) {
      if (here != "in backward b0") return;
      EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_FULL).device_type, mesh.device_type);
    };
    model.backward(model.forward(0));
    model.end();
    for (const size_t layer : {0, 1}) {
      EXPECT_EQ(api::face(model.weight(layer), TPFSDP_FACE_SHARD).device_type, mesh.device_type);
      EXPECT_EQ(api::face(model.weight(layer), TPFSDP_FACE_GRAD).device_type, mesh.device_type);
    }
    tpfsdp_tensor *found = nullptr;
    API(tpfsdp_module_get_buffer, model.root(), "b0.running", &found);
    tpfsdp_view where{};
    API(tpfsdp_tensor_get_view, found, &where);
    EXPECT_EQ(where.data, running);
    EXPECT_EQ(where.device_type, mesh.device_type);
    // What is on a device that the mesh is not on is refused by name, not moved.
    api::Tree other(context);
    const api::Owned<tpfsdp_param> elsewhere = param_on(TPFSDP_DEVICE_CUDA, running, shape);
    API(tpfsdp_module_register_parameter, other.root, "elsewhere", elsewhere.get());
    const api::Error error = caught([&] { other.shard({other.root}); });
    EXPECT_EQ(error.status, TPFSDP_ERR_UNSUPPORTED);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("elsewhere"), HasSubstr("device type 2")));
    API(tpfsdp_group_reset, world_of(context));
  });
}

// META is the other device that this version knows.
TEST(ChecklistInit, move_states_to_device_ignored_param_device) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    const Shape shape{3};
    const api::Owned<tpfsdp_param> ignored = param_on(TPFSDP_DEVICE_META, nullptr, shape);
    tree.param<float>(tree.root, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    API(tpfsdp_module_register_parameter, tree.root, "ignored", ignored.get());
    tpfsdp_param *const list[] = {ignored.get()};
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.ignored_params = list;
    options.ignored_param_count = 1;
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
    API(tpfsdp_module_pre_forward, tree.root);
    EXPECT_EQ(api::face(ignored.get(), TPFSDP_FACE_FULL).data, nullptr);  // no memory was made for it
    EXPECT_EQ(info_of(ignored.get()).is_sharded, 0);
    Values memory{7, 8, 9};
    set_values(ignored.get(), memory.data(), shape);
    EXPECT_EQ(api::face(ignored.get(), TPFSDP_FACE_FULL).data, memory.data());
    EXPECT_EQ(api::face(ignored.get(), TPFSDP_FACE_FULL).device_type, TPFSDP_DEVICE_CPU);
    API(tpfsdp_module_post_forward, tree.root);
  });
}

TEST(ChecklistInit, a_container_with_a_forward_of_its_own) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    for (const char *kind : {"ModuleList", "ModuleDict"}) {
      api::Tree tree(context);
      tpfsdp_module *const with = tree.module(kind, true), *const plain = tree.module(kind, false);
      API(tpfsdp_module_add_module, tree.root, "with", with);
      API(tpfsdp_module_add_module, tree.root, "plain", plain);
      for (tpfsdp_module *container : {with, plain})
        tree.param<float>(tree.child(container, "0"), "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
      tree.shard({with});
      EXPECT_EQ(api::unit_info(with).param_count, 1);
      EXPECT_EQ(caught([&] { tree.shard({plain}); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
      API(tpfsdp_group_reset, world_of(context));
    }
  });
}

// A module with two names is one owner; a parameter in two modules has one owner and a further place.
TEST(ChecklistInit, param_module_infos) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *const a = tree.child(tree.root, "a"), *const b = tree.child(tree.root, "b");
    tpfsdp_param *const own = tree.param<float>(a, "own", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    tpfsdp_param *const tied = tree.param<float>(a, "tied", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    tpfsdp_param *const other = tree.param<float>(b, "other", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
    API(tpfsdp_module_register_parameter, b, "tied", tied);
    API(tpfsdp_module_add_module, tree.root, "again", a);
    tree.shard({a, b});
    tree.shard({tree.root});
    EXPECT_EQ(api::unit_info(a).param_count, 3);
    const auto expect = [](tpfsdp_param *param, const char *name, int32_t places) {
      EXPECT_STREQ(info_of(param).name, name);
      EXPECT_EQ(info_of(param).place_count, places) << name;
    };
    expect(own, "a.own", 1);
    expect(tied, "a.tied", 2);
    expect(other, "b.other", 1);
    tpfsdp_param *found = nullptr;
    API(tpfsdp_module_get_parameter, tree.root, "b.tied", &found);
    EXPECT_EQ(found, tied);
  });
}

TEST(ChecklistInit, reset_sharded_param_in_lazy_init) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    tpfsdp_param *const w = tree.param<float>(tree.root, "w", TPFSDP_DTYPE_F32, {3}, {1, 2, 3});
    tree.shard({tree.root});
    Values rows = rank == 0 ? Values{7, 8} : Values{9};
    set_values(w, rows.data(), {std::ssize(rows)});
    API(tpfsdp_module_pre_forward, tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), (Values{7, 8, 9}));
    API(tpfsdp_module_post_forward, tree.root);
  });
}

// The chain with every parameter on META when it is sharded.
class MetaChain : public Chain {
 public:
  MetaChain(tpfsdp_context *context, int32_t rank, int64_t width)
      : Chain(context, rank, {.width = width, .is_sharded = false}) {
    for (toy::Layer<float> &layer : layers) {
      tpfsdp_module *owner = nullptr;
      API(tpfsdp_module_get_submodule, root(), layer.name.c_str(), &owner);
      layer.weight = put_on_meta(owner, "weight", {width, width});
      layer.bias = put_on_meta(owner, "bias", {width});
    }
    for (size_t block = 0; block < 3; ++block) tree.shard({this->block(block)});
    tree.shard({root()});
  }
  // Every parameter with the values it has in Chain.
  void for_each_param(const std::function<void(tpfsdp_param *, Values &)> &body) {
    for (size_t l = 0; l < layers.size(); ++l) {
      const int64_t width = layers[l].in, first = static_cast<int64_t>(2 * l);
      Values weight = chain::weight_values(first, width * width), bias = chain::weight_values(first + 1, width);
      body(layers[l].weight, weight);
      body(layers[l].bias, bias);
    }
  }

 private:
  tpfsdp_param *put_on_meta(tpfsdp_module *owner, const char *name, const Shape &shape) {
    made_.push_back(param_on(TPFSDP_DEVICE_META, nullptr, shape));
    API(tpfsdp_module_register_parameter, owner, name, made_.back().get());
    return made_.back().get();
  }

  std::vector<api::Owned<tpfsdp_param>> made_;
};

// 8 rows, one or none a rank, and a single one.
TEST(ChecklistInit, meta_device_1d_init) {
  for (const int64_t width : {8, 3, 1}) {
    const Values expected = chain::clean_run(4, 1, {.width = width});
    on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
      MetaChain model(context, rank, width);
      model.for_each_param(set_rows_of);
      model.step(0);
      EXPECT_EQ(model.full(), expected);
    });
  }
}

TEST(ChecklistInit, rank0_broadcast_meta_device_init) {
  const Values expected = chain::clean_run(4, 2);
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    MetaChain model(context, rank, 5);
    model.for_each_param([&](tpfsdp_param *param, Values &values) {
      if (rank != 0) values.assign(values.size(), -1);
      const Shape count{std::ssize(values)};
      const tpfsdp_view view = api::view(values.data(), TPFSDP_DTYPE_F32, count);
      API(tpfsdp_group_broadcast, world_of(context), &view, 0, nullptr, nullptr);
      set_rows_of(param, values);
    });
    for (int i = 0; i < 2; ++i) model.step(i);
    EXPECT_EQ(model.full(), expected);
  });
}

TEST(ChecklistInit, process_group_init_1d) {
  const Values expected = chain::clean_run(4, 2);
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    tpfsdp_group *const group = world_of(context);
    tpfsdp_mesh *made = nullptr;
    API(tpfsdp_mesh_create_from_groups, &group, 1, nullptr, 0, &made);
    const api::Owned<tpfsdp_mesh> mesh(made);
    Chain model(context, rank, {.mesh = mesh.get(), .block_mesh = mesh.get()});
    for (int i = 0; i < 2; ++i) model.step(i);
    EXPECT_EQ(model.full(), expected);
  });
}

TEST(ChecklistInit, mixed_dtypes_no_grad_param) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    const std::vector<uint8_t> bits{0x38, 0xb8, 0x7e, 0x01, 0x80};  // 1, -1, 448, the least, -0
    tpfsdp_param *const w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tpfsdp_param *const scale = tree.param(tree.root, "scale", TPFSDP_DTYPE_F8_E4M3FN, {5}, bits, false);
    tree.shard({tree.root});
    for (int i = 0; i < 2; ++i) {
      API(tpfsdp_module_pre_forward, tree.root);
      EXPECT_EQ(api::values_of<uint8_t>(api::face(scale, TPFSDP_FACE_FULL)), bits);
      EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), Values(4, static_cast<float>(1 - i)));
      API(tpfsdp_module_post_forward, tree.root);
      API(tpfsdp_module_pre_backward, tree.root);
      std::fill_n(toy::grad_buffer<float>(w), 4, static_cast<float>(2 * rank));
      API(tpfsdp_param_grad_ready, w);
      API(tpfsdp_module_end_backward, tree.root);
      EXPECT_FALSE(api::has_grad(scale));
      const tpfsdp_view shard = api::face(w, TPFSDP_FACE_SHARD), grad = api::face(w, TPFSDP_FACE_GRAD);
      for (int64_t e = 0; e < 2; ++e) static_cast<float *>(shard.data)[e] -= static_cast<const float *>(grad.data)[e];
      API(tpfsdp_module_zero_grad, tree.root, 1);
    }
  });
}

// Each layer is made in the memory of the one before, which was sharded and whose handle was let go.
TEST(ChecklistInit, layer_by_layer_shard_no_false_positive) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    const Shape shape{4};
    Values memory(4);
    for (int i = 0; i < 6; ++i) {
      memory.assign(4, static_cast<float>(i));
      const api::Owned<tpfsdp_param> param = param_on(TPFSDP_DEVICE_CPU, memory.data(), shape);
      tpfsdp_module *const layer = tree.child(tree.root, "l" + std::to_string(i));
      API(tpfsdp_module_register_parameter, layer, "w", param.get());
      tree.shard({layer});
    }
    tree.shard({tree.root});
    API(tpfsdp_root_prepare, tree.root);
    for (int i = 0; i < 6; ++i) {
      tpfsdp_module *layer = nullptr;
      tpfsdp_param *w = nullptr;
      API(tpfsdp_module_get_submodule, tree.root, ("l" + std::to_string(i)).c_str(), &layer);
      API(tpfsdp_module_get_parameter, layer, "w", &w);
      API(tpfsdp_fsdp_module_unshard, layer, nullptr);
      EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_FULL)), Values(4, static_cast<float>(i)));
      API(tpfsdp_fsdp_module_reshard, layer);
    }
  });
}

TEST(ChecklistInit, fully_shard_state) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Chain model(context, 0, {.blocks = 1});
    tpfsdp_module *plain = nullptr;
    API(tpfsdp_module_get_submodule, model.root(), "in", &plain);
    tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
    for (tpfsdp_module *module : {model.root(), model.block(0)}) {
      API(tpfsdp_fsdp_module_get_info, module, &info);
      EXPECT_EQ(info.module_count, 1);
    }
    const api::Error error = caught([&] { API(tpfsdp_fsdp_module_get_info, plain, &info); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), HasSubstr("\"in\" is not sharded"));
  });
}

}  // namespace
