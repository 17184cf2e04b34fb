// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about orders and counts that test_fully_shard_order.cpp and test_fully_shard_accumulation.cpp
// leave: with recomputation, with SIZE(k), and of the records of driving calls.
#include "order.hpp"

namespace {

using chain::Chain;
using chain::on_ranks;
using chain::take_counters;
using order::Host;
using order::take;

constexpr int32_t kEvents = 512;

chain::Shape shape_of(tpfsdp_reshard_kind kind) {
  chain::Shape shape{.blocks = 3, .reshard = kind, .root_reshard = kind};
  if (kind == TPFSDP_RESHARD_SIZE) shape.options.reshard_after_forward.size = 2;
  return shape;
}

struct Prefetch {
  const char *name;
  tpfsdp_reshard_kind kind;
  bool recomputes;
  const char *backward;
};

constexpr const char *kGatherAll = "U <root> B, U b2 B, U b1 B, P b2, U b0 B, P b1, P b0, P <root>";
constexpr const char *kGatherBlocks = "U b2 B, U b1 B, P b2, U b0 B, P b1, P b0, P <root>";
constexpr const char *kGatherNone = "P b2, P b1, P b0, P <root>";

class BackwardPrefetch : public testing::TestWithParam<Prefetch> {};

TEST_P(BackwardPrefetch, one_forward_one_backward) {
  const Prefetch tested = GetParam();
  on_ranks(
      4,
      [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, shape_of(tested.kind));
        model.at = [&](const std::string &here) {
          if (!tested.recomputes || here.rfind("in backward b", 0) != 0) return;
          tpfsdp_module *const block = model.block(static_cast<size_t>(here.back() - '0'));
          API(tpfsdp_module_pre_forward, block);
          API(tpfsdp_module_post_forward, block);
          EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_UNSHARDED);
        };
        for (int i = 0; i < 3; ++i) {
          const chain::Values y = model.forward(i);
          EXPECT_EQ(take(context, "UP"), "U <root> F, U b0 F, U b1 F, U b2 F");
          model.backward(y);
          model.end();
          EXPECT_EQ(take(context, "UP"), tested.backward);
          model.sgd();
        }
      },
      kEvents);
}

INSTANTIATE_TEST_SUITE_P(Policies, BackwardPrefetch,
                         testing::Values(Prefetch{"always_recomputed", TPFSDP_RESHARD_ALWAYS, true, kGatherAll},
                                         Prefetch{"automatic_recomputed", TPFSDP_RESHARD_AUTO, true, kGatherBlocks},
                                         Prefetch{"never_recomputed", TPFSDP_RESHARD_NEVER, true, kGatherNone},
                                         Prefetch{"size_2", TPFSDP_RESHARD_SIZE, false, kGatherAll},
                                         Prefetch{"size_2_recomputed", TPFSDP_RESHARD_SIZE, true, kGatherAll}),
                         [](const auto &tested) { return std::string(tested.param.name); });

// The root first, then what is below in pre-order, whatever the order in which it was sharded.
TEST(ChecklistOrder, fully_shard_is_root) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, true);
        for (const char *path : {"a", "a.c", "b"}) host.add(path);
        for (const char *path : {"b", "a.c", "a", ""}) host.shard({path}, TPFSDP_RESHARD_ALWAYS);
        API(tpfsdp_module_pre_forward, host.at(""));
        for (const char *path : {"b", "a", "a.c"}) host.forward(path);
        API(tpfsdp_module_post_forward, host.at(""));
        for (const char *path : {"", "a", "a.c", "b"}) {
          tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
          API(tpfsdp_fsdp_module_get_info, host.at(path), &info);
          EXPECT_EQ(info.is_root, *path == 0) << path;
        }
        host.before("");
        API(tpfsdp_module_end_backward, host.at(""));
        EXPECT_EQ(take(context, "P"), "P <root>, P a, P a.c, P b");
      },
      kEvents);
}

TEST(ChecklistOrder, fully_shard_logging) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, {.blocks = 2});
        API(tpfsdp_root_prepare, model.root());
        API(tpfsdp_trace_clear, context);
        model.backward(model.forward(0));
        model.end();
        std::vector<std::string> calls;
        for (int64_t i = 0; i < api::counters(context).event_count; ++i) {
          tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
          API(tpfsdp_trace_get_event, context, i, &event);
          if (event.kind == TPFSDP_EVENT_HOOK) calls.push_back(std::string(event.operation) + " " + event.unit);
        }
        const std::vector<std::string> expected{"pre_forward <root>",  "pre_forward b0",   "post_forward b0",
                                                "pre_forward b1",      "post_forward b1",  "post_forward <root>",
                                                "pre_backward <root>", "pre_backward b1",  "post_backward b1",
                                                "pre_backward b0",     "post_backward b0", "end_backward <root>"};
        EXPECT_EQ(calls, expected);
      },
      kEvents);
}

enum class Off { kAll, kRootOnly, kSomeBlocks };  // where sync is off on all but the last micro-batch

struct Case {
  const char *name;
  Off off;
  tpfsdp_reshard_kind kind;
  int64_t reduce_scatters, all_gathers;
};

void set_sync(const Chain &model, Off off, tpfsdp_bool enabled) {
  if (off == Off::kSomeBlocks) {
    for (const size_t block : {0, 1})
      API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.block(block), enabled, 1);
  } else {
    API(tpfsdp_fsdp_module_set_requires_gradient_sync, model.root(), enabled, off == Off::kAll);
  }
}

void sgd(const Chain &model, bool to_none) {
  for (const toy::Layer<float> &layer : model.layers) {
    for (tpfsdp_param *param : {layer.weight, layer.bias}) {
      const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD), grad = api::face(param, TPFSDP_FACE_GRAD);
      for (int64_t e = 0; e < api::count_of(shard); ++e)
        static_cast<float *>(shard.data)[e] -= static_cast<const float *>(grad.data)[e] / 256;
    }
  }
  API(tpfsdp_module_zero_grad, model.root(), to_none);
}

class ChecklistAccumulation : public testing::TestWithParam<Case> {};

// Beside a model that reduces every micro-batch: equal losses at each, also where gradients are zeroed and not dropped.
TEST_P(ChecklistAccumulation, gradient_accumulation) {
  const Case tested = GetParam();
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, shape_of(tested.kind)), reference(context, rank, shape_of(tested.kind));
    for (Chain *one : {&model, &reference}) API(tpfsdp_root_prepare, one->root());
    const auto expect_near = [](const chain::Values &got, const chain::Values &expected) {
      ASSERT_EQ(got.size(), expected.size());
      for (size_t e = 0; e < got.size(); ++e) EXPECT_NEAR(got[e], expected[e], 1e-5F + 1.3e-6F * std::abs(expected[e]));
    };
    for (int i = 0; i < 5; ++i) {
      int64_t reduce_scatters = 0, all_gathers = 0;
      for (int micro = 0; micro < 3; ++micro) {
        take_counters(context);
        set_sync(model, tested.off, micro == 2);
        const chain::Values y = model.forward(3 * i + micro);
        model.backward(y);
        model.end();
        const tpfsdp_counters counters = take_counters(context);
        reduce_scatters += counters.reduce_scatters;
        all_gathers += counters.all_gathers;
        EXPECT_EQ(counters.all_reduces + counters.other_collectives, 0);
        const chain::Values expected = reference.forward(3 * i + micro);
        expect_near(y, expected);
        reference.backward(expected);
        reference.end();
      }
      EXPECT_EQ(reduce_scatters, tested.reduce_scatters);
      EXPECT_EQ(all_gathers, tested.all_gathers);
      for (const Chain *one : {&model, &reference}) sgd(*one, i % 2 == 0);
    }
    expect_near(model.full(), reference.full());
  });
}

INSTANTIATE_TEST_SUITE_P(Counts, ChecklistAccumulation,
                         testing::Values(Case{"all_size_2", Off::kAll, TPFSDP_RESHARD_SIZE, 4, 24},
                                         Case{"root_only_size_2", Off::kRootOnly, TPFSDP_RESHARD_SIZE, 10, 24},
                                         Case{"some_blocks_size_2", Off::kSomeBlocks, TPFSDP_RESHARD_SIZE, 8, 24},
                                         Case{"all_always", Off::kAll, TPFSDP_RESHARD_ALWAYS, 4, 24},
                                         Case{"all_never", Off::kAll, TPFSDP_RESHARD_NEVER, 4, 12}),
                         [](const auto &tested) { return std::string(tested.param.name); });

}  // namespace
