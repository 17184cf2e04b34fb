// SPDX-License-Identifier: Apache-2.0
// Trees that end in any order: what is released first must not matter to what is left.
#include "unit/module/trees.hpp"

#include <algorithm>
#include <random>

namespace tpfsdp {
namespace {

using trees::module;
using trees::on_context;
using trees::param;

TEST(Life, AChildOutlivesItsParent) {
  on_context([](const Ref<Context> &context) {
    auto root = module(context), a = module(context);
    const auto b = module(context);
    const auto w = param();
    root->add_module("a", a);
    a->add_module("b", b);
    b->register_parameter("w", w);
    root = nullptr;
    EXPECT_EQ(a->path(), "");
    EXPECT_EQ(w->full_name(), "b.w");
    a = nullptr;
    EXPECT_EQ(b->parent(), nullptr);
    EXPECT_EQ(w->full_name(), "w");
  });
}

TEST(Life, AParentHoldsItsChildren) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context);
    {
      const auto child = module(context);
      child->register_parameter("w", param());
      root->add_module("child", child);
    }
    EXPECT_EQ(root->get_parameter("child.w").full_name(), "child.w");
  });
}

TEST(Life, AParameterOutlivesItsModules) {
  on_context([](const Ref<Context> &context) {
    const auto tied = param();
    auto a = module(context), b = module(context);
    a->register_parameter("x", tied);
    a->register_parameter("y", tied);
    b->register_parameter("z", tied);
    EXPECT_EQ(tied->place_count(), 3);
    a = nullptr;
    EXPECT_EQ(tied->place_count(), 1);
    EXPECT_EQ(tied->full_name(), "z");
    b = nullptr;
    EXPECT_EQ(tied->place_count(), 0);
    EXPECT_EQ(tied->describe_rank(), "no rank");
    EXPECT_TRUE(tied->has(Face::kFull));
  });
}

TEST(Life, AModuleInTwoPlacesLosesThemOneByOne) {
  on_context([](const Ref<Context> &context) {
    const auto shared = module(context);
    auto first = module(context);
    const auto second = module(context);
    first->add_module("x", shared);
    second->add_module("y", shared);
    EXPECT_EQ(shared->path(), "x");
    first = nullptr;
    EXPECT_EQ(shared->path(), "y");
    EXPECT_EQ(shared->parent(), second.get());
  });
}

TEST(Life, AnyOrderOfRelease) {
  on_context([](const Ref<Context> &context) {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
      std::vector<Ref<Object>> held;
      std::vector<Ref<Module>> modules;
      std::vector<Ref<Param>> params;
      for (int i = 0; i < 8; ++i) {
        modules.push_back(module(context));
        if (i > 0) {
          for (size_t parents = 1 + random() % 2; parents > 0; --parents)
            modules[random() % static_cast<size_t>(i)]->add_module("m" + std::to_string(random() % 4), modules.back());
        }
      }
      for (int i = 0; i < 6; ++i) {
        params.push_back(param());
        for (size_t places = 1 + random() % 3; places > 0; --places)
          modules[random() % modules.size()]->register_parameter("p" + std::to_string(random() % 4), params.back());
      }
      held.insert(held.end(), modules.begin(), modules.end());
      held.insert(held.end(), params.begin(), params.end());
      modules.clear();
      params.clear();
      std::shuffle(held.begin(), held.end(), random);
      while (!held.empty()) {
        held.pop_back();
        for (const Ref<Object> &object : held) {
          if (object->kind() == Kind::kParam) {
            const auto &p = static_cast<Param &>(*object);
            ASSERT_EQ(p.full_name().empty(), p.place_count() == 0);
          } else {
            ASSERT_FALSE(list_modules(static_cast<Module &>(*object), "", true).empty());
            static_cast<Module &>(*object).path();
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tpfsdp
