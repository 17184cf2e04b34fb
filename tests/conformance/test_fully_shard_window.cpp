// SPDX-License-Identifier: Apache-2.0
// When shards may be written, who sees it, and what a write does to values that are full already.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;

int64_t version(tpfsdp_module *module) { return api::unit_info(module).version; }

Values gathered(chain::Chain &model, size_t layer) {
  tpfsdp_module *module = model.layers[layer].module;
  tpfsdp_scope *scope = nullptr;
  API(tpfsdp_scope_open, &module, 1, nullptr, &scope);
  const api::Owned<tpfsdp_scope> held(scope);
  return api::values_of<float>(api::face(model.weight(layer), TPFSDP_FACE_FULL));
}

void fill_shard(tpfsdp_param *param, float value) {
  const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD);
  std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), value);
}

// Rows of rank 0 (three of five) and of rank 1.
Values rows(float first, float second) {
  Values values(15, first);
  values.insert(values.end(), 10, second);
  return values;
}

TEST(Window, ItIsOpenBeforeTheFirstGatherAndOpensAtTheEndOfEachBackward) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    fill_shard(model.weight(1), static_cast<float>(rank + 1));
    EXPECT_EQ(version(model.block(0)), 0);
    API(tpfsdp_root_prepare, model.root());
    EXPECT_EQ(version(model.block(0)), 0);
    EXPECT_EQ(gathered(model, 1), rows(1, 2));
    EXPECT_EQ(version(model.block(0)), 1);
    model.backward(model.forward(0));
    model.end();
    EXPECT_EQ(version(model.block(0)), 1);
    fill_shard(model.weight(1), static_cast<float>(rank + 3));
    EXPECT_EQ(gathered(model, 1), rows(3, 4));
    EXPECT_EQ(version(model.block(0)), 2);
    EXPECT_EQ(version(model.root()), 2);
  });
}

TEST(Window, ExplicitWritesAreSeenByTheNextGather) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    model.step(0);
    model.full();
    for (int round = 0; round < 3; ++round) {
      const int64_t before = version(model.block(0));
      API(tpfsdp_shards_begin_write, model.root());
      fill_shard(model.weight(1), static_cast<float>(10 * round + rank));
      API(tpfsdp_shards_end_write, model.root());
      EXPECT_EQ(version(model.block(0)), before + 1);
      EXPECT_EQ(gathered(model, 1), rows(static_cast<float>(10 * round), static_cast<float>(10 * round + 1)));
      EXPECT_EQ(version(model.block(0)), before + 1);  // nothing was open any more
    }
  });
}

TEST(Window, AnExplicitOneTakesOverWhatIsOpen) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    model.backward(model.forward(0));
    model.end();
    const int64_t before = version(model.root());
    API(tpfsdp_shards_begin_write, model.root());
    API(tpfsdp_shards_end_write, model.root());
    EXPECT_EQ(version(model.root()), before + 1);
    // Closed now, so the gather does not count it again.
    model.full();
    EXPECT_EQ(version(model.root()), before + 1);
  });
}

TEST(Window, WrongMomentsAreRefused) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .options = api::privately()});
    model.step(0);
    const auto refused = [](const std::function<void()> &call, const char *part) {
      const api::Error error = caught(call);
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    };
    const auto begin = [&] { API(tpfsdp_shards_begin_write, model.root()); };
    const auto end = [&] { API(tpfsdp_shards_end_write, model.root()); };
    refused(end, "no write window is open");
    begin();
    refused(begin, "open already");
    refused([&] { model.reset(); }, "end_write first");
    end();
    refused([&] { API(tpfsdp_shards_begin_write, model.block(0)); }, "the root is");
    API(tpfsdp_module_pre_forward, model.root());
    refused(begin, "a forward of this tree has not ended");
    API(tpfsdp_module_post_forward, model.root());
    begin();  // between forward and backward no peer reads
    end();
    API(tpfsdp_module_pre_backward, model.root());
    refused(begin, "a backward of this tree has not ended");
    model.end();
    begin();
    end();
  });
}

// Inside a step a peer may be reading: the write must not happen, and the step must be none the worse.
TEST(Window, InsideAStepItDoesNotOpen) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    int refused = 0;
    model.at = [&](const std::string &) {
      const tpfsdp_status status = tpfsdp_shards_begin_write(model.root(), nullptr);
      EXPECT_EQ(status, TPFSDP_ERR_STATE);
      if (status == TPFSDP_ERR_STATE) ++refused;
      if (status == TPFSDP_OK) API(tpfsdp_shards_end_write, model.root());
    };
    model.step(1);
    EXPECT_EQ(refused, 13);
    model.at = [](const std::string &) {};
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(Window, B056_WhatIsFullGoesStale) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .options = api::privately()});
    model.step(0);
    tpfsdp_module *block = model.block(0);
    tpfsdp_scope *outer = nullptr, *inner = nullptr;
    API(tpfsdp_scope_open, &block, 1, nullptr, &outer);
    const api::Owned<tpfsdp_scope> held_outer(outer);
    // Writes to the gathered copy do not count.
    const tpfsdp_view full = api::face(model.weight(1), TPFSDP_FACE_FULL);
    std::fill_n(static_cast<float *>(full.data), 25, -1.0f);
    API(tpfsdp_shards_begin_write, model.root());
    fill_shard(model.weight(1), static_cast<float>(rank + 5));
    API(tpfsdp_shards_end_write, model.root());
    const int64_t gathers = api::unit_info(block).unshards;
    API(tpfsdp_scope_open, &block, 1, nullptr, &inner);
    const api::Owned<tpfsdp_scope> held_inner(inner);
    EXPECT_EQ(api::unit_info(block).unshards, gathers + 1);
    EXPECT_EQ(api::values_of<float>(api::face(model.weight(1), TPFSDP_FACE_FULL)), rows(5, 6));
    EXPECT_EQ(api::face(model.weight(1), TPFSDP_FACE_FULL).data, full.data);
    API(tpfsdp_scope_close, inner);
    EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    API(tpfsdp_scope_close, outer);
    EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_SHARDED);
  });
}

TEST(Window, AUnitLeftFullAtTheEndOfBackwardIsGatheredAnew) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.options = api::privately()});
    model.step(0);
    model.backward(model.forward(1));
    API(tpfsdp_fsdp_module_unshard, model.block(1), nullptr);  // and not given back
    model.end();
    model.sgd();
    EXPECT_EQ(api::unit_info(model.block(1)).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    model.step(2);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

TEST(Window, SetTensorOpensOneForItself) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    model.step(0);
    model.full();
    const int64_t before = version(model.root());
    const int64_t local = rank == 0 ? 3 : 2;
    Values values(static_cast<size_t>(local * 5), static_cast<float>(rank + 8));
    const std::vector<int64_t> shape{local, 5}, wrong{local * 5};
    const auto set = [&](const std::vector<int64_t> &as) {
      const tpfsdp_view view = api::view(values.data(), TPFSDP_DTYPE_F32, as);
      tpfsdp_tensor *tensor = nullptr;
      API(tpfsdp_tensor_create_borrowed, &view, nullptr, &tensor);
      const api::Owned<tpfsdp_tensor> held(tensor);
      API(tpfsdp_param_set_tensor, model.weight(1), tensor);
    };
    const api::Error error = caught([&] { set(wrong); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("b0.weight"), HasSubstr("rank " + std::to_string(rank) + " of 2"),
                               HasSubstr("(" + std::to_string(local) + ", 5)")));
    EXPECT_EQ(version(model.root()), before);
    set(shape);
    EXPECT_EQ(version(model.root()), before + 1);
    values.assign(values.size(), 0);  // it was copied
    EXPECT_EQ(gathered(model, 1), rows(8, 9));
  });
}

// An optimizer inside backward writes each shard as its gradient comes.
TEST(Window, AGradReducedCallbackMayWriteItsShard) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    struct Apply {
      static tpfsdp_status call(void *, const tpfsdp_grad_reduced_args *args) {
        tpfsdp_view shard{}, grad{};
        if (tpfsdp_param_get_view(args->param, TPFSDP_FACE_SHARD, &shard, nullptr) != TPFSDP_OK) return -1;
        if (tpfsdp_param_get_view(args->param, TPFSDP_FACE_GRAD, &grad, nullptr) != TPFSDP_OK) return -2;
        for (int64_t i = 0; i < api::count_of(shard); ++i)
          static_cast<float *>(shard.data)[i] -= static_cast<const float *>(grad.data)[i] / 64;
        return TPFSDP_OK;
      }
    };
    tpfsdp_grad_reduced_callback callback{};
    callback.call = Apply::call;
    for (const toy::Layer<float> &layer : model.layers) {
      API(tpfsdp_param_set_grad_reduced_callback, layer.weight, &callback);
      API(tpfsdp_param_set_grad_reduced_callback, layer.bias, &callback);
    }
    for (int i = 0; i < 3; ++i) {
      model.backward(model.forward(i));
      model.end();
      API(tpfsdp_module_zero_grad, model.root(), 1);
    }
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

// The same between several backwards, of which none but the last opens a window: what a callback has written is what
// the next forward and its backward see, also where the shards are cast or kept in parts. In mode mapped it was an
// error.
TEST(Window, ACallbackWritesBetweenBackwards) {
  struct Case {
    tpfsdp_unshard_mode mode;
    int32_t size;
  };
  constexpr int32_t kWorld = 4;
  for (const Case &c : {Case{TPFSDP_UNSHARD_PRIVATE, 0}, Case{TPFSDP_UNSHARD_PRIVATE, 2},
                        Case{TPFSDP_UNSHARD_SHARED, 0}, Case{TPFSDP_UNSHARD_MAPPED, 0}}) {
    for (const tpfsdp_dtype dtype : {TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F64}) {
      on_ranks(kWorld, [&](tpfsdp_context *context, int32_t) {
        api::Tree tree(context);
        tpfsdp_param *const w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {8}, Values(8, 1));
        tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
        policy.param_dtype = dtype;
        tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
        options.mp_policy = &policy;
        options.unshard_mode = c.mode;
        options.reshard_after_forward.size = c.size;
        tree.shard({tree.root}, c.size > 0 ? TPFSDP_RESHARD_SIZE : TPFSDP_RESHARD_ALWAYS, options);
        tpfsdp_grad_reduced_callback doubles{};
        doubles.call = [](void *, const tpfsdp_grad_reduced_args *args) -> tpfsdp_status {
          const tpfsdp_view shard = api::face(args->param, TPFSDP_FACE_SHARD);
          for (int64_t i = 0; i < api::count_of(shard); ++i) static_cast<float *>(shard.data)[i] *= 2;
          return TPFSDP_OK;
        };
        API(tpfsdp_param_set_grad_reduced_callback, w, &doubles);
        const auto expect_full = [&](double value) {
          const tpfsdp_view full = api::face(w, TPFSDP_FACE_FULL);
          for (int64_t i = 0; i < 8; ++i)
            EXPECT_EQ(dtype == TPFSDP_DTYPE_F64 ? static_cast<const double *>(full.data)[i]
                                                : static_cast<const float *>(full.data)[i],
                      value)
                << "mode " << c.mode << ", size " << c.size << ", dtype " << dtype;
        };
        Values ones(8, 1);
        const std::vector<int64_t> shape{8};
        const tpfsdp_view gradient = api::view(ones.data(), TPFSDP_DTYPE_F32, shape);
        double value = 1;
        for (int step = 0; step < 6; ++step, value *= 2) {
          API(tpfsdp_fsdp_module_set_is_last_backward, tree.root, step % 3 == 2);
          API(tpfsdp_module_pre_forward, tree.root);
          expect_full(value);
          API(tpfsdp_module_post_forward, tree.root);
          API(tpfsdp_module_pre_backward, tree.root);
          expect_full(value);
          API(tpfsdp_param_add_grad, w, &gradient);
          API(tpfsdp_module_end_backward, tree.root);
        }
      });
    }
  }
}

}  // namespace
