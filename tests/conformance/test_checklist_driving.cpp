// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about hosts that drive a step in their own way: they change no bit of what a plain step gives
// (test_checklist_parity.cpp holds that against one process).
#include "support/chain.hpp"

namespace {

using chain::Chain;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;

constexpr int64_t kWidth = 5;
constexpr tpfsdp_reshard_kind kKinds[] = {TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_SIZE};

chain::Shape shape_of(tpfsdp_reshard_kind kind, int64_t blocks = 3) {
  chain::Shape shape{.blocks = blocks, .reshard = kind, .root_reshard = kind};
  if (kind == TPFSDP_RESHARD_SIZE) shape.options.reshard_after_forward.size = 2;
  return shape;
}

// Arithmetic alone, between hooks that the test calls.
Values compute(toy::Layer<float> &layer, const Values &x) {
  tpfsdp_module *const module = std::exchange(layer.module, nullptr);
  const Values y = toy::forward(layer, x, 2);
  layer.module = module;
  return y;
}

// What Chain::forward makes of them.
Values input_of(int32_t rank, int iteration) {
  Values x(static_cast<size_t>(2 * kWidth));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((3 * rank + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
  return x;
}

float first_of(tpfsdp_param *param, tpfsdp_face face) {
  return static_cast<const float *>(api::face(param, face).data)[0];
}

TEST(Driving, explicit_prefetching) {
  const Values expected = chain::clean_run(2, 3, {.blocks = 4});
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape_of(TPFSDP_RESHARD_ALWAYS, 4));
    for (size_t i = 0; i < 4; ++i) {
      std::vector<tpfsdp_module *> ahead, behind;
      for (size_t k = 1; k <= 2; ++k) {
        if (i + k < 4) ahead.push_back(model.block(i + k));
        if (i >= k) behind.push_back(model.block(i - k));
      }
      API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, model.block(i), ahead.data(), std::ssize(ahead));
      API(tpfsdp_fsdp_module_set_modules_to_backward_prefetch, model.block(i), behind.data(), std::ssize(behind));
    }
    for (int i = 0; i < 3; ++i) model.step(i);
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
    EXPECT_EQ(model.full(), expected);
  });
}

// What each layer computed is computed again before its backward. Units are one a layer; or lists of layers, of which
// the first needs no parameters in backward; or the first and the last layer together, as tied weights want it.
TEST(Driving, train_parity_with_activation_checkpointing) {
  const Values expected = chain::clean_run(4, 3);
  const std::vector<std::vector<std::vector<size_t>>> groupings{
      {{0}, {1}, {2}, {3}}, {{0}, {1}, {2, 3}}, {{1}, {2}, {0, 3}}};
  for (size_t grouping = 0; grouping < groupings.size(); ++grouping) {
    for (const tpfsdp_reshard_kind kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "grouping " << grouping << ", reshard " << kind);
      on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
        chain::Shape shape = shape_of(kind);
        shape.is_sharded = false;
        Chain model(context, rank, shape);
        API(tpfsdp_module_get_submodule, model.root(), "in", &model.layers[0].module);
        for (const std::vector<size_t> &group : groupings[grouping]) {
          std::vector<tpfsdp_module *> modules;
          for (const size_t layer : group) modules.push_back(model.layers[layer].module);
          model.tree.shard(modules, kind, shape.options);
        }
        model.tree.shard({model.root()}, kind, shape.options);
        const toy::Layer<float> &first = model.layers[0];
        if (grouping == 1) API(tpfsdp_fsdp_module_set_unshard_in_backward, first.module, 0);
        for (int i = 0; i < 3; ++i) {
          Values x = input_of(rank, i);
          API(tpfsdp_module_pre_forward, model.root());
          for (toy::Layer<float> &layer : model.layers) {
            API(tpfsdp_module_pre_forward, layer.module);
            x = compute(layer, x);
            layer.y.clear();
            API(tpfsdp_module_post_forward, layer.module);
          }
          API(tpfsdp_module_post_forward, model.root());
          API(tpfsdp_module_pre_backward, model.root());
          for (size_t l = model.layers.size(); l-- > 1;) {
            toy::Layer<float> &layer = model.layers[l];
            API(tpfsdp_module_pre_backward, layer.module);
            API(tpfsdp_module_pre_forward, layer.module);
            compute(layer, Values(layer.x));
            API(tpfsdp_module_post_forward, layer.module);
            x = toy::backward(layer, x, 2);
            API(tpfsdp_module_post_backward, layer.module);
          }
          API(tpfsdp_module_pre_backward, first.module);
          toy::linear_backward<float>(first.x.data(), nullptr, x.data(), nullptr, toy::grad_buffer<float>(first.weight),
                                      toy::grad_buffer<float>(first.bias), 2, kWidth, kWidth);
          for (tpfsdp_param *param : {first.weight, first.bias}) API(tpfsdp_param_grad_ready, param);
          API(tpfsdp_module_post_backward, first.module);
          model.end();
          model.sgd();
        }
        EXPECT_EQ(model.full(), expected);
      });
    }
  }
}

// The next block is gathered by hand while this one runs, and the program uses the group in between.
TEST(Driving, unshard_async) {
  const Values expected = chain::clean_run(2, 3);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape_of(TPFSDP_RESHARD_ALWAYS));
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    tpfsdp_work *work = nullptr;
    model.at = [&](const std::string &here) {
      if (here.rfind("in forward b", 0) == 0 && here.back() != '2') {
        API(tpfsdp_fsdp_module_unshard, model.block(static_cast<size_t>(here.back() - '0') + 1), &work);
        float value = static_cast<float>(rank + 1);
        const std::vector<int64_t> one{1};
        const tpfsdp_view view = api::view(&value, TPFSDP_DTYPE_F32, one);
        API(tpfsdp_group_all_reduce, info.group, &view, &view, TPFSDP_REDUCE_SUM, nullptr, nullptr);
        EXPECT_EQ(value, 3);
      } else if (here.rfind("forward b", 0) == 0 && work) {
        API(tpfsdp_work_wait, work, nullptr);
        tpfsdp_handle_release(std::exchange(work, nullptr));
      }
    };
    API(tpfsdp_root_prepare, model.root());
    take_counters(context);
    for (int i = 0; i < 3; ++i) model.step(i);
    EXPECT_EQ(take_counters(context).all_gathers, 3 * 8);
    EXPECT_EQ(model.full(), expected);
  });
}

// A vocabulary of 4 W + 1 rows: the head gives every row a gradient of 1 and the embedding those of a rank's tokens W,
// so that the mean over the ranks is 2 in each.
TEST(Driving, shared_params_uneven_shard) {
  for (const int32_t world : {2, 3, 4}) {
    const int64_t rows = 4 * world + 1;
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      api::Tree tree(context);
      tpfsdp_module *const embedding = tree.child(tree.root, "embedding"), *const head = tree.child(tree.root, "head");
      const Values ones(static_cast<size_t>(2 * rows), 1);
      tpfsdp_param *const tied = tree.param(embedding, "weight", TPFSDP_DTYPE_F32, {rows, 2}, ones);
      API(tpfsdp_module_register_parameter, head, "weight", tied);
      tree.shard({tree.root});
      API(tpfsdp_module_pre_forward, tree.root);
      API(tpfsdp_module_post_forward, tree.root);
      API(tpfsdp_module_pre_backward, tree.root);
      Values of_head = ones, of_embedding(ones.size(), 0);
      for (int64_t row = rank; row < rows; row += world)
        std::fill_n(of_embedding.begin() + 2 * row, 2, static_cast<float>(world));
      const std::vector<int64_t> whole{rows, 2};
      for (Values *gradient : {&of_head, &of_embedding}) {
        const tpfsdp_view view = api::view(gradient->data(), TPFSDP_DTYPE_F32, whole);
        API(tpfsdp_param_add_grad, tied, &view);
      }
      API(tpfsdp_module_end_backward, tree.root);
      const tpfsdp_view shard = api::face(tied, TPFSDP_FACE_SHARD), grad = api::face(tied, TPFSDP_FACE_GRAD);
      for (int64_t i = 0; i < api::count_of(shard); ++i)
        static_cast<float *>(shard.data)[i] -= static_cast<const float *>(grad.data)[i] / 4;
      API(tpfsdp_module_pre_forward, tree.root);
      EXPECT_EQ(api::values_of<float>(api::face(tied, TPFSDP_FACE_FULL)), Values(ones.size(), 0.5F));
      API(tpfsdp_module_post_forward, tree.root);
    });
  }
}

// A module with two outputs, p * x and q * x: the loss uses both in the first three iterations, then the first alone.
TEST(Driving, unused_forward_output) {
  for (const tpfsdp_reshard_kind kind : kKinds) {
    on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
      api::Tree tree(context);
      tpfsdp_module *const block = tree.child(tree.root, "block");
      tpfsdp_param *const p = tree.param(block, "p", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
      tpfsdp_param *const q = tree.param(block, "q", TPFSDP_DTYPE_F32, {4}, Values(4, 2));
      const tpfsdp_fully_shard_options options = shape_of(kind).options;
      tree.shard({block}, kind, options);
      tree.shard({tree.root}, kind, options);
      float plain_p = 1, plain_q = 2;
      for (int i = 0; i < 6; ++i) {
        const bool uses_both = i < 3;
        const float x = static_cast<float>(rank + i + 1), mean_x = static_cast<float>(i) + 2.5F;
        API(tpfsdp_module_pre_forward, tree.root);
        API(tpfsdp_module_pre_forward, block);
        const float of_p = first_of(p, TPFSDP_FACE_FULL) * x, of_q = first_of(q, TPFSDP_FACE_FULL) * x;
        API(tpfsdp_module_post_forward, block);
        API(tpfsdp_module_post_forward, tree.root);
        EXPECT_EQ(of_p + (uses_both ? of_q : 0), plain_p * x + (uses_both ? plain_q * x : 0));  // the loss
        API(tpfsdp_module_pre_backward, tree.root);
        API(tpfsdp_module_pre_backward, block);
        for (tpfsdp_param *param : uses_both ? std::vector{p, q} : std::vector{p}) {
          std::fill_n(toy::grad_buffer<float>(param), 4, x);
          API(tpfsdp_param_grad_ready, param);
        }
        API(tpfsdp_module_post_backward, block);
        API(tpfsdp_module_end_backward, tree.root);
        EXPECT_EQ(first_of(p, TPFSDP_FACE_GRAD), mean_x);
        EXPECT_EQ(api::has_grad(q), uses_both);
        for (tpfsdp_param *param : {p, q}) {
          if (api::has_grad(param))
            static_cast<float *>(api::face(param, TPFSDP_FACE_SHARD).data)[0] -= first_of(param, TPFSDP_FACE_GRAD) / 64;
        }
        API(tpfsdp_module_zero_grad, tree.root, 1);
        plain_p -= mean_x / 64;
        if (uses_both) plain_q -= mean_x / 64;
      }
    });
  }
}

// Runs in forward, but the loss does not depend on it.
TEST(Driving, unused_forward_module) {
  const Values with_it = chain::clean_run(2, 2, {.blocks = 2});
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 2, .is_sharded = false});
    tpfsdp_module *const aside = model.tree.child(model.root(), "aside");
    tpfsdp_param *const unused = model.tree.param(aside, "weight", TPFSDP_DTYPE_F32, {4}, Values(4, 3));
    model.tree.shard({model.block(0)});
    model.tree.shard({aside});
    model.tree.shard({model.block(1)});
    model.tree.shard({model.root()});
    model.at = [&](const std::string &here) {
      if (here != "forward b1") return;
      API(tpfsdp_module_pre_forward, aside);
      EXPECT_EQ(api::values_of<float>(api::face(unused, TPFSDP_FACE_FULL)), Values(4, 3));
      API(tpfsdp_module_post_forward, aside);
    };
    for (int i = 0; i < 2; ++i) {
      model.backward(model.forward(i));
      model.end();
      EXPECT_FALSE(api::has_grad(unused));
      EXPECT_EQ(api::unit_info(aside).sharded_state, TPFSDP_SHARDED_SHARDED);
      model.sgd();
    }
    EXPECT_EQ(model.full(), with_it);
  });
}

using Function = std::function<void(const tpfsdp_module_args &)>;

void set_method(tpfsdp_module *module, const char *name, Function function) {
  const tpfsdp_module_callback callback{[](void *user, const tpfsdp_module_args *args) -> tpfsdp_status {
                                          try {
                                            (*static_cast<Function *>(user))(*args);
                                            return TPFSDP_OK;
                                          } catch (const api::Error &error) {
                                            return error.status;
                                          }
                                        },
                                        new Function(std::move(function)),
                                        [](void *user) { delete static_cast<Function *>(user); }};
  API(tpfsdp_module_set_method, module, name, &callback);
}

// The blocks have no method "forward"; the root calls their method "encode".
TEST(Driving, register_fsdp_forward_method) {
  const Values expected = chain::clean_run(2, 3);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape_of(TPFSDP_RESHARD_ALWAYS));
    std::vector<toy::Layer<float>> &layers = model.layers;
    for (size_t l = 1; l < layers.size(); ++l) {
      set_method(layers[l].module, "encode", [&, l](const auto &args) {
        auto &x = *static_cast<Values *>(args.payload);
        x = compute(layers[l], x);
      });
      set_method(layers[l].module, "backward", [&, l](const auto &args) {
        auto &dy = *static_cast<Values *>(args.payload);
        dy = toy::backward(layers[l], dy, 2);
      });
      API(tpfsdp_fully_shard_register_forward_method, layers[l].module, "encode");
    }
    set_method(model.root(), "forward", [&](const auto &args) {
      auto &x = *static_cast<Values *>(args.payload);
      x = compute(layers[0], x);
      for (size_t l = 1; l < layers.size(); ++l) API(tpfsdp_module_call_method, layers[l].module, "encode", &x);
    });
    set_method(model.root(), "backward", [&](const auto &args) {
      auto &dy = *static_cast<Values *>(args.payload);
      for (size_t l = layers.size(); l-- > 1;) API(tpfsdp_module_backward, layers[l].module, &dy);
      dy = toy::backward(layers[0], dy, 2);
    });
    for (int i = 0; i < 3; ++i) {
      Values flow = input_of(rank, i);
      API(tpfsdp_module_call, model.root(), &flow);
      model.expect_idle();
      API(tpfsdp_module_backward, model.root(), &flow);
      model.expect_idle();
      model.sgd();
    }
    EXPECT_EQ(model.full(), expected);
  });
}

// A { lin, B { lin, C } }: B is sharded without the parameters of C, and the program itself averages what is whole.
TEST(Driving, ddp_A_fsdp_B_ddp_C) {
  const Values sharded_all = chain::clean_run(2, 3, {.blocks = 2});
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 2, .is_sharded = false});
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    // The layers of a chain, hung up as A, B and C.
    toy::Layer<float> &a = model.layers[0], &b = model.layers[1], &c = model.layers[2];
    API(tpfsdp_module_add_module, model.root(), "b1", nullptr);
    API(tpfsdp_module_add_module, b.module, "c", c.module);
    tpfsdp_param *const ignored[] = {c.weight, c.bias};
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.ignored_params = ignored;
    options.ignored_param_count = 2;
    model.tree.shard({b.module}, TPFSDP_RESHARD_AUTO, options);
    EXPECT_EQ(api::unit_info(b.module).param_count, 2);
    for (const toy::Layer<float> &layer : model.layers) {
      for (tpfsdp_param *param : {layer.weight, layer.bias}) {
        tpfsdp_param_info of = TPFSDP_INIT(tpfsdp_param_info);
        API(tpfsdp_param_get_info, param, &of);
        EXPECT_EQ(of.is_sharded, &layer == &b);
      }
    }
    // Gradients of a layer that is whole on every rank, averaged, and its step.
    const auto backward_whole = [&](toy::Layer<float> &layer, Values dy) {
      Values dx(dy.size()), dweight(25), dbias(5);
      const Values above = dy;
      for (size_t i = 0; layer.relu && i < dy.size(); ++i) dy[i] = layer.y[i] > 0 ? dy[i] : 0.0F;
      toy::linear_backward(layer.x.data(), toy::full<float>(layer.weight), dy.data(), dx.data(), dweight.data(),
                           dbias.data(), 2, kWidth, kWidth);
      for (const auto &[param, gradient] : {std::pair{layer.weight, &dweight}, std::pair{layer.bias, &dbias}}) {
        const std::vector<int64_t> count{std::ssize(*gradient)};
        const tpfsdp_view view = api::view(gradient->data(), TPFSDP_DTYPE_F32, count);
        API(tpfsdp_group_all_reduce, info.group, &view, &view, TPFSDP_REDUCE_AVG, nullptr, nullptr);
        auto *values = static_cast<float *>(api::face(param, TPFSDP_FACE_FULL).data);
        for (size_t i = 0; i < gradient->size(); ++i) values[i] -= (*gradient)[i] / 64;
      }
      for (size_t i = 0; layer.residual && i < dx.size(); ++i) dx[i] += above[i];
      return dx;
    };
    for (int i = 0; i < 3; ++i) {
      Values x = compute(a, input_of(rank, i));
      API(tpfsdp_module_pre_forward, b.module);
      x = compute(c, compute(b, x));
      API(tpfsdp_module_post_forward, b.module);
      API(tpfsdp_module_pre_backward, b.module);
      Values dy = toy::backward(b, backward_whole(c, x), 2);
      API(tpfsdp_module_post_backward, b.module);
      backward_whole(a, dy);
      API(tpfsdp_module_end_backward, b.module);
      for (tpfsdp_param *param : {b.weight, b.bias}) {
        const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD), grad = api::face(param, TPFSDP_FACE_GRAD);
        for (int64_t e = 0; e < api::count_of(shard); ++e)
          static_cast<float *>(shard.data)[e] -= static_cast<const float *>(grad.data)[e] / 64;
      }
      API(tpfsdp_module_zero_grad, b.module, 1);
    }
    API(tpfsdp_fsdp_module_unshard, b.module, nullptr);
    Values all;
    for (const toy::Layer<float> &layer : model.layers) {
      for (tpfsdp_param *param : {layer.weight, layer.bias}) {
        const Values values = api::values_of<float>(api::face(param, TPFSDP_FACE_FULL));
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(all, sharded_all);
    API(tpfsdp_fsdp_module_reshard, b.module);
  });
}

}  // namespace
