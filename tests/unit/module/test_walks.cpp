// SPDX-License-Identifier: Apache-2.0
// The orders of named_modules, named_children, named_parameters and named_buffers, and the tree as text.
#include "unit/module/trees.hpp"

namespace tpfsdp {
namespace {

using trees::module;
using trees::Names;
using trees::names_of;
using trees::on_context;
using trees::param;
using trees::tensor;

// root { b { shared }, a { shared, c }, none }, `shared` being one module.
struct Diamond {
  explicit Diamond(const Ref<Context> &context)
      : root(module(context)), a(module(context)), b(module(context)), c(module(context)), shared(module(context)) {
    root->add_module("b", b);
    root->add_module("a", a);
    root->add_module("none", nullptr);
    b->add_module("shared", shared);
    a->add_module("shared", shared);
    a->add_module("c", c);
  }
  Ref<Module> root, a, b, c, shared;
};

TEST(Walk, ModulesComeInPreOrderOfRegistration) {
  on_context([](const Ref<Context> &context) {
    const Diamond tree(context);
    EXPECT_EQ(names_of(list_modules(*tree.root, "", true)), (Names{"", "b", "b.shared", "a", "a.c"}));
    EXPECT_EQ(names_of(list_modules(*tree.root, "", false)), (Names{"", "b", "b.shared", "a", "a.shared", "a.c"}));
    EXPECT_EQ(names_of(list_modules(*tree.a, "net", true)), (Names{"net", "net.shared", "net.c"}));
    EXPECT_EQ(list_modules(*tree.root, "", true)[2].second, tree.shared.get());
  });
}

TEST(Walk, ChildrenAreDistinct) {
  on_context([](const Ref<Context> &context) {
    const Diamond tree(context);
    tree.root->add_module("again", tree.b);
    EXPECT_EQ(names_of(list_children(*tree.root)), (Names{"b", "a"}));
  });
}

TEST(Walk, AModuleIsNamedByItsFirstPlace) {
  on_context([](const Ref<Context> &context) {
    const Diamond tree(context);
    EXPECT_EQ(tree.shared->path(), "b.shared");
    tree.b->add_module("shared", nullptr);
    EXPECT_EQ(tree.shared->path(), "a.shared");
  });
}

TEST(Walk, TiedParametersComeOnce) {
  on_context([](const Ref<Context> &context) {
    const Diamond tree(context);
    const auto tied = param();
    tree.root->register_parameter("scale", param());
    tree.b->register_parameter("out", tied);
    tree.a->register_parameter("in", tied);
    tree.a->register_parameter("bias", nullptr);
    tree.shared->register_parameter("w", param());
    EXPECT_EQ(names_of(list_params(*tree.root, true)), (Names{"scale", "b.out", "b.shared.w"}));
    EXPECT_EQ(names_of(list_params(*tree.root, false)), (Names{"scale"}));
    EXPECT_EQ(names_of(list_params(*tree.a, true)), (Names{"in", "shared.w"}));
  });
}

TEST(Walk, BuffersComeOnceWithTheirNames) {
  on_context([](const Ref<Context> &context) {
    const Diamond tree(context);
    const auto same = tensor();
    tree.root->register_buffer("mean", tensor(), true);
    tree.b->register_buffer("steps", same, false);
    tree.a->register_buffer("steps", same, false);
    tree.a->register_buffer("none", nullptr, true);
    EXPECT_EQ(names_of(list_buffers(*tree.root, true)), (Names{"mean", "b.steps"}));
    EXPECT_EQ(names_of(list_buffers(*tree.a, true)), (Names{"steps"}));
    EXPECT_EQ(names_of(list_buffers(*tree.root, false)), (Names{"mean"}));
    const auto other = tensor();
    tree.root->register_buffer("mean", other, false);
    EXPECT_EQ(list_buffers(*tree.root, false)[0].second, other.get());
    EXPECT_FALSE(tree.root->buffers()[0].persistent);
  });
}

TEST(Walk, DescribeShowsOneModuleALine) {
  on_context([](const Ref<Context> &context) {
    ModuleOptions options;
    options.class_name = "Linear";
    options.extra_repr = "in=3, out=2";
    const auto root = module(context, "Net"), linear = make<Module>(context, options);
    root->add_module("fc", linear);
    linear->register_parameter("weight", param({2, 3}));
    const auto frozen = param();
    frozen->set_requires_grad(false);
    linear->register_parameter("bias", frozen);
    EXPECT_EQ(describe(*root), "Net()\n  (fc): Linear(in=3, out=2) weight: f32(2, 3) bias: f32(2) frozen\n");
  });
}

}  // namespace
}  // namespace tpfsdp
