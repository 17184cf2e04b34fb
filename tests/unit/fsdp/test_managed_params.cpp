// SPDX-License-Identifier: Apache-2.0
// Which parameters one fully_shard call takes, and in which order: nested, tied, listed and ignored ones.
#include "comm/run_ranks.hpp"
#include "fsdp/fully_shard.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace tpfsdp {
namespace {

using Names = std::vector<std::string>;

// A tree on a world of one, by dotted names.
class Tree {
 public:
  explicit Tree(const Ref<Context> &context) : context_(context), root(make<Module>(context, ModuleOptions{})) {}
  Ref<Module> module(const std::string &path) {
    if (path.empty()) return root;
    const size_t dot = path.rfind('.');
    const Ref<Module> above = module(dot == std::string::npos ? "" : path.substr(0, dot));
    const std::string name = path.substr(dot == std::string::npos ? 0 : dot + 1);
    for (const auto &[known, child] : above->children()) {
      if (known == name) return child;
    }
    const auto made = make<Module>(context_, ModuleOptions{});
    above->add_module(name, made);
    return made;
  }
  Ref<Param> param(const std::string &path) {
    const auto made = make<Param>(Tensor::zeros({2}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU), true);
    put(path, made);
    return made;
  }
  void put(const std::string &path, const Ref<Param> &param) {
    const size_t dot = path.rfind('.');
    module(dot == std::string::npos ? "" : path.substr(0, dot))
        ->register_parameter(path.substr(dot == std::string::npos ? 0 : dot + 1), param);
  }
  void shard(const Names &paths, const std::vector<const Param *> &ignored = {}) {
    std::vector<Ref<Module>> modules;
    for (const std::string &path : paths) modules.push_back(module(path));
    fully_shard(modules, nullptr, [&] {
      ShardOptions options;
      options.ignored = ignored;
      return options;
    });
  }
  Names unit(const std::string &path) {
    const State &state = state_of(*module(path));
    Names names;
    if (!state.unit) return names;
    for (const ShardedParam &p : state.unit->params) names.push_back(p.param->full_name());
    return names;
  }

 private:
  Ref<Context> context_;

 public:
  Ref<Module> root;
};

void on_tree(const std::function<void(Tree &)> &body) {
  run_ranks(1, {}, [&](int32_t, int32_t, const Ref<Context> &context) {
    Tree tree(context);
    body(tree);
  });
}

TEST(ManagedParams, managed_modules_single) {
  on_tree([](Tree &tree) {
    tree.param("a.b.w");
    tree.param("a.w");
    tree.param("c.w");
    tree.param("w");
    tree.shard({""});
    // Post-order: children before their parents.
    EXPECT_EQ(tree.unit(""), (Names{"a.b.w", "a.w", "c.w", "w"}));
  });
}

TEST(ManagedParams, managed_states_nested_fully_shard) {
  on_tree([](Tree &tree) {
    tree.param("a.b.w");
    tree.param("a.w");
    tree.param("a.b.c.w");
    tree.param("d.w");
    tree.shard({"a.b"});
    tree.shard({""});
    EXPECT_EQ(tree.unit("a.b"), (Names{"a.b.c.w", "a.b.w"}));
    EXPECT_EQ(tree.unit(""), (Names{"a.w", "d.w"}));
    EXPECT_EQ(state_or_null(*tree.module("a")), nullptr);
  });
}

TEST(ManagedParams, managed_modules_duplicate) {
  on_tree([](Tree &tree) {
    tree.param("a.w");
    tree.root->add_module("again", tree.module("a"));
    tree.module("b")->add_module("a", tree.module("a"));
    tree.shard({""});
    EXPECT_EQ(tree.unit(""), (Names{"a.w"}));
  });
}

TEST(ManagedParams, managed_states_shared_params) {
  on_tree([](Tree &tree) {
    const Ref<Param> tied = tree.param("emb.w");
    tree.param("head.b");
    tree.put("head.w", tied);
    tree.shard({""});
    EXPECT_EQ(tree.unit(""), (Names{"emb.w", "head.b"}));
    EXPECT_EQ(tied->place_count(), 2);
  });
}

TEST(ManagedParams, managed_modules_list_of_mlps) {
  on_tree([](Tree &tree) {
    for (const char *name : {"a.w", "b.in.w", "b.w", "c.w"}) tree.param(name);
    tree.shard({"b", "a"});
    tree.shard({""});
    EXPECT_EQ(tree.unit("a"), (Names{"b.in.w", "b.w", "a.w"}));
    EXPECT_EQ(state_or_null(*tree.module("a")), state_or_null(*tree.module("b")));
    EXPECT_EQ(tree.unit(""), (Names{"c.w"}));
  });
}

TEST(ManagedParams, AListMayHoldAModuleAndOneBelowIt) {
  on_tree([](Tree &tree) {
    for (const char *name : {"a.w", "a.b.w", "a.c.w"}) tree.param(name);
    tree.shard({"a.b", "a"});
    EXPECT_EQ(tree.unit("a"), (Names{"a.b.w", "a.c.w", "a.w"}));
    EXPECT_EQ(tree.unit("a.b"), tree.unit("a"));
  });
}

TEST(ManagedParams, AListKeepsOutWhatWasTakenBefore) {
  on_tree([](Tree &tree) {
    for (const char *name : {"a.w", "a.b.w", "c.w"}) tree.param(name);
    tree.shard({"a.b"});
    tree.shard({"a", "c"});
    EXPECT_EQ(tree.unit("a"), (Names{"a.w", "c.w"}));
  });
}

TEST(ManagedParams, IgnoredOnesAreNotTaken) {
  on_tree([](Tree &tree) {
    const Ref<Param> ignored = tree.param("a.w");
    tree.param("a.b");
    tree.put("c.w", ignored);
    tree.shard({""}, {ignored.get()});
    EXPECT_EQ(tree.unit(""), (Names{"a.b"}));
    EXPECT_EQ(ignored->unit, nullptr);
    EXPECT_TRUE(ignored->has(Face::kFull));
  });
}

TEST(ManagedParams, AModuleWithoutParametersHasAStateAndNoUnit) {
  on_tree([](Tree &tree) {
    tree.param("a.w");
    tree.shard({"a"});
    tree.shard({""});
    EXPECT_EQ(tree.unit(""), Names{});
    EXPECT_EQ(state_of(*tree.root).unit.get(), nullptr);
  });
}

TEST(ManagedParams, EmptyPlacesAreSkipped) {
  on_tree([](Tree &tree) {
    tree.root->register_parameter("bias", nullptr);
    tree.root->add_module("none", nullptr);
    tree.param("w");
    tree.shard({""});
    EXPECT_EQ(tree.unit(""), (Names{"w"}));
  });
}

}  // namespace
}  // namespace tpfsdp
