// SPDX-License-Identifier: Apache-2.0
// A chain of linear layers under a root, for tests of the sharding engine: the root owns the first layer, each further
// one is a block with a unit of its own. Ranks have different inputs; every step is exact and can be run again.
#pragma once

#include "support/shared.hpp"
#include "support/toy_host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace chain {

using shared::Meeting;
using shared::Shared;
using shared::SharedText;
using shared::SharedValues;
using testing::HasSubstr;
using Values = std::vector<float>;

// A wait that should never last ends here, as an error that fails the test.
constexpr int32_t kPatienceMs = 20000;

inline tpfsdp_context_options options(int32_t events = 0) {
  tpfsdp_context_options out = TPFSDP_INIT(tpfsdp_context_options);
  out.arrival_timeout_ms = kPatienceMs;
  out.event_capacity = events;
  return out;
}

inline void on_ranks(int32_t world, const std::function<void(tpfsdp_context *, int32_t)> &body, int32_t events = 0) {
  api::run_ranks(world, body, options(events));
}

// What a call fails with; a failure of the test if it does not.
template <class Call>
api::Error caught(Call &&call) {
  try {
    call();
  } catch (const api::Error &error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return api::Error(TPFSDP_OK, -1, "");
}

// Cancels every wait of its rank while it is on.
class Interrupt {
 public:
  explicit Interrupt(tpfsdp_context *context) : context_(context) {
    tpfsdp_interrupt_callback callback{};
    callback.user = this;
    callback.call = [](void *user, const tpfsdp_interrupt_args *args) -> tpfsdp_status {
      auto &self = *static_cast<Interrupt *>(user);
      self.operation = args->operation;
      return self.is_on ? -1 : TPFSDP_OK;
    };
    API(tpfsdp_context_set_interrupt, context, &callback);
  }
  Interrupt(const Interrupt &) = delete;
  Interrupt &operator=(const Interrupt &) = delete;
  ~Interrupt() { EXPECT_EQ(tpfsdp_context_set_interrupt(context_, nullptr, nullptr), TPFSDP_OK); }

  bool is_on = true;
  std::string operation;

 private:
  tpfsdp_context *context_;
};

inline Values weight_values(int64_t layer, int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((7 * layer + 5 * i + i / 3) % 17 - 8) / 16);
  return values;
}

struct Shape {
  int64_t blocks = 3;
  int64_t width = 5;
  tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO;
  tpfsdp_reshard_kind root_reshard = TPFSDP_RESHARD_AUTO;
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  tpfsdp_mesh *mesh = nullptr;        // of the root
  tpfsdp_mesh *block_mesh = nullptr;  // of the blocks
  bool is_sharded = true;
};

class Chain {
 public:
  Chain(tpfsdp_context *context, int32_t rank, const Shape &shape = {}) : shape_(shape), rank_(rank), tree(context) {
    for (int64_t i = 0; i <= shape.blocks; ++i) {
      toy::Layer<float> layer;
      layer.name = i == 0 ? "in" : "b" + std::to_string(i - 1);
      layer.in = layer.out = shape.width;
      layer.relu = layer.residual = i > 0;
      tpfsdp_module *module = tree.child(tree.root, layer.name);
      layer.weight = tree.param(module, "weight", TPFSDP_DTYPE_F32, {layer.out, layer.in},
                                weight_values(2 * i, layer.out * layer.in));
      layer.bias = tree.param(module, "bias", TPFSDP_DTYPE_F32, {layer.out}, weight_values(2 * i + 1, layer.out));
      if (i > 0) layer.module = module;
      layers.push_back(layer);
    }
    if (!shape.is_sharded) return;
    for (size_t i = 1; i < layers.size(); ++i)
      tree.shard({layers[i].module}, shape.reshard, shape.options, shape.block_mesh);
    tree.shard({tree.root}, shape.root_reshard, shape.options, shape.mesh);
  }

  tpfsdp_module *root() const { return tree.root; }
  tpfsdp_module *block(size_t i) const { return layers.at(i + 1).module; }
  tpfsdp_param *weight(size_t layer) const { return layers.at(layer).weight; }

  // Called with "forward b1" before that block's pre_forward, "in forward b1" when it is full, "backward b1",
  // "in backward b1", "end": may throw, or call the library.
  std::function<void(const std::string &)> at = [](const std::string &) {};

  Values forward(int iteration) {
    Values x(static_cast<size_t>(2 * shape_.width));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((3 * rank_ + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
    API(tpfsdp_module_pre_forward, root());
    for (toy::Layer<float> &layer : layers) {
      if (layer.module) {
        at("forward " + layer.name);
        API(tpfsdp_module_pre_forward, layer.module);
        at("in forward " + layer.name);
      }
      toy::Layer<float> plain = layer;
      plain.module = nullptr;  // its hooks are called here
      x = toy::forward(plain, x, 2);
      plain.module = layer.module;
      layer = plain;
      if (layer.module) API(tpfsdp_module_post_forward, layer.module);
    }
    API(tpfsdp_module_post_forward, root());
    return x;
  }

  // Of the loss sum(y * y) / 2, without the end.
  void backward(Values dy) {
    API(tpfsdp_module_pre_backward, root());
    for (size_t i = layers.size(); i-- > 0;) {
      toy::Layer<float> &layer = layers[i];
      if (layer.module) {
        at("backward " + layer.name);
        API(tpfsdp_module_pre_backward, layer.module);
        at("in backward " + layer.name);
      }
      dy = toy::backward(layer, dy, 2);
      if (layer.module) API(tpfsdp_module_post_backward, layer.module);
    }
    at("end");
  }

  void end() { API(tpfsdp_module_end_backward, root()); }

  void sgd() {
    for (toy::Layer<float> &layer : layers) {
      for (tpfsdp_param *param : {layer.weight, layer.bias}) {
        if (!api::has_grad(param)) continue;
        const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD), grad = api::face(param, TPFSDP_FACE_GRAD);
        for (int64_t i = 0; i < api::count_of(shard); ++i)
          static_cast<float *>(shard.data)[i] -= static_cast<const float *>(grad.data)[i] / 64;
      }
    }
    API(tpfsdp_module_zero_grad, root(), 1);
  }

  void step(int iteration) {
    backward(forward(iteration));
    end();
    sgd();
  }
  void reset() { API(tpfsdp_fsdp_module_reset_iter_state, root()); }

  // All parameters, whole, as the next gather gives them.
  Values full() {
    Values all;
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
    const api::Owned<tpfsdp_scope> held(scope);
    for (const toy::Layer<float> &layer : layers) {
      for (tpfsdp_param *param : {layer.weight, layer.bias}) {
        const Values values = api::values_of<float>(api::face(param, TPFSDP_FACE_FULL));
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    API(tpfsdp_scope_close, scope);
    return all;
  }

  // Nothing full, nothing in use.
  void expect_idle() const {
    for (const toy::Layer<float> &layer : layers) {
      tpfsdp_module *module = layer.module ? layer.module : root();
      EXPECT_EQ(api::unit_info(module).sharded_state, TPFSDP_SHARDED_SHARDED) << layer.name;
      EXPECT_EQ(api::unit_info(module).training_state, TPFSDP_TRAINING_IDLE) << layer.name;
    }
  }

 private:
  Shape shape_;
  int32_t rank_;

 public:
  api::Tree tree;
  std::vector<toy::Layer<float>> layers;
};

// What happened since the last call, one line an event: "UNSHARD b0", "all_gather b0", "REDUCE b0.weight,b0.bias", ...
inline std::vector<std::string> take_events(tpfsdp_context *context) {
  constexpr const char *kNames[] = {"", "UNSHARD", "RESHARD", "POST_BACKWARD", "REDUCE",
                                    "", "",        "WRITE",   "MARK",          "FULL"};
  std::vector<std::string> lines;
  const tpfsdp_counters counters = api::counters(context);
  EXPECT_EQ(counters.events_lost, 0);
  for (int64_t i = 0; i < counters.event_count; ++i) {
    tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
    API(tpfsdp_trace_get_event, context, i, &event);
    const std::string unit = event.unit, operation = event.operation;
    if (event.kind == TPFSDP_EVENT_COLLECTIVE || event.kind == TPFSDP_EVENT_HOOK) {
      lines.push_back(unit.empty() ? operation : operation + " " + unit);
    } else {
      lines.push_back(std::string(kNames[event.kind]) + " " + unit + operation + event.detail);
    }
  }
  API(tpfsdp_trace_clear, context);
  return lines;
}

inline int64_t count_lines(const std::vector<std::string> &lines, const std::string &start) {
  return std::count_if(lines.begin(), lines.end(), [&](const auto &line) { return line.rfind(start, 0) == 0; });
}

// The sums since the last call.
inline tpfsdp_counters take_counters(tpfsdp_context *context) {
  tpfsdp_counters out = TPFSDP_INIT(tpfsdp_counters);
  API(tpfsdp_trace_get_counters, context, 1, &out);
  return out;
}

// Parameters after `steps` clean steps: what a run with a repaired failure must come to, bit for bit.
inline Values clean_run(int32_t world, int steps, const Shape &shape = {}) {
  SharedValues out;
  on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape);
    for (int i = 0; i < steps; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) out = full;
  });
  return out.get();
}

}  // namespace chain
