// SPDX-License-Identifier: Apache-2.0
// Policies of dtypes: what is computed, reduced and kept in which one, by values that show where they were rounded, and
// how often shards are cast.
#include "support/chain.hpp"
#include "support/numbers.hpp"

#include <cstring>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::take_counters;
using chain::Values;
using testing::AllOf;

constexpr int32_t kWorld = 2;

Values numbers_of(const tpfsdp_view &view) {
  const numbers::Numbers values = numbers::read(view);
  return {values.begin(), values.end()};
}
void fill(const tpfsdp_view &view, float value) {
  numbers::write(view.dtype, view.data, numbers::Numbers(static_cast<size_t>(api::count_of(view)), value));
}

// One unit with one parameter of `rows` rows of two, under a policy.
struct Model {
  Model(tpfsdp_context *context, const Values &values, tpfsdp_dtype param_dtype, tpfsdp_dtype reduce_dtype = 0)
      : tree(context) {
    policy.param_dtype = param_dtype;
    policy.reduce_dtype = reduce_dtype;
    w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {static_cast<int64_t>(values.size()) / 2, 2}, values);
    options.mp_policy = &policy;
  }
  void shard() { tree.shard({tree.root}, TPFSDP_RESHARD_ALWAYS, options); }
  Values forward() {
    API(tpfsdp_module_pre_forward, tree.root);
    const Values full = numbers_of(api::face(w, TPFSDP_FACE_FULL));
    API(tpfsdp_module_post_forward, tree.root);
    return full;
  }
  void backward(float gradient) {
    API(tpfsdp_module_pre_backward, tree.root);
    tpfsdp_view buffer{};
    API(tpfsdp_param_get_grad_buffer, w, 0, &buffer);
    fill(buffer, gradient);
    API(tpfsdp_param_grad_ready, w);
    API(tpfsdp_module_post_backward, tree.root);
    API(tpfsdp_module_end_backward, tree.root);
  }
  Values gradient() const { return api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)); }
  Values shard_values() const { return api::values_of<float>(api::face(w, TPFSDP_FACE_SHARD)); }

  tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  api::Tree tree;
  tpfsdp_param *w;
};

// The full value is the shard's, rounded to even; the shard itself is not.
TEST(MixedPrecision, compute_dtype) {
  on_ranks(
      kWorld,
      [](tpfsdp_context *context, int32_t rank) {
        const float third = 1.0f / 3, tie = 1.00390625f;  // between 1 and 1.0078125
        Model model(context, {third, tie, -third, 257, 1, 2, 3, 4}, TPFSDP_DTYPE_BF16);
        model.shard();
        EXPECT_EQ(model.forward(), (Values{0.333984375f, 1, -0.333984375f, 256, 1, 2, 3, 4}));
        EXPECT_EQ(model.shard_values(), rank == 0 ? (Values{third, tie, -third, 257}) : (Values{1, 2, 3, 4}));
        EXPECT_EQ(api::face(model.w, TPFSDP_FACE_SHARD).dtype, TPFSDP_DTYPE_F32);
        model.backward(rank == 0 ? 256.0f : 1.0f);
        // Reduced in the parameter's own dtype: bf16 would give 128.
        EXPECT_EQ(model.gradient(), Values(4, 128.5f));
        EXPECT_EQ(api::face(model.w, TPFSDP_FACE_GRAD).dtype, TPFSDP_DTYPE_F32);
      },
      100);
}

TEST(MixedPrecision, reduce_dtype) {
  on_ranks(
      kWorld,
      [](tpfsdp_context *context, int32_t rank) {
        for (const tpfsdp_dtype computed : {TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32}) {
          Model model(context, Values(8, 1), computed, TPFSDP_DTYPE_BF16);
          model.shard();
          model.forward();
          API(tpfsdp_trace_clear, context);
          model.backward(rank == 0 ? 256.0f : 1.0f);
          EXPECT_EQ(model.gradient(), Values(4, 128)) << "128.5 rounds to even";
          int reductions = 0;
          for (int64_t i = 0; i < api::counters(context).event_count; ++i) {
            tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
            API(tpfsdp_trace_get_event, context, i, &event);
            if (event.kind != TPFSDP_EVENT_COLLECTIVE) continue;
            const bool reduces = event.operation == std::string("reduce_scatter");
            reductions += reduces;
            EXPECT_EQ(event.dtype, reduces ? TPFSDP_DTYPE_BF16 : computed);
          }
          EXPECT_EQ(reductions, 1);
        }
      },
      100);
}

// 256 + 1 + 1 is 258 in f32; in bf16 each 1 would be lost.
TEST(MixedPrecision, grad_acc_with_reduce_dtype) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    for (const tpfsdp_dtype reduced : {TPFSDP_DTYPE_F32, TPFSDP_DTYPE_BF16}) {
      Model model(context, Values(8, 1), TPFSDP_DTYPE_BF16, reduced);
      model.shard();
      for (const float gradient : {256.0f, 1.0f, 1.0f}) {
        API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.tree.root, 0, 1);
        model.forward();
        model.backward(gradient);
      }
      API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.tree.root, 1, 1);
      model.forward();
      model.backward(0);
      EXPECT_EQ(model.gradient(), Values(4, reduced == TPFSDP_DTYPE_F32 ? 258.0f : 256.0f));
      const int64_t element = reduced == TPFSDP_DTYPE_F32 ? 4 : 2;
      EXPECT_EQ(api::memory(model.tree.root).accumulator_bytes, 8 * element);
    }
  });
}

// 100 updates of 6e-4: a master in bf16 would stand still.
TEST(MixedPrecision, B040_SmallUpdatesAreNotLost) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context, Values(8, 1), TPFSDP_DTYPE_BF16);
    model.shard();
    Values full;
    for (int i = 0; i < 100; ++i) {
      full = model.forward();
      model.backward(1);
      const tpfsdp_view shard = api::face(model.w, TPFSDP_FACE_SHARD);
      for (int64_t j = 0; j < api::count_of(shard); ++j) static_cast<float *>(shard.data)[j] -= 6e-4f;
      API(tpfsdp_module_zero_grad, model.tree.root, 1);
    }
    EXPECT_NEAR(model.shard_values()[0], 0.94f, 1e-5f);
    EXPECT_EQ(model.forward(), Values(8, 0.94140625f));
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, model.w, &info);
    EXPECT_EQ(info.dtype, TPFSDP_DTYPE_F32);  // which of the two is active can be asked
    EXPECT_EQ(info.compute_dtype, TPFSDP_DTYPE_BF16);
    EXPECT_EQ(info.reduce_dtype, TPFSDP_DTYPE_F32);
  });
}

// A shard is cast when it has been written, not when it is gathered; into a slot that others share, each time.
TEST(MixedPrecision, ShardsAreCastOncePerWrite) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context, Values(8, 1), TPFSDP_DTYPE_BF16);
    model.shard();
    API(tpfsdp_root_prepare, model.tree.root);
    take_counters(context);
    const int64_t own = 4 * 2;  // bytes
    const int64_t gathers = api::unshard_mode_of_suite() == TPFSDP_UNSHARD_SHARED ? 4 : 1;
    for (int step = 0; step < 2; ++step) {
      for (int forward = 0; forward < 3; ++forward) model.forward();
      model.backward(1);
      const tpfsdp_counters counters = take_counters(context);
      EXPECT_EQ(counters.all_gathers, 4);
      EXPECT_EQ(counters.filled_bytes, gathers * own);
      EXPECT_EQ(counters.gathered_bytes, 4 * 16);
      EXPECT_EQ(counters.allocations + counters.copies, 0);
      API(tpfsdp_module_zero_grad, model.tree.root, 1);
    }
    API(tpfsdp_shards_begin_write, model.tree.root);
    const tpfsdp_view shard = api::face(model.w, TPFSDP_FACE_SHARD);
    std::fill_n(static_cast<float *>(shard.data), 4, 3.0f);
    API(tpfsdp_shards_end_write, model.tree.root);
    EXPECT_EQ(model.forward(), Values(8, 3));
    EXPECT_EQ(take_counters(context).filled_bytes, own);
  });
}

TEST(MixedPrecision, TheMemoryIsWhatTheFormulaSays) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    const tpfsdp_unshard_mode mode = api::unshard_mode_of_suite();
    Model model(context, Values(512, 1), TPFSDP_DTYPE_BF16);
    model.shard();
    API(tpfsdp_root_prepare, model.tree.root);
    const tpfsdp_memory_info memory = api::memory(model.tree.root);
    EXPECT_EQ(memory.shard_bytes, 1024);
    EXPECT_EQ(memory.grad_shard_bytes, 1024);
    EXPECT_EQ(memory.cast_bytes, mode == TPFSDP_UNSHARD_SHARED ? 0 : 512);
    EXPECT_EQ(memory.slot_bytes, mode == TPFSDP_UNSHARD_MAPPED ? 0 : mode == TPFSDP_UNSHARD_SHARED ? 512 : 1024);
    EXPECT_EQ(memory.grad_slot_bytes, 1024);
    for (int i = 0; i < 2; ++i) {
      model.forward();
      model.backward(1);
    }
    const tpfsdp_memory_info after = api::memory(model.tree.root);
    EXPECT_EQ(after.total_bytes, memory.shard_bytes + memory.cast_bytes + memory.grad_shard_bytes + memory.slot_bytes +
                                     memory.grad_slot_bytes);
    EXPECT_EQ(after.peak_bytes, after.planned_peak_bytes);
  });
}

// Never cast: integers go with the others as bytes.
TEST(MixedPrecision, non_float_params_mixed_precision) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, Values(8, 1.5f), TPFSDP_DTYPE_BF16);
    tpfsdp_param *table =
        model.tree.param<int64_t>(model.tree.root, "table", TPFSDP_DTYPE_I64, {3}, {5, -6, INT64_MAX}, false);
    model.shard();
    API(tpfsdp_root_prepare, model.tree.root);
    take_counters(context);
    API(tpfsdp_module_pre_forward, model.tree.root);
    EXPECT_EQ(numbers_of(api::face(model.w, TPFSDP_FACE_FULL)), Values(8, 1.5f));
    EXPECT_EQ(api::values_of<int64_t>(api::face(table, TPFSDP_FACE_FULL)), (std::vector<int64_t>{5, -6, INT64_MAX}));
    API(tpfsdp_module_post_forward, model.tree.root);
    const tpfsdp_counters gathered = take_counters(context);
    EXPECT_EQ(gathered.gathered_bytes, 8 * 2 + 3 * 8);
    const bool is_private = api::unshard_mode_of_suite() == TPFSDP_UNSHARD_AUTO;
    EXPECT_EQ(gathered.wire_bytes, !is_private ? 0 : rank == 0 ? 8 + 8 : 8 + 16);
    model.backward(1);
    EXPECT_EQ(take_counters(context).reduced_bytes, 8 * 2);
  });
}

// A shard that gets its first values after fully_shard is cast from them.
TEST(MixedPrecision, meta_device_1d_init) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, Values(8, 0), TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32);
    const std::vector<int64_t> shape{3, 2}, own{rank == 0 ? 2 : 1, 2};
    Values nowhere(6);
    tpfsdp_view meta = api::view(nowhere.data(), TPFSDP_DTYPE_F32, shape);
    meta.data = nullptr;
    meta.device_type = TPFSDP_DEVICE_META;
    tpfsdp_param *made = nullptr;
    API(tpfsdp_param_create, &meta, 1, &made);
    const api::Owned<tpfsdp_param> param(made);
    API(tpfsdp_module_register_parameter, model.tree.root, "later", made);
    model.shard();
    Values values(static_cast<size_t>(own[0] * 2), 257);
    const tpfsdp_view given = api::view(values.data(), TPFSDP_DTYPE_F32, own);
    tpfsdp_tensor *tensor = nullptr;
    API(tpfsdp_tensor_create_borrowed, &given, nullptr, &tensor);
    const api::Owned<tpfsdp_tensor> held(tensor);
    API(tpfsdp_param_set_tensor, made, tensor);
    API(tpfsdp_module_pre_forward, model.tree.root);
    EXPECT_EQ(numbers_of(api::face(made, TPFSDP_FACE_FULL)), Values(6, 256));
    API(tpfsdp_module_post_forward, model.tree.root);
  });
}

// Of a list, one member runs once more by itself: both runs' gradients count, in the dtype of the reduction.
TEST(MixedPrecision, partial_group_forward_then_standalone) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *const norm = tree.child(tree.root, "norm"), *const head = tree.child(tree.root, "head");
    tpfsdp_param *const w = tree.param(norm, "w", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tpfsdp_param *const h = tree.param(head, "h", TPFSDP_DTYPE_F32, {4}, Values(4, 1));
    tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
    policy.param_dtype = TPFSDP_DTYPE_BF16;
    policy.reduce_dtype = TPFSDP_DTYPE_F32;
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.mp_policy = &policy;
    tree.shard({norm, head}, TPFSDP_RESHARD_ALWAYS, options);
    tree.shard({tree.root});
    const auto give = [](tpfsdp_param *param, float value) {
      tpfsdp_view buffer{};
      API(tpfsdp_param_get_grad_buffer, param, 0, &buffer);
      fill(buffer, value);
      API(tpfsdp_param_grad_ready, param);
    };
    const auto run = [](tpfsdp_module *module) {
      API(tpfsdp_module_pre_forward, module);
      API(tpfsdp_module_post_forward, module);
    };
    API(tpfsdp_module_pre_forward, tree.root);
    run(norm);
    run(head);
    run(head);  // a second chunk
    API(tpfsdp_module_post_forward, tree.root);
    for (const float value : {256.0f, 1.0f}) {
      API(tpfsdp_module_pre_backward, head);
      give(h, value);
      if (value == 1) give(w, 2);
      API(tpfsdp_module_post_backward, head);
      if (value == 1) API(tpfsdp_module_post_backward, norm);
    }
    API(tpfsdp_module_end_backward, tree.root);
    EXPECT_EQ(api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)), Values(2, 2));
    EXPECT_EQ(api::values_of<float>(api::face(h, TPFSDP_FACE_GRAD)), Values(2, 256)) << "added in bf16 by one backward";
  });
}

// What the program is told: its activations are its own.
TEST(MixedPrecision, float16_on_one_submodule) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *inner = tree.child(tree.root, "inner");
    tree.param(inner, "w", TPFSDP_DTYPE_F32, {2}, Values(2, 1));
    tree.param(tree.root, "b", TPFSDP_DTYPE_F32, {2}, Values(2, 1));
    tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
    policy.param_dtype = TPFSDP_DTYPE_F16;
    policy.output_dtype = TPFSDP_DTYPE_F32;
    policy.cast_forward_inputs = TPFSDP_TOGGLE_OFF;
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.mp_policy = &policy;
    tree.shard({inner}, TPFSDP_RESHARD_AUTO, options);
    policy.cast_forward_inputs = TPFSDP_TOGGLE_DEFAULT;
    policy.output_dtype = 0;
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
    const auto info_of = [](tpfsdp_module *module) {
      tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
      API(tpfsdp_fsdp_module_get_info, module, &info);
      return info;
    };
    EXPECT_EQ(info_of(inner).input_dtype, 0);
    EXPECT_EQ(info_of(inner).output_dtype, TPFSDP_DTYPE_F32);
    EXPECT_EQ(info_of(tree.root).input_dtype, TPFSDP_DTYPE_F16);
    EXPECT_EQ(info_of(tree.root).output_dtype, 0);
    EXPECT_EQ(api::unit_info(inner).param_dtype, TPFSDP_DTYPE_F16);
    EXPECT_EQ(api::unit_info(inner).reduce_dtype, 0);
  });
}

// A policy is copied, and one that asks for the parameter's own dtypes costs nothing.
TEST(MixedPrecision, clamp_reduce_dtype) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    Model model(context, Values(8, 1), TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32);
    const tpfsdp_mixed_precision_policy before = model.policy;
    model.shard();
    EXPECT_EQ(std::memcmp(&before, &model.policy, sizeof before), 0);
    model.policy.param_dtype = TPFSDP_DTYPE_F64;  // comes too late
    API(tpfsdp_root_prepare, model.tree.root);
    take_counters(context);
    EXPECT_EQ(model.forward(), Values(8, 1));
    model.backward(1);
    EXPECT_EQ(api::memory(model.tree.root).cast_bytes, 0);
    if (api::unshard_mode_of_suite() != TPFSDP_UNSHARD_SHARED) {
      EXPECT_EQ(take_counters(context).filled_bytes, 0);
    }
  });
}

TEST(MixedPrecision, WrongPoliciesAreRefused) {
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    const auto refused = [&](tpfsdp_dtype param_dtype, tpfsdp_dtype reduce_dtype, const char *part) {
      Model model(context, Values(8, 1), param_dtype, reduce_dtype);
      const api::Error error = caught([&] { model.shard(); });
      EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(), HasSubstr(part));
      model.policy.param_dtype = model.policy.reduce_dtype = 0;
      model.shard();  // nothing has changed
      EXPECT_EQ(model.forward(), Values(8, 1));
    };
    refused(TPFSDP_DTYPE_I32, 0, "mp_policy.param_dtype is i32");
    refused(0, TPFSDP_DTYPE_U8, "mp_policy.reduce_dtype is u8");
    refused(4711, 0, "mp_policy.param_dtype");
  });
}

TEST(MixedPrecision, RanksWithOtherPoliciesAreTold) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t rank) {
    Model model(context, Values(8, 1), rank == 0 ? TPFSDP_DTYPE_BF16 : TPFSDP_DTYPE_F16);
    model.options.unshard_mode = TPFSDP_UNSHARD_PRIVATE;
    model.shard();
    const api::Error error = caught([&] { model.forward(); });
    EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("parameter w"), HasSubstr("computed in bf16"), HasSubstr("computed in f16")));
  });
}

// Full values in the host's own memory are cast into it.
TEST(MixedPrecision, HostMemoryIsOfTheComputeDtype) {
  on_ranks(kWorld, [](tpfsdp_context *context, int32_t) {
    struct Host {
      std::vector<uint16_t> memory = std::vector<uint16_t>(8);
      int64_t asked = 0;
    } host;
    tpfsdp_memory_callback callback{};
    callback.user = &host;
    callback.call = [](void *user, const tpfsdp_memory_args *args) -> tpfsdp_status {
      auto &mine = *static_cast<Host *>(user);
      mine.asked = args->size_bytes;
      if (args->op == TPFSDP_MEMORY_ACQUIRE) *args->data = mine.memory.data();
      return TPFSDP_OK;
    };
    Model model(context, Values(8, 257), TPFSDP_DTYPE_BF16);
    model.options.host_memory = &callback;
    model.shard();
    EXPECT_EQ(model.forward(), Values(8, 256));
    EXPECT_EQ(host.asked, 16);
    EXPECT_EQ(host.memory[7], 0x4380) << "256";
  });
}

// Casts of shards that only a spare slot needed go with it; a unit without elements never had any.
TEST(MixedPrecision, ANewPlanHasNoCastsOfSpareSlots) {
  for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
    on_ranks(kWorld, [&](tpfsdp_context *context, int32_t) {
      api::Tree tree(context);
      tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
      policy.param_dtype = TPFSDP_DTYPE_BF16;
      tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
      options.mp_policy = &policy;
      options.unshard_mode = mode;
      std::vector<tpfsdp_param *> weights;
      for (int i = 0; i < 3; ++i) {
        tpfsdp_module *const block = tree.child(tree.root, "b" + std::to_string(i));
        weights.push_back(tree.param(block, "w", TPFSDP_DTYPE_F32, {8}, Values(8, 257)));
        tree.shard({block}, TPFSDP_RESHARD_ALWAYS, options);
      }
      tree.param(tree.root, "none", TPFSDP_DTYPE_F32, {0, 3}, Values());
      tree.shard({tree.root}, TPFSDP_RESHARD_ALWAYS, options);
      API(tpfsdp_root_prepare, tree.root);
      take_counters(context);
      API(tpfsdp_module_pre_forward, tree.root);
      API(tpfsdp_module_post_forward, tree.root);
      EXPECT_EQ(take_counters(context).allocations, 0) << "nothing to cast";
      API(tpfsdp_fsdp_module_reset_iter_state, tree.root);
      tpfsdp_scope *scope = nullptr;
      API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
      for (tpfsdp_param *weight : weights) EXPECT_EQ(numbers_of(api::face(weight, TPFSDP_FACE_FULL)), Values(8, 256));
      API(tpfsdp_scope_close, scope);
      tpfsdp_handle_release(scope);
      const tpfsdp_memory_info before = api::memory(tree.root);
      EXPECT_EQ(before.spare_slot_count > 0, mode != TPFSDP_UNSHARD_MAPPED);
      API(tpfsdp_param_set_requires_grad, weights[0], 0);
      API(tpfsdp_root_prepare, tree.root);
      const tpfsdp_memory_info after = api::memory(tree.root);
      EXPECT_EQ(after.spare_slot_count, 0);
      EXPECT_EQ(after.total_bytes, after.planned_peak_bytes);
      if (mode == TPFSDP_UNSHARD_SHARED) {
        EXPECT_GT(before.cast_bytes, 0);
        EXPECT_EQ(after.cast_bytes, 0);
      }
    });
  }
}

}  // namespace
