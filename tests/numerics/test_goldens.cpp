// SPDX-License-Identifier: Apache-2.0
// The toy models of tests/goldens, which ran through PyTorch's own fully_shard, run through ours: shapes, shards,
// losses, gradients, steps, and the order of events as whole strings. The padded counts of PyTorch's collectives are
// printed from the shapes (tests/goldens/README.md says how); our own bytes are checked elsewhere.
#include "support/toy_host.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <set>

namespace {

using nlohmann::json;

enum class Optimizer { kSgd, kAdamW };

json load(const std::string &name) {
  std::ifstream file(std::string(TPFSDP_TESTS_DIR) + "/goldens/" + name + ".json");
  if (!file) throw std::runtime_error("no golden " + name);
  return json::parse(file);
}

// What differs between ranks stands in a list over them.
json of_rank(const json &golden, const std::string &field, int rank) {
  if (golden.contains(field)) return golden[field];
  return golden.at("per_rank_" + field).at(static_cast<size_t>(rank));
}

template <class T>
std::vector<T> parameter_values(int64_t index, int64_t count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(((7 * index + 5 * i + i / 3) % 17 - 8) / T{16}));
  return values;
}

int64_t volume(const std::vector<int64_t> &shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

const char *training_name(int state) {
  constexpr const char *kNames[] = {"?", "IDLE", "FORWARD", "PRE_BACKWARD", "POST_BACKWARD"};
  return kNames[state];
}

template <class T>
class ToyRun {
 public:
  ToyRun(const json &golden, tpfsdp_context *context, int rank, Optimizer optimizer)
      : golden_(golden),
        context_(context),
        rank_(rank),
        world_(golden["world"]),
        optimizer_(optimizer),
        tree_(context) {
    build();
  }

  void steps() {
    const int iterations = golden_["iters"];
    for (int it = 0; it < iterations; ++it) {
      tpfsdp_counters ignored = TPFSDP_INIT(tpfsdp_counters);
      API(tpfsdp_trace_get_counters, context_, 0, &ignored);
      API(tpfsdp_trace_clear, context_);
      std::vector<std::string> log{"-- forward it=" + std::to_string(it) + " mb=0"};
      const std::vector<T> y = forward(input(it));
      append_events(log);
      if (it == 0) output0_ = y;
      std::vector<T> dy(y.size());
      const std::vector<T> t = target(it, y.size());
      T loss = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        loss += (y[i] - t[i]) * (y[i] - t[i]);
        dy[i] = 2 * (y[i] - t[i]) / 16;
      }
      losses_.push_back(loss / 16);
      log.push_back("-- backward it=" + std::to_string(it) + " mb=0");
      API(tpfsdp_trace_clear, context_);
      backward(dy);
      append_events(log);
      if (it < 2) logs_.push_back(log);
      if (it == 0) {
        for (auto &[name, param] : params_) grads0_[name] = gradient(param);
      }
      step(it);
      API(tpfsdp_module_zero_grad, tree_.root, 1);
    }
  }

  void compare() {
    SCOPED_TRACE("rank " + std::to_string(rank_) + (optimizer_ == Optimizer::kSgd ? " sgd" : " adamw"));
    json shapes = json::array();
    for (const json &p : golden_["params"]) shapes.push_back(local_shape(p["name"]));
    EXPECT_EQ(shapes, of_rank(golden_, "local_shapes", rank_));
    near(json(output0_), of_rank(golden_, "output0", rank_), "output0");
    if (optimizer_ == Optimizer::kSgd) {
      near(json(losses_), of_rank(golden_, "losses", rank_), "losses");
      json grads = json::array();
      for (const json &p : golden_["params"]) grads.push_back(grads0_.count(p["name"]) ? grads0_[p["name"]] : json());
      near(grads, of_rank(golden_, "grad_shards_it0", rank_), "grad_shards_it0");
    }
    EXPECT_EQ(json(logs_[0]).dump(1), golden_["log_it0"].dump(1));
    if (golden_.contains("log_it1")) {
      EXPECT_EQ(json(logs_[1]).dump(1), golden_["log_it1"].dump(1));
    }
    compare_parameters();
  }

 private:
  // ---- The model, from the names of its parameters: l0, l1, .. is a chain with ReLU between; inp, b0, b1, .. adds
  // blocks with residuals. A unit per name that the golden's log shows, the rest in the root. ----
  void build() {
    std::set<std::string> units;
    for (const json &line : golden_["log_it0"]) {
      const std::string text = line;
      if (text.rfind("U ", 0) == 0) units.insert(text.substr(2, text.rfind(' ') - 2));
    }
    const std::string name = golden_["case"];
    std::map<std::string, tpfsdp_module *> modules{{"", tree_.root}};
    const auto module_at = [&](const std::string &path) {
      if (modules.count(path)) return modules[path];
      const size_t dot = path.rfind('.');
      const std::string above = dot == std::string::npos ? "" : path.substr(0, dot);
      if (!modules.count(above)) modules[above] = tree_.child(tree_.root, above);
      return modules[path] = tree_.child(modules[above], dot == std::string::npos ? path : path.substr(dot + 1));
    };
    std::vector<tpfsdp_param *> ignored;
    std::map<std::string, toy::Layer<T>> layers;
    std::vector<std::string> order;
    for (const json &p : golden_["params"]) {
      const std::string full_name = p["name"];
      const std::vector<int64_t> shape = p["shape"];
      const bool trains = !p.value("frozen", false);
      const size_t dot = full_name.rfind('.');
      const std::string path = dot == std::string::npos ? "" : full_name.substr(0, dot);
      const std::string leaf = full_name.substr(dot == std::string::npos ? 0 : dot + 1);
      if (p["dtype"] == "i64") {
        std::vector<int64_t> whole(static_cast<size_t>(volume(shape)));
        for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<int64_t>(i);
        params_.emplace_back(full_name, tree_.param(module_at(path), leaf, TPFSDP_DTYPE_I64, shape, whole, false));
        continue;
      }
      const std::vector<T> whole = parameter_values<T>(p["index"], volume(shape));
      tpfsdp_param *param = tree_.param(module_at(path), leaf, toy::dtype_of<T>(), shape, whole, trains);
      params_.emplace_back(full_name, param);
      if (!layers.count(path)) order.push_back(path);
      toy::Layer<T> &layer = layers[path];
      layer.name = path;
      if (leaf == "weight") {
        layer.weight = param;
        layer.weight_trains = trains;
        layer.out = shape[0];
        layer.in = shape[1];
      } else if (name == "ignored_param" && full_name == "l0.bias") {
        own_bias_ = whole;
        layer.own_bias = own_bias_.data();
        layer.bias = param;
        ignored.push_back(param);
      } else {
        layer.bias = param;
        layer.bias_trains = trains;
      }
    }
    if (name == "tied_weight") {
      layers["l1"].weight = layers["l0"].weight;
      layers["l1"].in = layers["l1"].out = 4;
      API(tpfsdp_module_register_parameter, module_at("l1"), "weight", layers["l0"].weight);
      layers["l0"].tied = true;  // backward comes to l1 first
    }
    tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO;
    if (name == "raf_true") reshard = TPFSDP_RESHARD_ALWAYS;
    if (name == "raf_false") reshard = TPFSDP_RESHARD_NEVER;
    const bool has_blocks = !layers.count("l0");
    if (units.count("l0, l1")) tree_.shard({modules["l0"], modules["l1"]});
    for (const std::string &path : order) {
      toy::Layer<T> &layer = layers[path];
      const std::string unit = has_blocks && path != "inp" ? path.substr(0, path.find('.')) : path;
      const bool is_block = has_blocks && path != "inp";
      layer.relu = is_block || (!has_blocks && path != order.back());
      layer.residual = is_block;
      if (is_block || units.count(unit)) tree_.shard({modules[unit]}, reshard);
      if (is_block || units.count(unit) || (units.count("l0, l1") && path != "l2")) layer.module = modules[unit];
      layers_.push_back(layer);
    }
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.ignored_params = ignored.data();
    options.ignored_param_count = static_cast<int64_t>(ignored.size());
    tree_.shard({tree_.root}, reshard, options);
    has_blocks_ = has_blocks;
    input_requires_grad_ = name == "input_requires_grad";
  }

  std::vector<T> input(int it) const {
    std::vector<T> x(static_cast<size_t>(2 * layers_.front().in));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<T>((3 * rank_ + 5 * it + 7 * static_cast<int>(i)) % 9 - 4) / T{4};
    return x;
  }
  std::vector<T> target(int it, size_t count) const {
    std::vector<T> t(count);
    for (size_t i = 0; i < t.size(); ++i)
      t[i] = static_cast<T>((2 * rank_ + 3 * it + 4 * static_cast<int>(i)) % 7 - 3) / T{4};
    return t;
  }

  std::vector<T> forward(std::vector<T> x) {
    API(tpfsdp_module_pre_forward, tree_.root);
    for (toy::Layer<T> &layer : layers_) x = toy::forward(layer, x, 2);
    API(tpfsdp_module_post_forward, tree_.root);
    return x;
  }

  // As autograd reaches the hooks: the root's output is the last layer's, so where that is a unit its hook comes first.
  // A post-backward comes where the unit's input needs a gradient; the others are end_backward's.
  void backward(std::vector<T> dy) {
    if (layers_.back().module) API(tpfsdp_module_pre_backward, layers_.back().module);
    API(tpfsdp_module_pre_backward, tree_.root);
    for (size_t i = layers_.size(); i-- > 0;) {
      toy::Layer<T> &layer = layers_[i];
      if (layer.module && i + 1 < layers_.size()) API(tpfsdp_module_pre_backward, layer.module);
      dy = toy::backward(layer, dy, 2);
      const bool first_of_chain = i == 0;
      if (layer.module && !first_of_chain) API(tpfsdp_module_post_backward, layer.module);
      if (first_of_chain && input_requires_grad_) API(tpfsdp_module_post_backward, tree_.root);
    }
    API(tpfsdp_module_end_backward, tree_.root);
  }

  json gradient(tpfsdp_param *param) const {
    if (is_ignored(param)) return json(layers_[0].own_bias_grad);
    return api::has_grad(param) ? values(param, TPFSDP_FACE_GRAD) : json();
  }
  bool is_ignored(tpfsdp_param *param) const {
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, param, &info);
    return !info.is_sharded;
  }
  json values(tpfsdp_param *param, tpfsdp_face face) const {
    const tpfsdp_view view = api::face(param, face);
    return view.dtype == TPFSDP_DTYPE_I64 ? json(api::values_of<int64_t>(view)) : json(api::values_of<T>(view));
  }
  json local_shape(const std::string &name) const {
    for (const auto &[known, param] : params_) {
      if (known != name) continue;
      tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
      API(tpfsdp_param_get_shard_info, param, &info);
      return std::vector<int64_t>(info.local_shape, info.local_shape + info.ndim);
    }
    return json();
  }

  void step(int it) {
    for (auto &[name, param] : params_) {
      if (is_ignored(param)) {
        for (size_t i = 0; i < own_bias_.size(); ++i) own_bias_[i] -= layers_[0].own_bias_grad[i] / 8;
        continue;
      }
      if (!api::has_grad(param)) continue;
      const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD), grad = api::face(param, TPFSDP_FACE_GRAD);
      T *p = static_cast<T *>(shard.data);
      const T *g = static_cast<const T *>(grad.data);
      auto &m = moments_[name].first, &v = moments_[name].second;
      m.resize(static_cast<size_t>(api::count_of(shard)));
      v.resize(m.size());
      for (size_t i = 0; i < m.size(); ++i) {
        if (optimizer_ == Optimizer::kSgd) {
          p[i] -= g[i] / 8;
          continue;
        }
        const T lr = T{1} / 64, b1 = T{0.5}, b2 = T{0.75};
        p[i] -= lr * (T{1} / 16) * p[i];
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        const T denominator = std::sqrt(v[i]) / std::sqrt(1 - std::pow(b2, T(it + 1))) + T{1} / 1024;
        p[i] -= lr / (1 - std::pow(b1, T(it + 1))) * m[i] / denominator;
      }
    }
  }

  // Events of the ring as the lines of a golden.
  void append_events(std::vector<std::string> &log) {
    tpfsdp_counters counters = api::counters(context_);
    ASSERT_EQ(counters.events_lost, 0);
    for (int64_t i = 0; i < counters.event_count; ++i) {
      tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
      API(tpfsdp_trace_get_event, context_, i, &event);
      const std::string unit = event.unit, state = training_name(event.training_state);
      switch (event.kind) {
        case TPFSDP_EVENT_UNSHARD: log.push_back("U " + unit + " " + state); break;
        case TPFSDP_EVENT_WAIT_UNSHARD: log.push_back("W " + unit + " " + state); break;
        case TPFSDP_EVENT_RESHARD: log.push_back("R " + unit + " " + state + " -> SHARDED"); break;
        case TPFSDP_EVENT_POST_BACKWARD: log.push_back("P " + unit + " " + state); break;
        case TPFSDP_EVENT_REDUCE:
          log.push_back(std::string("RED ") + event.detail);
          reducing_ = event.detail;
          break;
        case TPFSDP_EVENT_COLLECTIVE:
          if (unit.empty()) break;  // of the start, before the first step
          if (std::string(event.operation) == "all_gather") log.push_back(gather_line(unit));
          if (std::string(event.operation) == "reduce_scatter") log.push_back(reduce_line());
          break;
        default: break;
      }
    }
  }

  int64_t padded(const json &param) const {
    const std::vector<int64_t> shape = param["shape"];
    return (shape[0] + world_ - 1) / world_ * world_ * (volume(shape) / shape[0]);
  }
  std::string gather_line(const std::string &unit) const {
    int64_t elements = 0, bytes = 0;
    std::set<std::string> dtypes;
    for (const json &p : golden_["params"]) {
      if (!belongs(p["name"], unit)) continue;
      dtypes.insert(p["dtype"]);
      elements += padded(p);
      bytes += padded(p) * (p["dtype"] == "f32" ? 4 : 8);
    }
    const bool mixed = dtypes.size() > 1;
    const int64_t out = mixed ? bytes : elements;
    return "AG " + (mixed ? "u8" : *dtypes.begin()) + " in=" + std::to_string(out / world_) +
           " out=" + std::to_string(out) + " ws=" + std::to_string(world_);
  }
  std::string reduce_line() const {
    int64_t elements = 0;
    for (const json &p : golden_["params"]) {
      if (("," + reducing_ + ",").find("," + std::string(p["name"]) + ",") != std::string::npos) elements += padded(p);
    }
    // PyTorch's rule for fp64: sums with scaling apart; ours averages in one op, and shows as its AVG for the others.
    const std::string op = sizeof(T) == 8 ? "SUM" : "AVG";
    return std::string("RS ") + (sizeof(T) == 8 ? "f64" : "f32") + " in=" + std::to_string(elements) +
           " out=" + std::to_string(elements / world_) + " ws=" + std::to_string(world_) + " op=" + op;
  }
  bool belongs(const std::string &param, const std::string &unit) const {
    for (const auto &[name, handle] : params_) {
      if (name != param || is_ignored(handle)) continue;
      tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
      API(tpfsdp_param_get_info, handle, &info);
      tpfsdp_unit_info of = TPFSDP_INIT(tpfsdp_unit_info);
      API(tpfsdp_unit_get_info, info.unit, &of);
      return of.name == unit;
    }
    return false;
  }

  void compare_parameters() {
    const std::string field = optimizer_ == Optimizer::kSgd ? "params_after_sgd" : "params_after_adamw";
    if (!golden_.contains(field)) {
      ASSERT_EQ(golden_["case"], "ignored_param");
      return;
    }
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree_.root, 1, nullptr, &scope);
    for (const auto &[name, param] : params_) near(values(param, TPFSDP_FACE_FULL), golden_[field][name], name);
    API(tpfsdp_scope_close, scope);
    tpfsdp_handle_release(scope);
  }

  void near(const json &got, const json &want, const std::string &what) const {
    if (want.is_array()) {
      ASSERT_EQ(got.size(), want.size()) << what;
      for (size_t i = 0; i < want.size(); ++i) near(got[i], want[i], what + "[" + std::to_string(i) + "]");
    } else if (want.is_null()) {
      EXPECT_TRUE(got.is_null()) << what;
    } else {
      ASSERT_TRUE(got.is_number()) << what;
      const double expected = want, tolerance = 2e-6 * std::max(1.0, std::abs(expected));
      EXPECT_NEAR(got.get<double>(), expected, tolerance) << what;
    }
  }

  const json &golden_;
  tpfsdp_context *context_;
  int rank_;
  int64_t world_;
  Optimizer optimizer_;
  api::Tree tree_;
  std::vector<std::pair<std::string, tpfsdp_param *>> params_;
  std::vector<toy::Layer<T>> layers_;
  std::vector<T> own_bias_;
  bool has_blocks_ = false;
  bool input_requires_grad_ = false;
  std::vector<T> output0_;
  std::vector<T> losses_;
  std::map<std::string, json> grads0_;
  std::map<std::string, std::pair<std::vector<T>, std::vector<T>>> moments_;
  std::vector<std::vector<std::string>> logs_;
  std::string reducing_;
};

class Golden : public testing::TestWithParam<const char *> {};

TEST_P(Golden, RunsAsInPyTorch) {
  const json golden = load(GetParam());
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.event_capacity = 1024;
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kAdamW}) {
    if (optimizer == Optimizer::kAdamW && !golden.contains("params_after_adamw")) continue;
    api::run_ranks(
        golden["world"],
        [&](tpfsdp_context *context, int32_t rank) {
          const auto go = [&](auto run) {
            run.steps();
            run.compare();
          };
          if (golden["params"][0]["dtype"] == "f64") {
            go(ToyRun<double>(golden, context, rank, optimizer));
          } else {
            go(ToyRun<float>(golden, context, rank, optimizer));
          }
        },
        options);
  }
}

INSTANTIATE_TEST_SUITE_P(FullyShard, Golden,
                         testing::Values("mlp2_even_w1", "mlp2_even_w2", "mlp2_even_w3", "mlp2_even_w4", "mlp2_f64_w2",
                                         "mlp2_f64_w3", "mlp2_onegroup_w1", "mlp2_onegroup_w2", "mlp2_onegroup_w3",
                                         "mlp2_onegroup_w4", "mlp2_uneven_small_w2", "mlp2_uneven_small_w3",
                                         "mlp2_uneven_small_w4", "mlp2_uneven_w2", "mlp2_uneven_w4", "raf_true_w2",
                                         "raf_true_w4", "raf_false_w2", "raf_false_w4", "raf_none_w2",
                                         "frozen_group_w2", "frozen_group_w4", "frozen_weight_w2", "frozen_weight_w4",
                                         "tied_weight_w2", "tied_weight_w3", "ignored_param_w2", "ignored_param_w4",
                                         "int_param_w2", "root_without_params_w2", "list_group_w2",
                                         "input_requires_grad_w2"),
                         [](const auto &golden) { return std::string(golden.param); });

TEST(Golden, TiedOverTwoUnitsIsRefused) {
  const json golden = load("tied_two_groups_error_w2");
  api::run_ranks(2, [&](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *l0 = tree.child(tree.root, "l0"), *l1 = tree.child(tree.root, "l1");
    tpfsdp_param *weight = tree.param(l0, "weight", TPFSDP_DTYPE_F32, {4, 4}, parameter_values<float>(0, 16));
    API(tpfsdp_module_register_parameter, l1, "weight", weight);
    tree.shard({l0});
    try {
      tree.shard({l1});
      FAIL() << "accepted, where PyTorch says: " << golden["error"]["text"];
    } catch (const api::Error &error) {
      EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(error.what()).find("l0.weight"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("shard both modules in one call"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
