// SPDX-License-Identifier: Apache-2.0
// The exact orders of reference 5.1.2, as whole strings.
#include "order.hpp"

namespace {

using chain::Chain;
using chain::on_ranks;
using order::Host;
using order::take;

constexpr int32_t kEvents = 512;

void without(std::string &text, const std::string &part) {
  const size_t at = text.find(part);
  ASSERT_NE(at, std::string::npos) << part << " in " << text;
  text.erase(at, part.size());
}

struct Policy {
  const char *name;
  tpfsdp_reshard_kind reshard;
  bool root_is_automatic;
};
const Policy kAlways{"always", TPFSDP_RESHARD_ALWAYS, false}, kAutomatic{"automatic", TPFSDP_RESHARD_AUTO, true},
    kNever{"never", TPFSDP_RESHARD_NEVER, false};

class Order : public testing::TestWithParam<Policy> {};

TEST_P(Order, backward_prefetch_one_forward_one_backward) {
  const Policy policy = GetParam();
  on_ranks(
      2,
      [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, {.blocks = 3, .reshard = policy.reshard, .root_reshard = policy.reshard});
        for (int i = 0; i < 3; ++i) {
          const chain::Values y = model.forward(i);
          EXPECT_EQ(take(context, "UP"), "U <root> F, U b0 F, U b1 F, U b2 F");
          model.backward(y);
          model.end();
          std::string expected = "U <root> B, U b2 B, U b1 B, P b2, U b0 B, P b1, P b0, P <root>";
          if (policy.reshard != TPFSDP_RESHARD_ALWAYS) without(expected, "U <root> B, ");
          if (policy.reshard == TPFSDP_RESHARD_NEVER) expected = "P b2, P b1, P b0, P <root>";
          EXPECT_EQ(take(context, "UP"), expected);
          model.sgd();
        }
      },
      kEvents);
}

TEST_P(Order, backward_prefetch_two_forwards_one_backward) {
  const Policy policy = GetParam();
  on_ranks(
      2,
      [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, {.blocks = 3, .reshard = policy.reshard, .root_reshard = policy.reshard});
        for (int i = 0; i < 2; ++i) {
          model.forward(2 * i);
          take(context, "UP");
          const chain::Values y = model.forward(2 * i + 1);
          std::string second = "U <root> F, U b0 F, U b1 F, U b2 F";
          if (policy.reshard == TPFSDP_RESHARD_AUTO) without(second, "U <root> F, ");
          EXPECT_EQ(take(context, "UP"), policy.reshard == TPFSDP_RESHARD_NEVER ? "" : second);
          model.backward(y);
          model.backward(y);
          model.end();
          const std::string once = "U b2 B, U b1 B, P b2, U b0 B, P b1, P b0, ";
          std::string expected = "U <root> B, " + once + once + "P <root>";
          if (policy.reshard != TPFSDP_RESHARD_ALWAYS) without(expected, "U <root> B, ");
          // What was kept after forward is freed by the first pass.
          if (policy.reshard == TPFSDP_RESHARD_NEVER) expected = "P b2, P b1, P b0, " + once + "P <root>";
          EXPECT_EQ(take(context, "UP"), expected);
          model.sgd();
        }
      },
      kEvents);
}

INSTANTIATE_TEST_SUITE_P(Policies, Order, testing::Values(kAlways, kAutomatic, kNever),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(OrderOf, backward_prefetch_two_branches) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, false);
        host.add("0");
        host.add("1", false);
        host.add("1.lin1");
        host.add("1.lin2");
        for (const char *path : {"0", "1.lin1", "1.lin2"}) host.shard({path}, TPFSDP_RESHARD_ALWAYS);
        host.shard({""}, TPFSDP_RESHARD_ALWAYS);
        for (int i = 0; i < 2; ++i) {
          API(tpfsdp_module_pre_forward, host.at(""));
          for (const char *path : {"0", "1.lin1", "1.lin2"}) host.forward(path);
          API(tpfsdp_module_post_forward, host.at(""));
          EXPECT_EQ(take(context, "UP"), "U 0 F, U 1.lin1 F, U 1.lin2 F");
          // The second branch, and the shared part without an input that wants a gradient.
          API(tpfsdp_fsdp_module_set_is_last_backward, host.at(""), 0);
          host.before("");
          host.backward("1.lin2");
          host.before("0");
          host.give_gradient("0");
          API(tpfsdp_module_end_backward, host.at(""));
          EXPECT_EQ(take(context, "UP"), "U 1.lin2 B, U 1.lin1 B, P 1.lin2, U 0 B, P 0, P 1.lin1");
          API(tpfsdp_fsdp_module_set_is_last_backward, host.at(""), 1);
          host.before("");
          host.backward("1.lin1");
          host.before("0");
          host.give_gradient("0");
          API(tpfsdp_module_end_backward, host.at(""));
          EXPECT_EQ(take(context, "UP"), "U 0 B, P 1.lin1, P 0, P 1.lin2");
          const auto gradient = [&](const char *path) {
            return static_cast<const float *>(api::face(host.param(path), TPFSDP_FACE_GRAD).data)[0];
          };
          EXPECT_EQ(gradient("0"), 2);
          EXPECT_EQ(gradient("1.lin1"), 1);
          EXPECT_EQ(gradient("1.lin2"), 1);
          API(tpfsdp_module_zero_grad, host.at(""), 1);
        }
      },
      kEvents);
}

void set_prefetch(Chain &model, bool is_forward, int64_t ahead) {
  const auto block_or_none = [&](int64_t i) { return i >= 0 && i < 4 ? model.block(static_cast<size_t>(i)) : nullptr; };
  const int64_t step = is_forward ? 1 : -1;
  for (int64_t i = is_forward ? -1 : 0; i < 4; ++i) {
    std::vector<tpfsdp_module *> list;
    for (int64_t k = 1; k <= ahead; ++k) {
      if (tpfsdp_module *next = block_or_none(i + k * step)) list.push_back(next);
    }
    if (list.empty()) continue;
    tpfsdp_module *module = i < 0 ? model.root() : block_or_none(i);
    const auto count = static_cast<int64_t>(list.size());
    if (is_forward) {
      API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, module, list.data(), count);
    } else {
      API(tpfsdp_fsdp_module_set_modules_to_backward_prefetch, module, list.data(), count);
    }
  }
}

constexpr const char *kForward =
    "U <root> F, U b0 F, R b0 F, U b1 F, R b1 F, U b2 F, R b2 F, U b3 F, R b3 F, R <root> F";
constexpr const char *kBackward =
    "U <root> B, U b3 B, U b2 B, P b3, R b3 p, U b1 B, P b2, R b2 p, U b0 B, P b1, R b1 p, P b0, R b0 p, P <root>, "
    "R <root> p";

void expect_orders(bool is_forward, int64_t ahead, const std::string &forward, const std::string &backward) {
  const chain::Shape shape{.blocks = 4, .reshard = TPFSDP_RESHARD_ALWAYS, .root_reshard = TPFSDP_RESHARD_ALWAYS};
  chain::SharedValues values;
  on_ranks(
      2,
      [&](tpfsdp_context *context, int32_t rank) {
        Chain model(context, rank, shape);
        set_prefetch(model, is_forward, ahead);
        for (int i = 0; i < 3; ++i) {
          const chain::Values y = model.forward(i);
          EXPECT_EQ(take(context, "URP"), forward);
          model.backward(y);
          model.end();
          EXPECT_EQ(take(context, "URP"), backward);
          model.sgd();
          model.expect_idle();
        }
        // One slot more for each unit that is gathered further ahead; the lists are in the plan.
        EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
        EXPECT_EQ(api::memory(model.root()).slot_count, api::slots_of_suite(2 + ahead));
        const chain::Values full = model.full();
        if (rank == 0) values = full;
      },
      kEvents);
  EXPECT_EQ(values.get(), chain::clean_run(2, 3, shape));
}

TEST(OrderOf, set_modules_to_forward_prefetch_one_ahead) {
  expect_orders(true, 1, "U <root> F, U b0 F, U b1 F, R b0 F, U b2 F, R b1 F, U b3 F, R b2 F, R b3 F, R <root> F",
                kBackward);
}

TEST(OrderOf, set_modules_to_forward_prefetch_two_ahead) {
  expect_orders(true, 2, "U <root> F, U b0 F, U b1 F, U b2 F, R b0 F, U b3 F, R b1 F, R b2 F, R b3 F, R <root> F",
                kBackward);
}

TEST(OrderOf, set_modules_to_backward_prefetch_one_behind) { expect_orders(false, 1, kForward, kBackward); }

TEST(OrderOf, set_modules_to_backward_prefetch_two_behind) {
  expect_orders(false, 2, kForward,
                "U <root> B, U b3 B, U b2 B, U b1 B, P b3, R b3 p, U b0 B, P b2, R b2 p, P b1, R b1 p, P b0, R b0 p, "
                "P <root>, R <root> p");
}

// A unit inside each layer, whose layer is computed again in backward.
class Nested {
 public:
  explicit Nested(tpfsdp_context *context) : host(context, false) {
    for (const char *path : {"tok", "pos", "l0", "l0.w", "l1", "l1.w", "l2", "l2.w", "norm", "output"}) host.add(path);
    for (const char *layer : {"l0", "l1", "l2"}) {
      host.shard({std::string(layer) + ".w"}, TPFSDP_RESHARD_ALWAYS);
      host.shard({layer}, TPFSDP_RESHARD_ALWAYS);
    }
    host.shard({"tok", "pos"}, TPFSDP_RESHARD_ALWAYS);
    host.shard({"norm", "output"}, TPFSDP_RESHARD_ALWAYS);
    host.shard({""}, TPFSDP_RESHARD_ALWAYS);
  }

  void step() const {
    API(tpfsdp_module_pre_forward, host.at(""));
    for (const char *path : {"tok", "pos"}) host.forward(path);
    for (const char *layer : {"l0", "l1", "l2"}) forward_layer(layer);
    for (const char *path : {"norm", "output"}) host.forward(path);
    API(tpfsdp_module_post_forward, host.at(""));
  }
  void backward() const {
    host.before("");
    for (const char *path : {"output", "norm"}) host.backward(path);
    for (const std::string layer : {"l2", "l1", "l0"}) {
      host.before(layer);
      forward_layer(layer);
      host.backward(layer + ".w");
      host.after(layer);
    }
    for (const char *path : {"pos", "tok"}) host.backward(path);
    API(tpfsdp_module_end_backward, host.at(""));
  }

  Host host;

 private:
  void forward_layer(const std::string &layer) const {
    API(tpfsdp_module_pre_forward, host.at(layer));
    host.forward(layer + ".w");
    API(tpfsdp_module_post_forward, host.at(layer));
  }
};

void expect_nested(const std::string &expected, const std::function<void(const Host &)> &set_lists) {
  on_ranks(
      2,
      [&](tpfsdp_context *context, int32_t) {
        Nested model(context);
        set_lists(model.host);
        for (int i = 0; i < 2; ++i) {
          model.step();
          take(context, "UR");
          model.backward();
          EXPECT_EQ(take(context, "UR"), expected);
          API(tpfsdp_module_zero_grad, model.host.at(""), 1);
        }
        EXPECT_EQ(api::memory(model.host.at("")).spare_slot_count, 0);
      },
      kEvents);
}

TEST(OrderOf, nested_unit_inside_a_recomputed_layer) {
  expect_nested(
      "U norm, output B, U l2 B, R norm, output p, U l2.w B, U l1 B, R l2.w p, R l2 p, U l1.w B, U l0 B, R l1.w p, "
      "R l1 p, U l0.w B, U tok, pos B, R l0.w p, R l0 p, R tok, pos p",
      [](const Host &) {});
}

TEST(OrderOf, set_modules_to_backward_prefetch_inside_ac) {
  expect_nested(
      "U norm, output B, U l2 B, R norm, output p, U l1 B, U l1.w B, U l2.w F, R l2.w p, R l2 p, U l0 B, U l0.w B, "
      "R l1.w p, R l1 p, U tok, pos B, R l0.w p, R l0 p, R tok, pos p",
      [](const Host &host) {
        host.prefetch_in_backward("output", {"l2"});
        host.prefetch_in_backward("l2", {"l1", "l1.w"});
        host.prefetch_in_backward("l1", {"l0", "l0.w"});
        host.prefetch_in_backward("l0", {"tok"});
      });
}

TEST(OrderOf, multi_module_backward_prefetch) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, false);
        const std::vector<std::string> paths{"tok", "pos", "l0", "l1", "l2", "l3", "l4", "norm", "output"};
        for (const std::string &path : paths) host.add(path);
        host.shard({"l0"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({"l1", "l2"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({"l3", "l4"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({"tok", "pos"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({"norm", "output"}, TPFSDP_RESHARD_NEVER);
        host.shard({""}, TPFSDP_RESHARD_ALWAYS);
        for (int i = 0; i < 2; ++i) {
          API(tpfsdp_module_pre_forward, host.at(""));
          for (const std::string &path : paths) host.forward(path);
          API(tpfsdp_module_post_forward, host.at(""));
          EXPECT_EQ(take(context, "UP"), "U tok, pos F, U l0 F, U l1, l2 F, U l3, l4 F, U norm, output F");
          host.before("");
          for (size_t n = paths.size(); n-- > 0;) host.backward(paths[n]);
          API(tpfsdp_module_end_backward, host.at(""));
          EXPECT_EQ(take(context, "UP"),
                    "U l3, l4 B, P norm, output, U l1, l2 B, P l3, l4, U l0 B, P l1, l2, U tok, pos B, P l0, "
                    "P tok, pos");
          API(tpfsdp_module_zero_grad, host.at(""), 1);
        }
      },
      kEvents);
}

TEST(OrderOf, multi_module_unused_module) {
  on_ranks(
      2,
      [](tpfsdp_context *context, int32_t) {
        Host host(context, true);
        for (const char *path : {"0", "1"}) {
          host.add(path, false);
          for (const char *leaf : {".unused", ".lin"}) host.add(path + std::string(leaf));
        }
        host.shard({"0.unused", "0.lin"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({"1.unused", "1.lin"}, TPFSDP_RESHARD_ALWAYS);
        host.shard({""}, TPFSDP_RESHARD_AUTO);
        for (int i = 0; i < 2; ++i) {
          API(tpfsdp_module_pre_forward, host.at(""));
          host.forward("0.lin");
          host.forward("1.lin");
          API(tpfsdp_module_post_forward, host.at(""));
          EXPECT_EQ(take(context, "UP"), "U <root> F, U 0.unused, 0.lin F, U 1.unused, 1.lin F");
          host.before("");
          host.give_gradient("");
          host.backward("1.lin");
          host.before("0.lin");
          host.give_gradient("0.lin");
          API(tpfsdp_module_end_backward, host.at(""));
          EXPECT_EQ(take(context, "UP"),
                    "U 1.unused, 1.lin B, U 0.unused, 0.lin B, P 1.unused, 1.lin, P <root>, P 0.unused, 0.lin");
          EXPECT_TRUE(api::has_grad(host.param("0.lin")));
          EXPECT_FALSE(api::has_grad(host.param("0.unused")));
          API(tpfsdp_module_zero_grad, host.at(""), 1);
        }
      },
      kEvents);
}

}  // namespace
