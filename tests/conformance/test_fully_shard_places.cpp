// SPDX-License-Identifier: Apache-2.0
// Where full parameters lie when a step does not go as planned: what a forward showed is there again in its backward,
// or the call is refused.
#include "order.hpp"

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using order::Host;

const void *address(tpfsdp_param *param) { return api::face(param, TPFSDP_FACE_FULL).data; }

// Blocks 0 and 2 share a slot: a scope on both takes a spare place for one, also between forward and backward.
TEST(Places, AScopeOnEverythingBetweenForwardAndBackwardTakesSpares) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3, .options = api::privately()});
    for (int i = 0; i < 3; ++i) {
      const chain::Values y = model.forward(i);
      const chain::Values seen = model.full();
      EXPECT_EQ(seen.size(), 4u * 30);
      model.backward(y);
      model.end();
      model.sgd();
      EXPECT_EQ(api::memory(model.root()).spare_slot_count, 1);
    }
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 3));
}

TEST(Places, AScopeThatIsOpenInBackwardIsRefusedWhereAUnitIsElsewhere) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3, .options = api::privately()});
    model.step(0);
    const chain::Values y = model.forward(1);
    tpfsdp_scope *scope = nullptr;
    tpfsdp_module *const root = model.root();
    API(tpfsdp_scope_open, &root, 1, nullptr, &scope);
    const api::Owned<tpfsdp_scope> held(scope);
    const api::Error error = caught([&] { model.backward(y); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), HasSubstr("unit b2 cannot come back to where its forward saw it"));
    EXPECT_THAT(error.what(), HasSubstr("close its scope"));
    model.reset();
    API(tpfsdp_module_zero_grad, root, 1);
    for (int i = 1; i < 3; ++i) model.step(i);
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 3));
}

// A forward inside a scope: where the unit is full is its place, in backward too.
TEST(Places, AForwardInsideAScopeStaysWhereItIs) {
  chain::SharedValues values;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank, {.blocks = 3});
    model.step(0);
    std::map<std::string, const void *> shown;
    model.at = [&](const std::string &point) {
      if (point.rfind("in ", 0) != 0) return;
      const void *const data = address(model.weight(static_cast<size_t>(point.back() - '0') + 1));
      EXPECT_EQ(shown.emplace(point.substr(point.size() - 2), data).first->second, data) << point;
    };
    tpfsdp_scope *scope = nullptr;
    tpfsdp_module *const root = model.root();
    API(tpfsdp_scope_open, &root, 1, nullptr, &scope);
    const api::Owned<tpfsdp_scope> held(scope);
    const chain::Values y = model.forward(1);
    API(tpfsdp_scope_close, scope);
    model.backward(y);
    model.end();
    EXPECT_EQ(shown.size(), 3u);
    model.sgd();
    const chain::Values full = model.full();
    if (rank == 0) values = full;
  });
  EXPECT_EQ(values.get(), chain::clean_run(2, 2));
}

// A block that is left out makes neighbours of two that the plan thought apart: the second gets a place of its own
// before its forward, so that the first can be gathered while the second's backward runs.
TEST(Places, WhatTheOrderOfAStepMakesNeighboursLiesApart) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, true);
        for (const char *path : {"a", "b", "c"}) {
          host.add(path);
          host.shard({path}, TPFSDP_RESHARD_ALWAYS);
        }
        host.shard({""}, TPFSDP_RESHARD_AUTO);
        for (int i = 0; i < 3; ++i) {
          const bool all = i == 1;
          std::map<std::string, const void *> shown;
          API(tpfsdp_module_pre_forward, host.at(""));
          for (const char *path : {"a", "b", "c"}) {
            if (!all && *path == 'b') continue;
            API(tpfsdp_module_pre_forward, host.at(path));
            shown[path] = address(host.param(path));
            API(tpfsdp_module_post_forward, host.at(path));
          }
          API(tpfsdp_module_post_forward, host.at(""));
          EXPECT_NE(shown["a"], shown["c"]);
          order::take(context, "U");
          host.before("");
          for (const char *path : {"c", "b", "a"}) {
            if (!all && *path == 'b') continue;
            host.before(path);
            EXPECT_EQ(address(host.param(path)), shown[path]) << path;
            host.after(path);
          }
          API(tpfsdp_module_end_backward, host.at(""));
          EXPECT_EQ(order::take(context, "U"), all ? "U c B, U b B, U a B" : "U c B, U a B");
          EXPECT_EQ(api::counters(context).prefetch_hits, all ? 5 : i == 0 ? 2 : 7);
          API(tpfsdp_module_zero_grad, host.at(""), 1);
        }
        EXPECT_EQ(api::memory(host.at("")).spare_slot_count, api::slots_of_suite(1));
      },
      512);
}

}  // namespace
