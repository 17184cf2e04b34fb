// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about units over a list of modules of which one runs alone, and about units inside units.
#include "order.hpp"

#include "comm/run_ranks.hpp"
#include "fsdp/fully_shard.hpp"
#include "fsdp/state_machine.hpp"

namespace {

using chain::on_ranks;
using order::Host;

struct Partial {
  const char *name;
  tpfsdp_reshard_kind kind;
  bool grouped, tied;
};

// emb and norm run in the root's forward, head alone, in chunks of the loss; the head's parameter may be that of emb.
class PartialHost {
 public:
  PartialHost(tpfsdp_context *context, const Partial &of) : of_(of), host_(context, true) {
    host_.add("emb");
    host_.add("norm");
    host_.add("head", !of.tied);
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.reshard_after_forward = {of.kind, of.kind == TPFSDP_RESHARD_SIZE ? 1 : 0};
    const auto shard = [&](std::vector<tpfsdp_module *> modules) {
      API(tpfsdp_fully_shard, modules.data(), std::ssize(modules), nullptr, &options);
    };
    if (of.tied) API(tpfsdp_module_register_parameter, host_.at("head"), "p", host_.param("emb"));
    if (of.grouped) {
      shard({host_.at("emb"), host_.at("norm"), host_.at("head")});
    } else {
      for (const char *path : {"emb", "norm", "head"}) shard({host_.at(path)});
    }
    shard({host_.at("")});
  }

  // Every gradient of a backward is one, so that a parameter's says how many backwards it had.
  void step(int micro_batches) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      const tpfsdp_bool is_last = micro == micro_batches - 1;
      API(tpfsdp_fsdp_module_set_requires_gradient_sync, host_.at(""), is_last, 1);
      API(tpfsdp_fsdp_module_set_is_last_backward, host_.at(""), 0);
      API(tpfsdp_module_pre_forward, host_.at(""));
      for (const char *path : {"emb", "norm"}) forward(path);
      API(tpfsdp_module_post_forward, host_.at(""));
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        forward("head");
        host_.before("head");
        give("head");
        API(tpfsdp_module_end_backward, host_.at(""));
      }
      API(tpfsdp_fsdp_module_set_is_last_backward, host_.at(""), is_last);
      host_.before("");
      for (const char *path : {"norm", "emb"}) {
        host_.before(path);
        give(path);
      }
      give("");
      API(tpfsdp_module_end_backward, host_.at(""));
    }
    const auto times = static_cast<float>(micro_batches);
    EXPECT_EQ(gradient("emb"), of_.tied ? times * (1 + kChunks) : times);
    if (!of_.tied) {
      EXPECT_EQ(gradient("head"), times * kChunks);
    }
    EXPECT_EQ(gradient("norm"), times);
    EXPECT_EQ(gradient(""), times);
    for (const char *path : {"emb", "norm", "head", ""})
      EXPECT_EQ(api::unit_info(host_.at(path)).sharded_state, TPFSDP_SHARDED_SHARDED) << path;
    API(tpfsdp_module_zero_grad, host_.at(""), 1);
  }
  tpfsdp_module *root() const { return host_.at(""); }

 private:
  static constexpr int kChunks = 3;

  tpfsdp_param *param(const std::string &path) const { return host_.param(path == "head" && of_.tied ? "emb" : path); }
  void forward(const std::string &path) const {
    API(tpfsdp_module_pre_forward, host_.at(path));
    EXPECT_EQ(api::values_of<float>(api::face(param(path), TPFSDP_FACE_FULL)), (chain::Values{1, 2, 3, 4})) << path;
    API(tpfsdp_module_post_forward, host_.at(path));
  }
  void give(const std::string &path) const {
    float *const buffer = toy::grad_buffer<float>(param(path));
    std::fill_n(buffer, 4, 1.0F);
    API(tpfsdp_param_grad_ready, param(path));
  }
  float gradient(const std::string &path) const {
    return static_cast<const float *>(api::face(param(path), TPFSDP_FACE_GRAD).data)[0];
  }

  Partial of_;
  Host host_;
};

class PartialGroup : public testing::TestWithParam<Partial> {};

TEST_P(PartialGroup, partial_group_forward_then_standalone) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    PartialHost host(context, GetParam());
    for (int i = 0; i < 2; ++i) host.step(1);
  });
}

TEST_P(PartialGroup, partial_group_forward_grad_accum_chunked) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    PartialHost host(context, GetParam());
    for (int i = 0; i < 2; ++i) host.step(3);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, PartialGroup,
                         testing::Values(Partial{"each_always", TPFSDP_RESHARD_ALWAYS, false, false},
                                         Partial{"each_never", TPFSDP_RESHARD_NEVER, false, false},
                                         Partial{"list_always", TPFSDP_RESHARD_ALWAYS, true, false},
                                         Partial{"list_never", TPFSDP_RESHARD_NEVER, true, false},
                                         Partial{"list_size_1", TPFSDP_RESHARD_SIZE, true, false},
                                         Partial{"tied_always", TPFSDP_RESHARD_ALWAYS, true, true},
                                         Partial{"tied_never", TPFSDP_RESHARD_NEVER, true, true},
                                         Partial{"tied_size_1", TPFSDP_RESHARD_SIZE, true, true}),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(PartialGroupOf, partial_group_reshard_toggle) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    PartialHost host(context, {"", TPFSDP_RESHARD_ALWAYS, true, true});
    for (int i = 0; i < 6; ++i) {
      const tpfsdp_reshard_kind kind = i % 2 == 0 ? TPFSDP_RESHARD_NEVER : TPFSDP_RESHARD_ALWAYS;
      API(tpfsdp_fsdp_module_set_reshard_after_forward, host.root(), kind, 1);
      host.step(1);
    }
  });
}

// Two forwards of layers that have a unit each inside, one backward through both that computes every layer again.
TEST(NestedUnits, double_forward_with_nested_fsdp_and_checkpoint) {
  for (const tpfsdp_reshard_kind kind : {TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER}) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t) {
      Host host(context, true);
      const std::vector<std::string> layers{"l0", "l1"};
      for (const std::string &layer : layers) {
        host.add(layer);
        host.add(layer + ".w");
        host.shard({layer + ".w"}, kind);
        host.shard({layer}, kind);
      }
      host.shard({""}, kind);
      float added = 0;
      const auto expect_full = [&](const std::string &path) {
        const chain::Values expected{1 + added, 2 + added, 3 + added, 4 + added};
        EXPECT_EQ(api::values_of<float>(api::face(host.param(path), TPFSDP_FACE_FULL)), expected) << path;
      };
      const auto forward = [&](const std::string &layer) {
        API(tpfsdp_module_pre_forward, host.at(layer));
        expect_full(layer);
        API(tpfsdp_module_pre_forward, host.at(layer + ".w"));
        expect_full(layer + ".w");
        API(tpfsdp_module_post_forward, host.at(layer + ".w"));
        API(tpfsdp_module_post_forward, host.at(layer));
      };
      for (int i = 0; i < 3; ++i) {
        for (int pass = 0; pass < 2; ++pass) {
          API(tpfsdp_module_pre_forward, host.at(""));
          for (const std::string &layer : layers) forward(layer);
          API(tpfsdp_module_post_forward, host.at(""));
        }
        host.before("");
        for (int pass = 0; pass < 2; ++pass) {
          for (const std::string layer : {"l1", "l0"}) {
            host.before(layer);
            forward(layer);
            host.backward(layer + ".w");
            host.after(layer);
          }
          host.give_gradient("");
        }
        API(tpfsdp_module_end_backward, host.at(""));
        for (const char *path : {"", "l0", "l0.w", "l1", "l1.w"}) {
          EXPECT_EQ(static_cast<const float *>(api::face(host.param(path), TPFSDP_FACE_GRAD).data)[0], 2) << path;
          EXPECT_EQ(api::unit_info(host.at(path)).sharded_state, TPFSDP_SHARDED_SHARDED) << path;
          const tpfsdp_view shard = api::face(host.param(path), TPFSDP_FACE_SHARD);
          for (int64_t e = 0; e < api::count_of(shard); ++e) static_cast<float *>(shard.data)[e] += 1;
        }
        ++added;
        API(tpfsdp_module_zero_grad, host.at(""), 1);
      }
    });
  }
}

// Only a list of modules has to be told which of them have still to run.
TEST(PartialGroupOf, modules_to_run_forward_empty_for_single_module) {
  using namespace tpfsdp;
  run_ranks(1, {}, [](int32_t, int32_t, const Ref<Context> &context) {
    std::vector<Ref<Module>> modules;
    const auto root = make<Module>(context, ModuleOptions{});
    for (const char *name : {"a", "b", "c"}) {
      modules.push_back(make<Module>(context, ModuleOptions{}));
      root->add_module(name, modules.back());
      modules.back()->register_parameter("w",
                                         make<Param>(Tensor::zeros({2}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU), true));
    }
    const auto shard = [](const std::vector<Ref<Module>> &list) {
      fully_shard(list, nullptr, [] { return ShardOptions{}; });
    };
    shard({modules[0]});
    shard({modules[1], modules[2]});
    shard({root});
    pre_forward(*root, true);
    pre_forward(*modules[0], true);
    EXPECT_TRUE(state_of(*root).still_to_run.empty());
    EXPECT_TRUE(state_of(*modules[0]).still_to_run.empty());
    post_forward(*modules[0]);
    pre_forward(*modules[1], true);
    EXPECT_EQ(state_of(*modules[1]).still_to_run, (std::vector<Module *>{modules[1].get(), modules[2].get()}));
    post_forward(*modules[1]);
    EXPECT_EQ(state_of(*modules[1]).still_to_run, (std::vector<Module *>{modules[2].get()}));
    post_forward(*root);
    EXPECT_TRUE(state_of(*modules[1]).still_to_run.empty());
  });
}

}  // namespace
