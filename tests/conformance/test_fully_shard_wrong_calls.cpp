// SPDX-License-Identifier: Apache-2.0
// One rank makes a wrong call, or a callback of its host fails, in the middle of a step: an error here, REMOTE there.
#include "support/chain.hpp"

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;

struct Wrong {
  const char *name;
  const char *text;  // of the error on the rank that makes the call
  std::function<void(chain::Chain &)> call;
};

// After a clean step 0 rank 1 makes the call where rank 0 goes on with step 1.
void expect_told_and_repaired(const Wrong &wrong) {
  SCOPED_TRACE(wrong.name);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    if (rank == 1) {
      const api::Error error = caught([&] { wrong.call(model); });
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(wrong.text));
    } else {
      const api::Error error = caught([&] { model.step(1); });
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE) << error.what();
      EXPECT_EQ(error.rank, 1);
      EXPECT_THAT(error.what(), HasSubstr(wrong.text));
    }
    model.reset();
    model.expect_idle();
    for (int i = 1; i < 4; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 4));
    }
  });
}

TEST(WrongCalls, OfOneRankEndTheStepOnAll) {
  const std::vector<Wrong> calls{
      {"post_forward alone", "without pre_forward",
       [](chain::Chain &m) { API(tpfsdp_module_post_forward, m.block(0)); }},
      {"post_backward alone", "outside a backward",
       [](chain::Chain &m) { API(tpfsdp_module_post_backward, m.block(0)); }},
      {"end_backward of a block", "end_backward is for the root",
       [](chain::Chain &m) { API(tpfsdp_module_end_backward, m.block(1)); }},
      {"a gather in a window", "inside a write window",
       [](chain::Chain &m) {
         API(tpfsdp_shards_begin_write, m.root());
         try {
           API(tpfsdp_module_pre_forward, m.root());
         } catch (const api::Error &) {
           API(tpfsdp_shards_end_write, m.root());
           throw;
         }
       }},
      {"a pin at the end", "are pinned: unit(s) b0",
       [](chain::Chain &m) {
         tpfsdp_unit *unit = nullptr;
         API(tpfsdp_fsdp_module_get_unit, m.block(0), 0, &unit);
         m.at = [&](const std::string &point) {
           if (point == "in backward b0") API(tpfsdp_unit_pin, unit);
         };
         try {
           m.step(1);
         } catch (const api::Error &) {
           m.at = [](const std::string &) {};
           API(tpfsdp_unit_unpin, unit);
           throw;
         }
       }},
      {"a gather left at the end", "under way at the end of backward: unit(s) b1",
       [](chain::Chain &m) {
         m.backward(m.forward(1));
         tpfsdp_work *work = nullptr;
         API(tpfsdp_fsdp_module_unshard, m.block(1), &work);
         const api::Owned<tpfsdp_work> held(work);
         m.end();
       }},
  };
  for (const Wrong &wrong : calls) {
    if (std::string(wrong.name) == "a gather left at the end") continue;
    expect_told_and_repaired(wrong);
  }
  // This one is a collective, so both ranks make it.
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    const api::Error error = caught([&] { calls.back().call(model); });
    EXPECT_TRUE(error.status == TPFSDP_ERR_STATE || error.status == TPFSDP_ERR_REMOTE);
    EXPECT_THAT(error.what(), HasSubstr(calls.back().text));
    model.reset();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

TEST(WrongCalls, BackwardBeforeAnyForwardIsTold) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    if (rank == 1) {
      const api::Error error = caught([&] { API(tpfsdp_module_pre_backward, model.block(2)); });
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("\"b2\""), HasSubstr("before any forward")));
    } else {
      const api::Error error = caught([&] { model.step(0); });
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);
      EXPECT_THAT(error.what(), HasSubstr("before any forward"));
    }
    model.reset();
    for (int i = 0; i < 2; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(WrongCalls, B051_AViewWithoutPreBackwardIsRefused) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    const Values y = model.forward(0);
    API(tpfsdp_module_pre_backward, model.root());
    EXPECT_EQ(caught([&] { api::face(model.weight(3), TPFSDP_FACE_FULL); }).status, TPFSDP_ERR_STATE);
    tpfsdp_view buffer{};
    const api::Error error = caught([&] { API(tpfsdp_param_get_grad_buffer, model.weight(3), 0, &buffer); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("b2.weight"), HasSubstr("between pre_backward and post_backward of unit b2")));
    // Local refusals; nobody else has to know, and the step goes on.
    model.backward(y);
    const api::Error late = caught([&] { API(tpfsdp_param_grad_ready, model.weight(1)); });
    EXPECT_EQ(late.status, TPFSDP_ERR_STATE);
    model.end();
    model.sgd();
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 1));
    }
  });
}

TEST(WrongCalls, AGradientIsHandedOverWhole) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.forward(0);
    API(tpfsdp_module_pre_backward, model.block(2));
    tpfsdp_param *w = model.weight(3);
    const api::Error early = caught([&] { API(tpfsdp_param_grad_ready, w); });
    EXPECT_EQ(early.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(early.what(), HasSubstr("get_grad_buffer first"));
    Values values(25, 1);
    const std::vector<int64_t> flat{25}, whole{5, 5};
    const tpfsdp_view wrong = api::view(values.data(), TPFSDP_DTYPE_F32, flat);
    const api::Error shape = caught([&] { API(tpfsdp_param_add_grad, w, &wrong); });
    EXPECT_EQ(shape.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(shape.what(), testing::AllOf(HasSubstr("b2.weight"), HasSubstr("(25)"), HasSubstr("(5, 5)")));
    std::vector<int32_t> integers(25, 1);
    const tpfsdp_view integer = api::view(integers.data(), TPFSDP_DTYPE_I32, whole);
    EXPECT_THAT(caught([&] { API(tpfsdp_param_add_grad, w, &integer); }).what(), HasSubstr("i32"));
    model.end();
    EXPECT_FALSE(api::has_grad(w));
    const tpfsdp_view grad = api::view(values.data(), TPFSDP_DTYPE_F32, flat);
    EXPECT_THAT(caught([&] { API(tpfsdp_param_set_grad, w, &grad); }).what(), HasSubstr("local shard (5, 5)"));
  });
}

// Rank 1's grad-reduced callback fails in one step; its peers hear of it before they may open the window.
TEST(CallbackFailures, GradReduced) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    struct Host {
      bool fails = false;
      int calls = 0;
    } host;
    tpfsdp_grad_reduced_callback callback{};
    callback.user = &host;
    callback.call = [](void *user, const tpfsdp_grad_reduced_args *args) -> tpfsdp_status {
      auto &mine = *static_cast<Host *>(user);
      ++mine.calls;
      tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
      if (tpfsdp_param_get_info(args->param, &info, nullptr) != TPFSDP_OK || !info.has_grad) return TPFSDP_ERR_INTERNAL;
      return mine.fails ? -7 : TPFSDP_OK;
    };
    API(tpfsdp_param_set_grad_reduced_callback, model.weight(2), &callback);
    model.step(0);
    EXPECT_EQ(host.calls, 1);
    host.fails = rank == 1;
    const api::Error error = caught([&] { model.step(1); });
    EXPECT_THAT(error.what(), HasSubstr("the grad-reduced callback of b1.weight failed with status -7"));
    EXPECT_EQ(error.status, rank == 1 ? TPFSDP_ERR_CALLBACK : TPFSDP_ERR_REMOTE);
    host.fails = false;
    model.reset();
    for (int i = 1; i < 4; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 4));
    }
    API(tpfsdp_param_set_grad_reduced_callback, model.weight(2), nullptr);
  });
}

}  // namespace
