// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about numbers: however a step is driven, sharded training gives the bits of one process that
// runs the micro-batches of all ranks in rank order, adds their gradients left to right and scales once.
#include "support/chain.hpp"

#include <chrono>
#include <thread>

namespace {

using chain::Chain;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;
using Gradients = std::vector<Values>;

constexpr int64_t kWidth = 5;

// What Chain::forward makes of them.
Values input_of(int32_t rank, int iteration, int64_t width = kWidth) {
  Values x(static_cast<size_t>(2 * width));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((3 * rank + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
  return x;
}

struct PlainLayer {
  int64_t in, out;
  bool relu, residual;
};

// The unsharded model: layers of weight and bias, used in the order of `uses`, of the loss sum(y * y) / 2.
class Plain {
 public:
  Plain(int32_t world_size, std::vector<PlainLayer> of) : layers(std::move(of)), world(world_size) {
    for (size_t l = 0; l < layers.size(); ++l) {
      const int64_t at = static_cast<int64_t>(2 * l);
      params.push_back(chain::weight_values(at, layers[l].in * layers[l].out));
      params.push_back(chain::weight_values(at + 1, layers[l].out));
      uses.push_back(l);
    }
    trains.assign(params.size(), true);
  }
  // That of Chain.
  static Plain chain(int32_t world, size_t blocks = 3) {
    std::vector<PlainLayer> of(blocks + 1, {kWidth, kWidth, true, true});
    of[0] = {kWidth, kWidth, false, false};
    return Plain(world, of);
  }

  Values forward(const Values &x) const {
    std::vector<Values> xs, ys;
    run(x, xs, ys);
    return xs.back();
  }
  // Of one rank's micro-batch: weight and bias of each use.
  Gradients gradients(const Values &x) const {
    std::vector<Values> xs, ys;
    run(x, xs, ys);
    Gradients out(2 * uses.size());
    Values dy = xs.back();
    for (size_t u = uses.size(); u-- > 0;) {
      const auto &[in, width, relu, residual] = layers[uses[u]];
      Values above = dy, dx(xs[u].size());
      if (relu) {
        for (size_t i = 0; i < dy.size(); ++i) dy[i] = ys[u][i] > 0 ? dy[i] : 0.0F;
      }
      out[2 * u].resize(params[2 * uses[u]].size());
      out[2 * u + 1].resize(params[2 * uses[u] + 1].size());
      toy::linear_backward(xs[u].data(), params[2 * uses[u]].data(), dy.data(), dx.data(), out[2 * u].data(),
                           out[2 * u + 1].data(), 2, in, width);
      for (size_t i = 0; residual && i < dx.size(); ++i) dx[i] += above[i];
      dy = dx;
    }
    return out;
  }
  Gradients means(const std::vector<Gradients> &of_ranks) const {
    Gradients out = of_ranks[0];
    for (size_t u = 0; u < out.size(); ++u) {
      for (size_t rank = 1; rank < of_ranks.size(); ++rank) add(out[u], of_ranks[rank][u]);
      for (float &value : out[u]) value *= static_cast<float>(1.0 / world);
    }
    return out;
  }
  // SGD with the sum over the uses of a parameter, the last one first.
  void update(const std::vector<Gradients> &of_ranks) {
    const Gradients mean = means(of_ranks);
    Gradients sums(params.size());
    for (size_t u = uses.size(); u-- > 0;) {
      for (const size_t k : {0, 1}) {
        Values &sum = sums[2 * uses[u] + k];
        sum.empty() ? void(sum = mean[2 * u + k]) : add(sum, mean[2 * u + k]);
      }
    }
    for (size_t p = 0; p < params.size(); ++p) {
      for (size_t i = 0; trains[p] && i < params[p].size(); ++i) params[p][i] -= sums[p][i] / 64;
    }
  }
  void step(int iteration) {
    std::vector<Gradients> of_ranks;
    for (int32_t rank = 0; rank < world; ++rank) of_ranks.push_back(gradients(input_of(rank, iteration, layers[0].in)));
    update(of_ranks);
  }
  // The micro-batches of one step, each rank's gradients added up before they are averaged.
  void step_of(const std::vector<int> &micro_batches) {
    std::vector<Gradients> of_ranks;
    for (int32_t rank = 0; rank < world; ++rank) {
      Gradients sum = gradients(input_of(rank, micro_batches[0]));
      for (size_t m = 1; m < micro_batches.size(); ++m) {
        const Gradients next = gradients(input_of(rank, micro_batches[m]));
        for (size_t u = 0; u < sum.size(); ++u) add(sum[u], next[u]);
      }
      of_ranks.push_back(sum);
    }
    update(of_ranks);
  }
  Values all() const {
    Values out;
    for (const Values &param : params) out.insert(out.end(), param.begin(), param.end());
    return out;
  }

  std::vector<PlainLayer> layers;
  std::vector<size_t> uses;
  Gradients params;
  std::vector<bool> trains;

 private:
  void run(const Values &x, std::vector<Values> &xs, std::vector<Values> &ys) const {
    xs.push_back(x);
    for (const size_t l : uses) {
      const auto &[in, out, relu, residual] = layers[l];
      Values y(static_cast<size_t>(2 * out));
      toy::linear_forward(xs.back().data(), params[2 * l].data(), params[2 * l + 1].data(), y.data(), 2, in, out);
      for (float &value : y) value = relu ? std::max(value, 0.0F) : value;
      ys.push_back(y);
      if (residual) add(y, xs.back());
      xs.push_back(y);
    }
  }
  static void add(Values &sum, const Values &more) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }

  int32_t world;
};

Values trained(int32_t world, int steps, size_t blocks = 3) {
  Plain plain = Plain::chain(world, blocks);
  for (int i = 0; i < steps; ++i) plain.step(i);
  return plain.all();
}

// This rank's rows of the whole.
Values local(tpfsdp_param *param, const Values &whole) {
  tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
  API(tpfsdp_param_get_shard_info, param, &info);
  int64_t row = 1;
  for (int32_t d = 1; d < info.ndim; ++d) row *= info.global_shape[d];
  const auto begin = whole.begin() + info.offsets[0] * row;
  return Values(begin, begin + info.local_shape[0] * row);
}

chain::Shape shape_of(tpfsdp_reshard_kind kind, int64_t blocks = 3) {
  chain::Shape shape{.blocks = blocks, .reshard = kind, .root_reshard = kind};
  if (kind == TPFSDP_RESHARD_SIZE) shape.options.reshard_after_forward.size = 2;
  return shape;
}
constexpr tpfsdp_reshard_kind kKinds[] = {TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER, TPFSDP_RESHARD_SIZE};

// For what the host drives by itself: arithmetic alone, between hooks of its own.
Values compute(toy::Layer<float> &layer, const Values &x) {
  tpfsdp_module *const module = std::exchange(layer.module, nullptr);
  const Values y = toy::forward(layer, x, 2);
  layer.module = module;
  return y;
}

// One rank is late: with its forward, before a gather, before a reduction, or with its optimizer.
TEST(Parity, train_parity_multi_group) {
  const Values expected = trained(4, 3);
  for (const tpfsdp_reshard_kind kind : kKinds) {
    for (const char *late : {"after forward", "forward b1", "in backward b1", "before the optimizer"}) {
      SCOPED_TRACE(testing::Message() << "reshard " << kind << ", late " << late);
      on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, shape_of(kind));
        model.at = [&](const std::string &here) {
          if (here == late && rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        };
        for (int i = 0; i < 3; ++i) {
          const Values y = model.forward(i);
          model.at("after forward");
          model.backward(y);
          model.end();
          model.at("before the optimizer");
          model.sgd();
        }
        EXPECT_EQ(model.full(), expected);
      });
    }
  }
}

TEST(Parity, train_parity_single_group_shard_dim0) {
  const std::vector<PlainLayer> models[] = {{{16, 15, true, false}, {15, 8, false, false}},
                                            {{7, 15, true, false}, {15, 3, false, false}},
                                            {{16, 17, true, false}, {17, 8, false, false}}};
  for (const std::vector<PlainLayer> &of : models) {
    Plain plain(4, of);
    for (int i = 0; i < 5; ++i) plain.step(i);
    on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, {.blocks = 0, .is_sharded = false});
      API(tpfsdp_module_add_module, model.root(), "in", nullptr);
      model.layers.clear();
      for (size_t l = 0; l < of.size(); ++l) {
        toy::Layer<float> &layer = model.layers.emplace_back();
        layer.in = of[l].in;
        layer.out = of[l].out;
        layer.relu = of[l].relu;
        tpfsdp_module *const module = model.tree.child(model.root(), "l" + std::to_string(l));
        layer.weight = model.tree.param(module, "weight", TPFSDP_DTYPE_F32, {layer.out, layer.in},
                                        chain::weight_values(static_cast<int64_t>(2 * l), layer.in * layer.out));
        layer.bias = model.tree.param(module, "bias", TPFSDP_DTYPE_F32, {layer.out},
                                      chain::weight_values(static_cast<int64_t>(2 * l + 1), layer.out));
      }
      model.tree.shard({model.root()});
      for (int i = 0; i < 5; ++i) {
        Values x = input_of(rank, i, of[0].in);
        API(tpfsdp_module_pre_forward, model.root());
        for (toy::Layer<float> &layer : model.layers) x = toy::forward(layer, x, 2);
        API(tpfsdp_module_post_forward, model.root());
        model.backward(x);
        model.end();
        model.sgd();
      }
      EXPECT_EQ(api::unit_info(model.root()).param_count, 4);
      EXPECT_EQ(model.full(), plain.all());
    });
  }
}

TEST(Parity, non_root_forward_backward) {
  Plain whole = Plain::chain(2, 2);
  whole.step(0);
  Plain inner(2, {{kWidth, kWidth, true, true}});
  inner.params = {whole.params[4], whole.params[5]};
  const Gradients expected = inner.means({inner.gradients(input_of(0, 7)), inner.gradients(input_of(1, 7))});
  whole.step(1);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 2});
    model.step(0);
    toy::Layer<float> &layer = model.layers[2];
    const Values y = toy::forward(layer, input_of(rank, 7), 2);
    API(tpfsdp_module_pre_backward, layer.module);
    toy::backward(layer, y, 2);
    API(tpfsdp_module_post_backward, layer.module);
    model.end();
    EXPECT_EQ(api::values_of<float>(api::face(layer.weight, TPFSDP_FACE_GRAD)), local(layer.weight, expected[0]));
    EXPECT_EQ(api::values_of<float>(api::face(layer.bias, TPFSDP_FACE_GRAD)), local(layer.bias, expected[1]));
    API(tpfsdp_module_zero_grad, model.root(), 1);
    model.step(1);
    EXPECT_EQ(model.full(), whole.all());
  });
}

// Three micro-batches go forward before the first goes backward; parameters are gathered ahead by hand, or not.
TEST(Parity, microbatching_1f1b) {
  Plain plain = Plain::chain(2);
  for (int i = 0; i < 2; ++i) plain.step_of({3 * i, 3 * i + 1, 3 * i + 2});
  for (const bool unshards : {false, true}) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, shape_of(unshards ? TPFSDP_RESHARD_NEVER : TPFSDP_RESHARD_ALWAYS));
      for (int i = 0; i < 2; ++i) {
        if (unshards) {
          for (size_t block = 0; block < 3; ++block) {
            tpfsdp_work *work = nullptr;
            API(tpfsdp_fsdp_module_unshard, model.block(block), &work);
            tpfsdp_handle_release(work);
          }
        }
        std::vector<Values> outputs;
        std::vector<std::vector<toy::Layer<float>>> activations;
        for (int micro = 0; micro < 3; ++micro) {
          outputs.push_back(model.forward(3 * i + micro));
          activations.push_back(model.layers);
        }
        take_counters(context);
        for (size_t micro = 0; micro < 3; ++micro) {
          const tpfsdp_bool is_last = micro == 2;
          API(tpfsdp_fsdp_module_set_is_last_backward, model.root(), is_last);
          API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.root(), is_last, 1);
          model.layers = activations[micro];
          model.backward(outputs[micro]);
          model.end();
        }
        EXPECT_EQ(take_counters(context).reduce_scatters, 4);
        model.expect_idle();
        model.sgd();
      }
      EXPECT_EQ(model.full(), plain.all());
    });
  }
}

// Weights frozen, before or after the model is sharded.
TEST(Parity, train_mixed_requires_grad_per_group) {
  Plain plain = Plain::chain(4);
  for (size_t p = 0; p < plain.trains.size(); p += 2) plain.trains[p] = false;
  for (int i = 0; i < 3; ++i) plain.step(i);
  for (const bool freezes_after : {false, true}) {
    for (const tpfsdp_reshard_kind kind : kKinds) {
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(testing::Message() << "after " << freezes_after << ", reshard " << kind << ", " << recomputes);
        const auto train = [&](tpfsdp_context *context, int32_t rank) {
          chain::Shape shape = shape_of(kind);
          shape.is_sharded = false;
          Chain model(context, rank, shape);
          const auto freeze = [&] {
            for (toy::Layer<float> &layer : model.layers) {
              API(tpfsdp_param_set_requires_grad, layer.weight, 0);
              layer.weight_trains = false;
            }
          };
          if (!freezes_after) freeze();
          for (size_t block = 0; block < 3; ++block) model.tree.shard({model.block(block)}, kind, shape.options);
          model.tree.shard({model.root()}, kind, shape.options);
          if (freezes_after) freeze();
          model.at = [&](const std::string &here) {
            if (recomputes && here.rfind("in backward b", 0) == 0) {
              tpfsdp_module *const block = model.block(static_cast<size_t>(here.back() - '0'));
              API(tpfsdp_module_pre_forward, block);
              API(tpfsdp_module_post_forward, block);
            }
            // Every block's backward has ended by its own hook.
            if (here == "end") {
              EXPECT_EQ(chain::count_lines(chain::take_events(context), "POST_BACKWARD b"), 3);
            }
          };
          for (int i = 0; i < 3; ++i) {
            take_counters(context);
            model.step(i);
            EXPECT_EQ(take_counters(context).reduced_bytes, 4 * kWidth * 4);  // biases alone
          }
          EXPECT_EQ(model.full(), plain.all());
        };
        on_ranks(4, train, 1000);
      }
    }
  }
}

// Every second layer frozen; an iteration without gradients in between; all of them trained in the last one, or not.
TEST(Parity, train_mixed_requires_grad_across_groups) {
  for (const bool unfreezes : {false, true}) {
    Plain plain = Plain::chain(2, 4);
    for (const size_t layer : {1, 3}) plain.trains[2 * layer] = plain.trains[2 * layer + 1] = false;
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Plain reference = plain;
      Chain model(context, rank, shape_of(TPFSDP_RESHARD_ALWAYS, 4));
      const auto set_trains = [&](tpfsdp_bool enabled) {
        for (const size_t layer : {1, 3}) {
          API(tpfsdp_module_set_requires_grad, model.layers[layer].module, enabled);
          model.layers[layer].weight_trains = model.layers[layer].bias_trains = enabled != 0;
        }
      };
      set_trains(0);
      for (int i = 0; i < 4; ++i) {
        if (i == 1) {
          API(tpfsdp_module_set_grad_enabled, model.root(), 0);
          EXPECT_EQ(model.forward(9), reference.forward(input_of(rank, 9)));
          API(tpfsdp_module_set_grad_enabled, model.root(), 1);
        }
        if (i == 3 && unfreezes) {
          set_trains(1);
          reference.trains.assign(reference.trains.size(), true);
        }
        const Values y = model.forward(i);
        EXPECT_EQ(y, reference.forward(input_of(rank, i)));
        model.backward(y);
        model.end();
        model.sgd();
        reference.step(i);
      }
      EXPECT_EQ(model.full(), reference.all());
    });
  }
}

// A frozen layer and a trained one, three times in turn, and once more without gradients.
TEST(Parity, multi_forward_mixed_requires_grad) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Plain reference = Plain::chain(2, 2), without = reference;
    reference.trains[2] = reference.trains[3] = false;
    reference.uses = {0, 1, 2, 1, 2, 1, 2};
    Chain model(context, rank, shape_of(TPFSDP_RESHARD_ALWAYS, 2));
    API(tpfsdp_module_set_requires_grad, model.block(0), 0);
    model.layers[1].weight_trains = model.layers[1].bias_trains = false;
    for (int i = 0; i < 3; ++i) {
      without.params = reference.params;
      const Values x = input_of(rank, i);
      std::vector<toy::Layer<float>> calls;
      API(tpfsdp_module_pre_forward, model.root());
      const Values start = compute(calls.emplace_back(model.layers[0]), x);
      for (const size_t block : {0, 1}) API(tpfsdp_module_set_grad_enabled, model.block(block), 0);
      Values aside = start;
      for (const size_t layer : {1, 2}) aside = toy::forward(model.layers[layer], aside, 2);
      EXPECT_EQ(aside, without.forward(x));
      for (const size_t block : {0, 1}) API(tpfsdp_module_set_grad_enabled, model.block(block), 1);
      Values y = start;
      for (const size_t layer : {1, 2, 1, 2, 1, 2}) y = toy::forward(calls.emplace_back(model.layers[layer]), y, 2);
      API(tpfsdp_module_post_forward, model.root());
      EXPECT_EQ(y, reference.forward(x));
      API(tpfsdp_module_pre_backward, model.root());
      for (size_t c = calls.size(); c-- > 0;) {
        if (calls[c].module) API(tpfsdp_module_pre_backward, calls[c].module);
        y = toy::backward(calls[c], y, 2);
        if (calls[c].module) API(tpfsdp_module_post_backward, calls[c].module);
      }
      model.end();
      model.expect_idle();
      model.sgd();
      reference.step(i);
    }
    EXPECT_EQ(model.full(), reference.all());
  });
}

}  // namespace
