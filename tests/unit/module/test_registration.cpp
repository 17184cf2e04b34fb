// SPDX-License-Identifier: Apache-2.0
// Building a tree: which names and shapes of trees are refused, replacement, places of tied parameters, look-ups.
#include "unit/module/trees.hpp"

namespace tpfsdp {
namespace {

using testing::HasSubstr;
using trees::module;
using trees::on_context;
using trees::param;
using trees::refusal;
using trees::tensor;

TEST(Registration, NamesMayNotBeEmptyOrHaveADot) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context);
    for (const char *name : {"", "a.b"}) {
      const std::string part = *name ? "dot" : "empty";
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->add_module(name, module(context)); }),
                  HasSubstr(part));
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->register_parameter(name, param()); }),
                  HasSubstr(part));
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->register_buffer(name, tensor(), true); }),
                  HasSubstr(part));
    }
    EXPECT_TRUE(root->children().empty());
    EXPECT_TRUE(root->params().empty());
    EXPECT_TRUE(root->buffers().empty());
  });
}

TEST(Registration, ANameMeansOneThing) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context), child = module(context);
    root->add_module("child", child);
    root->register_parameter("weight", param());
    root->register_buffer("mean", tensor(), true);
    for (const char *name : {"weight", "mean"})
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->add_module(name, module(context)); }),
                  HasSubstr(name));
    for (const char *name : {"child", "mean"})
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->register_parameter(name, param()); }),
                  HasSubstr(name));
    for (const char *name : {"child", "weight"})
      EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->register_buffer(name, tensor(), true); }),
                  HasSubstr(name));
  });
}

TEST(Registration, ATreeHasNoCycle) {
  on_context([](const Ref<Context> &context) {
    const auto a = module(context), b = module(context), c = module(context);
    a->add_module("b", b);
    b->add_module("c", c);
    EXPECT_THAT(refusal(TPFSDP_ERR_STATE, [&] { c->add_module("a", a); }), HasSubstr("cycle"));
    EXPECT_THAT(refusal(TPFSDP_ERR_STATE, [&] { a->add_module("self", a); }), HasSubstr("cycle"));
    EXPECT_TRUE(c->children().empty());
    EXPECT_EQ(a->parent(), nullptr);
    c->add_module("d", module(context));
    EXPECT_EQ(c->children()[0].second->path(), "b.c.d");
  });
}

TEST(Registration, AReplacedChildIsNobodysChild) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context), before = module(context), after = module(context);
    root->add_module("first", module(context));
    root->add_module("head", before);
    root->add_module("last", module(context));
    EXPECT_EQ(before->path(), "head");
    root->add_module("head", after);
    EXPECT_EQ(before->parent(), nullptr);
    EXPECT_EQ(before->path(), "");
    EXPECT_EQ(after->path(), "head");
    ASSERT_EQ(root->children().size(), 3u);
    EXPECT_EQ(root->children()[1].first, "head");  // its place in the order stays
    root->add_module("head", after);               // by itself
    EXPECT_EQ(after->parent(), root.get());
    root->add_module("head", nullptr);
    EXPECT_EQ(after->parent(), nullptr);
    EXPECT_EQ(trees::names_of(list_children(*root)), (trees::Names{"first", "last"}));
  });
}

TEST(Registration, AParameterKnowsItsPlaces) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context), a = module(context), b = module(context);
    const auto tied = param();
    EXPECT_EQ(tied->full_name(), "");
    EXPECT_EQ(tied->gate(), nullptr);
    root->add_module("a", a);
    root->add_module("b", b);
    b->register_parameter("out", tied);
    EXPECT_EQ(tied->full_name(), "b.out");
    EXPECT_EQ(tied->gate(), context->gate());
    a->register_parameter("in", tied);
    EXPECT_EQ(tied->place_count(), 2);
    EXPECT_EQ(tied->full_name(), "b.out");  // of its first place
    b->register_parameter("out", param());
    EXPECT_EQ(tied->place_count(), 1);
    EXPECT_EQ(tied->full_name(), "a.in");
    a->register_parameter("in", nullptr);
    EXPECT_EQ(tied->place_count(), 0);
    EXPECT_EQ(tied->full_name(), "");
    EXPECT_STREQ(tied->name_for_caller(), "");
  });
}

TEST(Registration, AnIntegerParameterCannotTrain) {
  const auto whole = Tensor::zeros({2}, TPFSDP_DTYPE_I64, TPFSDP_DEVICE_CPU);
  EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { make<Param>(whole, true); }), HasSubstr("i64"));
  EXPECT_FALSE(make<Param>(whole, false)->requires_grad());
}

TEST(Registration, NewValuesHaveTheOldShapeAndDtype) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context);
    const auto p = param({2, 3});
    root->register_parameter("w", p);
    const std::string text = refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] {
      p->set_values(Tensor::zeros({3, 2}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU));
    });
    EXPECT_THAT(text, HasSubstr("parameter w is f32 (2, 3)"));
    EXPECT_THAT(text, HasSubstr("(3, 2)"));
    const int64_t epoch = p->view(Face::kFull).epoch;
    const auto other = Tensor::zeros({2, 3}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU);
    p->set_values(other);
    EXPECT_EQ(p->view(Face::kFull).data, other->view().data);
    EXPECT_NE(p->view(Face::kFull).epoch, epoch);
  });
}

TEST(LookUp, FollowsDottedPaths) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context), a = module(context), b = module(context);
    const auto w = param();
    const auto mean = tensor();
    root->add_module("a", a);
    a->add_module("b", b);
    b->register_parameter("w", w);
    b->register_buffer("mean", mean, false);
    EXPECT_EQ(&root->get_submodule(""), root.get());
    EXPECT_EQ(&root->get_submodule("a.b"), b.get());
    EXPECT_EQ(&root->get_parameter("a.b.w"), w.get());
    EXPECT_EQ(&a->get_parameter("b.w"), w.get());
    EXPECT_EQ(&root->get_buffer("a.b.mean"), mean.get());
  });
}

TEST(LookUp, AMissNamesModuleClassAndTarget) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context, "Transformer"), block = module(context, "Block");
    root->add_module("block", block);
    root->add_module("none", nullptr);
    root->register_parameter("bias", nullptr);
    block->register_buffer("gone", nullptr, true);
    EXPECT_EQ(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_submodule("blok.attn"); }),
              "module \"\" (Transformer) has no module \"blok\"");
    EXPECT_EQ(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_submodule("block.attn"); }),
              "module \"block\" (Block) has no module \"attn\"");
    EXPECT_EQ(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_parameter("block.weight"); }),
              "module \"block\" (Block) has no parameter \"weight\"");
    EXPECT_EQ(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_buffer("block.gone"); }),
              "module \"block\" (Block) has no buffer \"gone\"");
    EXPECT_THAT(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_submodule("none"); }), HasSubstr("\"none\""));
    EXPECT_THAT(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_parameter("bias"); }), HasSubstr("\"bias\""));
    EXPECT_THAT(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->get_submodule("block."); }), HasSubstr("no module"));
  });
}

TEST(LookUp, SetSubmoduleReplacesOrAdds) {
  on_context([](const Ref<Context> &context) {
    const auto root = module(context), a = module(context), made = module(context);
    root->add_module("a", a);
    EXPECT_THAT(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->set_submodule("a.b", made, true); }), HasSubstr("\"b\""));
    EXPECT_THAT(refusal(TPFSDP_ERR_NOT_FOUND, [&] { root->set_submodule("x.b", made, false); }), HasSubstr("\"x\""));
    EXPECT_THAT(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { root->set_submodule("", made, false); }),
                HasSubstr("empty"));
    EXPECT_EQ(made->parent(), nullptr);
    root->set_submodule("a.b", made, false);
    EXPECT_EQ(made->path(), "a.b");
    const auto other = module(context);
    root->set_submodule("a.b", other, true);
    EXPECT_EQ(&root->get_submodule("a.b"), other.get());
    EXPECT_EQ(made->parent(), nullptr);
  });
}

}  // namespace
}  // namespace tpfsdp
