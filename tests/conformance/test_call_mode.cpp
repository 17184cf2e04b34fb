// SPDX-License-Identifier: Apache-2.0
// The library calls the host: the same bits as manual mode, hooks that see full parameters, failures that reach every
// rank with their reason.
#include "support/chain.hpp"

#include <map>

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;

using Function = std::function<tpfsdp_status(const tpfsdp_module_args &)>;

tpfsdp_module_callback callback_of(Function function) {
  return {[](void *user, const tpfsdp_module_args *args) { return (*static_cast<Function *>(user))(*args); },
          new Function(std::move(function)), [](void *user) { delete static_cast<Function *>(user); }};
}

void set_method(tpfsdp_module *module, const char *name, Function function) {
  const tpfsdp_module_callback callback = callback_of(std::move(function));
  API(tpfsdp_module_set_method, module, name, &callback);
}

void add_hook(tpfsdp_module *module, tpfsdp_hook_kind kind, Function function) {
  const tpfsdp_module_callback callback = callback_of(std::move(function));
  API(tpfsdp_module_register_hook, module, kind, &callback, nullptr, nullptr);
}

tpfsdp_status status_of(const std::function<void()> &body) {
  try {
    body();
    return TPFSDP_OK;
  } catch (const api::Error &error) {
    return error.status;
  }
}

// The chain, whose forward and backward are methods; what flows is the payload.
class CalledChain : public Chain {
 public:
  CalledChain(tpfsdp_context *context, int32_t rank, const chain::Shape &shape = {}) : Chain(context, rank, shape) {
    set_method(root(), "forward", [this](const auto &args) {
      return status_of([&] {
        auto &x = *static_cast<Values *>(args.payload);
        x = toy::forward(layers[0], x, 2);
        for (size_t i = 1; i < layers.size(); ++i) API(tpfsdp_module_call, layers[i].module, &x);
      });
    });
    set_method(root(), "backward", [this](const auto &args) {
      return status_of([&] {
        auto &dy = *static_cast<Values *>(args.payload);
        for (size_t i = layers.size(); i-- > 1;) API(tpfsdp_module_backward, layers[i].module, &dy);
        dy = toy::backward(layers[0], dy, 2);
      });
    });
    for (size_t i = 1; i < layers.size(); ++i) {
      set_method(layers[i].module, "forward", [this, i](const auto &args) {
        auto &x = *static_cast<Values *>(args.payload);
        return status_of([&] { x = without_hooks(i, [&](auto &layer) { return toy::forward(layer, x, 2); }); });
      });
      set_method(layers[i].module, "backward", [this, i](const auto &args) {
        auto &dy = *static_cast<Values *>(args.payload);
        return status_of([&] { dy = without_hooks(i, [&](auto &layer) { return toy::backward(layer, dy, 2); }); });
      });
    }
  }

  Values call_forward(int iteration, int32_t rank) {
    Values x(10);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((3 * rank + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
    API(tpfsdp_module_call, root(), &x);
    return x;
  }
  void call_step(int iteration, int32_t rank) {
    Values y = call_forward(iteration, rank);
    API(tpfsdp_module_backward, root(), &y);
    sgd();
  }

 private:
  template <class Body>
  Values without_hooks(size_t index, Body &&body) {
    toy::Layer<float> &layer = layers[index];
    tpfsdp_module *const module = std::exchange(layer.module, nullptr);
    const Values out = body(layer);
    layer.module = module;
    return out;
  }
};

TEST(CallMode, EqualsManualModeToTheBit) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    for (int i = 0; i < 3; ++i) {
      model.call_step(i, rank);
      model.expect_idle();
    }
    const Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 3));
}

TEST(CallMode, HooksSeeFullParametersAndUnreducedGradients) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    std::map<int32_t, int> ran;
    for (const tpfsdp_hook_kind kind :
         {TPFSDP_HOOK_FORWARD_PRE, TPFSDP_HOOK_FORWARD, TPFSDP_HOOK_BACKWARD_PRE, TPFSDP_HOOK_BACKWARD}) {
      add_hook(model.block(1), kind, [&, kind](const tpfsdp_module_args &args) {
        ++ran[kind];
        EXPECT_EQ(args.module, model.block(1));
        EXPECT_NE(args.payload, nullptr);
        EXPECT_EQ(args.failed, 0);
        EXPECT_EQ(api::face(model.weight(2), TPFSDP_FACE_FULL).size_bytes, 100);
        if (kind == TPFSDP_HOOK_BACKWARD) {
          // The gradient of this backward: doubled here, before it is reduced.
          tpfsdp_view grad{};
          API(tpfsdp_param_get_grad_buffer, model.weight(2), 1, &grad);
          for (int64_t i = 0; i < api::count_of(grad); ++i) static_cast<float *>(grad.data)[i] *= 2;
          API(tpfsdp_param_grad_ready, model.weight(2));
        }
        return TPFSDP_OK;
      });
    }
    Chain plain(context, rank);
    plain.backward(plain.forward(0));
    plain.end();
    Values y = model.call_forward(0, rank);
    API(tpfsdp_module_backward, model.root(), &y);
    const Values doubled = api::values_of<float>(api::face(model.weight(2), TPFSDP_FACE_GRAD));
    const Values once = api::values_of<float>(api::face(plain.weight(2), TPFSDP_FACE_GRAD));
    ASSERT_EQ(doubled.size(), once.size());
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(doubled[i], 2 * once[i]);
    EXPECT_EQ(ran, (std::map<int32_t, int>{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
  });
}

// Manual mode with forms that do not wait: of one backward each hook runs once.
TEST(CallMode, HooksOfManualModeRunOnce) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 1});
    int before = 0, after = 0;
    add_hook(model.block(0), TPFSDP_HOOK_BACKWARD_PRE, [&](const auto &) { return ++before, TPFSDP_OK; });
    add_hook(model.block(0), TPFSDP_HOOK_BACKWARD, [&](const auto &) { return ++after, TPFSDP_OK; });
    for (int step = 1; step <= 2; ++step) {
      const Values y = model.forward(step);
      API(tpfsdp_module_pre_backward, model.root());
      while (API(tpfsdp_module_try_pre_backward, model.block(0)) == TPFSDP_PENDING) {
      }
      API(tpfsdp_module_pre_backward, model.block(0));  // a second output
      while (API(tpfsdp_module_try_post_backward, model.block(0)) == TPFSDP_PENDING) {
      }
      model.end();
      EXPECT_EQ(before, step);
      EXPECT_EQ(after, step);
    }
  });
}

TEST(CallMode, AFailureInsideAMethodReachesEveryRankWithItsReason) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    model.call_step(0, rank);
    bool fails = true;
    add_hook(model.block(1), TPFSDP_HOOK_BACKWARD_PRE,
             [&](const auto &) { return rank == 1 && fails ? -77 : TPFSDP_OK; });
    const api::Error error = caught([&] { model.call_step(1, rank); });
    if (rank == 1) {
      EXPECT_EQ(error.status, TPFSDP_ERR_CALLBACK);
      EXPECT_THAT(error.what(), HasSubstr("method \"backward\" of module \"\""));
      EXPECT_THAT(error.what(), HasSubstr("backward pre-hook of module \"b1\" failed with status -77"));
    } else {
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);  // also where it came up through a method
      EXPECT_EQ(error.rank, 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("-77"));
    }
    API(tpfsdp_fsdp_module_reset_iter_state, model.root());
    API(tpfsdp_module_zero_grad, model.root(), 1);
    fails = false;
    for (int i = 1; i < 3; ++i) model.call_step(i, rank);
    const Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 3));
}

// The failure of the last call inside a method is the cause of the method's.
TEST(CallMode, AFailureCarriesItsCause) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    add_hook(model.block(0), TPFSDP_HOOK_FORWARD, [](const auto &) { return -5; });
    Values x(10);
    tpfsdp_error *error = nullptr;
    EXPECT_EQ(tpfsdp_module_call(model.root(), &x, &error), TPFSDP_ERR_CALLBACK);
    const api::Owned<tpfsdp_error> held(error);
    tpfsdp_error *const cause = tpfsdp_error_get_cause(error);
    EXPECT_STREQ(tpfsdp_error_message(cause), "forward hook of module \"b0\" failed with status -5");
    tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
    EXPECT_EQ(tpfsdp_error_get_info(error, &info), TPFSDP_OK);
    EXPECT_EQ(info.backend_code, -5);  // the method handed the failure on
    set_method(model.root(), "forward", [&](const auto &args) {
      return tpfsdp_module_call(model.block(0), args.payload, nullptr) < 0 ? -9 : TPFSDP_OK;
    });
    API(tpfsdp_fsdp_module_reset_iter_state, model.root());
    const api::Error other = caught([&] { API(tpfsdp_module_call, model.root(), &x); });
    EXPECT_EQ(other.status, TPFSDP_ERR_CALLBACK);
    EXPECT_STREQ(other.what(),
                 "method \"forward\" of module \"\" failed with status -9: forward hook of module \"b0\" failed with "
                 "status -5");
  });
}

TEST(CallMode, register_fsdp_forward_method) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank, {.reshard = TPFSDP_RESHARD_ALWAYS, .root_reshard = TPFSDP_RESHARD_ALWAYS});
    int hooks = 0;
    add_hook(model.block(0), TPFSDP_HOOK_FORWARD_PRE, [&](const auto &args) {
      EXPECT_STREQ(args.method, "encode");
      return ++hooks, TPFSDP_OK;
    });
    API(tpfsdp_root_prepare, model.root());
    bool is_full = false;
    set_method(model.block(0), "encode", [&](const auto &) {
      is_full = api::unit_info(model.block(0)).sharded_state == TPFSDP_SHARDED_UNSHARDED;
      return TPFSDP_OK;
    });
    API(tpfsdp_module_call_method, model.block(0), "encode", nullptr);
    EXPECT_FALSE(is_full);
    EXPECT_EQ(hooks, 0);
    API(tpfsdp_fully_shard_register_forward_method, model.block(0), "encode");
    take_counters(context);
    API(tpfsdp_module_call_method, model.block(0), "encode", nullptr);
    EXPECT_TRUE(is_full);
    EXPECT_EQ(hooks, 1);
    EXPECT_EQ(take_counters(context).all_gathers, 1);
    EXPECT_EQ(api::unit_info(model.block(0)).sharded_state, TPFSDP_SHARDED_SHARDED);
    const api::Error error = caught([&] { API(tpfsdp_fully_shard_register_forward_method, model.block(0), "decode"); });
    EXPECT_EQ(error.status, TPFSDP_ERR_NOT_FOUND);
    api::Tree plain(context);
    API(tpfsdp_fully_shard_register_forward_method, plain.root, "anything");  // not sharded: no effect
  });
}

// Two trees below a module that is not sharded: its backward ends both.
TEST(CallMode, AnOutermostModuleThatIsNotShardedEndsEveryTreeBelow) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    api::Tree tree(context);
    std::vector<tpfsdp_module *> parts;
    std::vector<tpfsdp_param *> params;
    for (const char *name : {"a", "b", "unused"}) {
      tpfsdp_module *const part = tree.child(tree.root, name);
      params.push_back(tree.param<float>(part, "w", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4}));
      tree.shard({part});
      parts.push_back(part);
    }
    for (size_t i = 0; i < 2; ++i) {
      set_method(parts[i], "forward", [](const auto &) { return TPFSDP_OK; });
      set_method(parts[i], "backward", [&params, i, rank](const auto &) {
        return status_of([&] {
          tpfsdp_view grad{};
          API(tpfsdp_param_get_grad_buffer, params[i], 0, &grad);
          std::fill_n(static_cast<float *>(grad.data), 4, static_cast<float>(rank + 1));
          API(tpfsdp_param_grad_ready, params[i]);
        });
      });
    }
    set_method(tree.root, "forward", [&](const auto &) {
      return status_of([&] {
        for (size_t i = 0; i < 2; ++i) API(tpfsdp_module_call, parts[i], nullptr);
      });
    });
    set_method(tree.root, "backward", [&](const auto &) {
      return status_of([&] {
        for (size_t i = 2; i-- > 0;) API(tpfsdp_module_backward, parts[i], nullptr);
      });
    });
    API(tpfsdp_module_call, tree.root, nullptr);
    API(tpfsdp_module_backward, tree.root, nullptr);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(static_cast<const float *>(api::face(params[i], TPFSDP_FACE_GRAD).data)[0], 1.5F);
    EXPECT_FALSE(api::has_grad(params[2]));
  });
}

TEST(CallMode, WithoutGradientsTheRootFreesItsParametersToo) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    API(tpfsdp_module_set_grad_enabled, model.root(), 0);
    model.call_forward(0, rank);
    model.expect_idle();
  });
}

TEST(CallMode, AHookMayAddAndRemoveHooks) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    CalledChain model(context, rank);
    int added = 0;
    tpfsdp_hook *self = nullptr;
    const tpfsdp_module_callback callback = callback_of([&](const tpfsdp_module_args &args) {
      add_hook(args.module, TPFSDP_HOOK_FORWARD_PRE, [&](const auto &) { return ++added, TPFSDP_OK; });
      return tpfsdp_hook_remove(self, nullptr);
    });
    API(tpfsdp_module_register_hook, model.root(), TPFSDP_HOOK_FORWARD_PRE, &callback, nullptr, &self);
    const api::Owned<tpfsdp_hook> held(self);
    model.call_forward(0, rank);
    EXPECT_EQ(added, 0);
    model.call_forward(1, rank);
    model.call_forward(2, rank);
    EXPECT_EQ(added, 2);
  });
}

}  // namespace
