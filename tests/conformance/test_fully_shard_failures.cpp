// SPDX-License-Identifier: Apache-2.0
// B050: one rank fails somewhere in a step. Its peers hear of it at once, with rank and text; after reset_iter_state on
// all, training goes on as if the failure had never been.
#include "support/chain.hpp"

#include <chrono>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using chain::Values;
using testing::AllOf;

struct Stop {};

// The failing rank reports its own failure and stops; it is STATE from then on.
void fail_here(chain::Chain &model, const std::string &why) {
  API(tpfsdp_root_fail, model.root(), why.c_str());
  const api::Error next = caught([&] { API(tpfsdp_module_pre_forward, model.block(0)); });
  EXPECT_EQ(next.status, TPFSDP_ERR_STATE);
  EXPECT_THAT(next.what(), AllOf(HasSubstr(why), HasSubstr("reset_iter_state")));
  throw Stop();
}

void expect_remote(const api::Error &error, int32_t rank, const std::string &why) {
  EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE) << error.what();
  EXPECT_EQ(error.rank, rank);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr(why)));
}

void expect_no_gradients(const chain::Chain &model) {
  for (const toy::Layer<float> &layer : model.layers) {
    EXPECT_FALSE(api::has_grad(layer.weight)) << layer.name;
    EXPECT_FALSE(api::has_grad(layer.bias)) << layer.name;
  }
}

struct Failing {
  const char *point;
  int32_t world;
};

class FailsAt : public testing::TestWithParam<Failing> {};

TEST_P(FailsAt, TheStepIsRepairedOnEveryRank) {
  const Failing failing = GetParam();
  chain::SharedValues after;
  Meeting meeting(failing.world);
  on_ranks(failing.world, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    const int64_t version = api::unit_info(model.root()).version;
    const bool fails = rank == failing.world - 1;
    if (fails) {
      model.at = [&](const std::string &point) {
        if (point == failing.point) fail_here(model, "no memory at " + point);
      };
    }
    const auto began = std::chrono::steady_clock::now();
    if (fails) {
      EXPECT_THROW(model.step(1), Stop);
    } else {
      expect_remote(caught([&] { model.step(1); }), failing.world - 1, std::string("no memory at ") + failing.point);
      EXPECT_EQ(caught([&] { model.end(); }).status, TPFSDP_ERR_STATE);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(chain::kPatienceMs / 2));
    model.at = [](const std::string &) {};
    meeting.arrive_and_wait();  // who resets first is heard of, too
    model.reset();
    model.expect_idle();
    expect_no_gradients(model);
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 0);
    // No window was opened: the one that step 0 opened is the last that was closed.
    EXPECT_EQ(api::unit_info(model.root()).version, version + 1);
    for (int i = 1; i < 4; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) after = full;
  });
  EXPECT_EQ(after.get(), chain::clean_run(failing.world, 4));
}

INSTANTIATE_TEST_SUITE_P(Points, FailsAt,
                         testing::Values(Failing{"forward b0", 2}, Failing{"in forward b1", 3},
                                         Failing{"forward b2", 2}, Failing{"backward b2", 3},
                                         Failing{"in backward b1", 2}, Failing{"in backward b0", 3}, Failing{"end", 2},
                                         Failing{"end", 3}),
                         [](const auto &tested) {
                           std::string name =
                               tested.param.point + std::string(" of ") + std::to_string(tested.param.world);
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(Failures, BeforeTheFirstStep) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    if (rank == 1) {
      EXPECT_THROW(fail_here(model, "disk is full"), Stop);
    } else {
      expect_remote(caught([&] { model.step(0); }), 1, "disk is full");
    }
    model.reset();
    for (int i = 0; i < 2; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(Failures, TwoRanksAtOnce) {
  Meeting meeting(4);
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    model.at = [&](const std::string &point) {
      if (rank == 1 && point == "backward b1") fail_here(model, "first");
      if (rank == 2 && point == "backward b1") fail_here(model, "second");
    };
    if (rank == 1 || rank == 2) {
      try {
        model.step(1);
        ADD_FAILURE() << "did not fail";
      } catch (const Stop &) {
      } catch (const api::Error &error) {  // heard of the other before it came to fail itself
        EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);
      }
    } else {
      const api::Error error = caught([&] { model.step(1); });
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);
      EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("first"), HasSubstr("second")));
    }
    model.at = [](const std::string &) {};
    model.reset();
    for (int i = 1; i < 4; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(4, 4));
    }
  });
}

TEST(Failures, AgainAndAgainBeforeAnyStepSucceeds) {
  Meeting meeting(3);
  on_ranks(3, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    const std::vector<std::string> points{"end", "forward b0", "in backward b2", "end", "backward b0"};
    for (size_t round = 0; round < points.size(); ++round) {
      const bool fails = rank == static_cast<int32_t>(round % 3);
      model.at = [&](const std::string &point) {
        if (fails && point == points[round]) fail_here(model, "round " + std::to_string(round));
      };
      if (fails) {
        EXPECT_THROW(model.step(0), Stop);
        EXPECT_EQ(caught([&] { API(tpfsdp_root_fail, model.root(), "twice"); }).status, TPFSDP_ERR_STATE);
      } else {
        expect_remote(caught([&] { model.step(0); }), static_cast<int32_t>(round % 3),
                      "round " + std::to_string(round));
      }
      model.at = [](const std::string &) {};
      meeting.arrive_and_wait();
      model.reset();
    }
    model.reset();  // with nothing to repair
    for (int i = 0; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(3, 3));
    }
  });
}

// The rank that fails late has posted everything; only the window is left, and it must open nowhere.
TEST(Failures, AfterTheLastCollectiveNoRankMayApplyTheStep) {
  Meeting meeting(3);
  on_ranks(3, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    model.backward(model.forward(1));
    API(tpfsdp_module_post_backward, model.root());
    if (rank == 2) {
      API(tpfsdp_root_fail, model.root(), "loss is not finite");
    } else {
      expect_remote(caught([&] { model.end(); }), 2, "loss is not finite");
      EXPECT_EQ(caught([&] { model.end(); }).status, TPFSDP_ERR_STATE);
    }
    meeting.arrive_and_wait();
    model.reset();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(3, 3));
    }
  });
}

TEST(Failures, reset_iter_state_after_exception) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    // Every rank leaves its forward by an exception of the host at the same place, and says nothing.
    model.at = [](const std::string &point) {
      if (point == "in forward b1") throw Stop();
    };
    EXPECT_THROW(model.step(0), Stop);
    model.at = [](const std::string &) {};
    model.reset();
    model.expect_idle();
    for (int i = 0; i < 2; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(Failures, ResetIsForTheRoot) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    const api::Error error = caught([&] { API(tpfsdp_fsdp_module_reset_iter_state, model.block(1)); });
    EXPECT_EQ(error.status, TPFSDP_ERR_STATE);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"b1\""), HasSubstr("the root is \"<root>\"")));
    model.step(1);
  });
}

TEST(Failures, AreReportedOnAnyModuleOfTheTree) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 2});
    model.step(0);
    if (rank == 1) {
      API(tpfsdp_root_fail, model.block(1), "block one is out");
      EXPECT_EQ(caught([&] { API(tpfsdp_root_fail, model.root(), "twice"); }).status, TPFSDP_ERR_STATE);
    } else {
      expect_remote(caught([&] { model.step(1); }), 1, "block one is out");
    }
    model.reset();
    model.step(1);
    EXPECT_EQ(caught([&] { API(tpfsdp_root_fail, model.tree.module(), "nothing there"); }).status, TPFSDP_ERR_STATE);
  });
}

TEST(Failures, TwoRootsOfOneContextFailApart) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain first(context, rank), second(context, rank, {.blocks = 1});
    first.step(0);
    second.step(0);
    if (rank == 1) {
      first.forward(1);
      API(tpfsdp_root_fail, first.root(), "first failed");
    } else {
      expect_remote(caught([&] { first.step(1); }), 1, "first failed");
    }
    first.reset();
    for (int i = 1; i < 3; ++i) {
      second.step(i);
      first.step(i);
    }
    const Values a = first.full(), b = second.full();
    if (rank == 0) {
      EXPECT_EQ(a, chain::clean_run(2, 3));
      EXPECT_EQ(b, chain::clean_run(2, 3, {.blocks = 1}));
    }
  });
}

TEST(Failures, WhatWasStartedBeforeAResetIsGivenUp) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    API(tpfsdp_root_prepare, model.root());
    tpfsdp_work *work = nullptr;
    API(tpfsdp_fsdp_module_unshard, model.block(0), &work);
    const api::Owned<tpfsdp_work> held(work);
    tpfsdp_scope *old = nullptr, *scope = nullptr;
    tpfsdp_module *block = model.block(1);
    API(tpfsdp_scope_open, &block, 1, nullptr, &old);
    model.reset();
    EXPECT_EQ(caught([&] { API(tpfsdp_work_wait, work, nullptr); }).status, TPFSDP_ERR_CANCELLED);
    model.expect_idle();
    // B052: a scope of the step that was given up does not close one that was opened since.
    API(tpfsdp_scope_open, &block, 1, nullptr, &scope);
    API(tpfsdp_scope_close, old);
    EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    API(tpfsdp_scope_close, scope);
    EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_SHARDED);
    tpfsdp_handle_release(old);
    tpfsdp_handle_release(scope);
    model.step(0);
  });
}

// Values of a checkpoint are put back before anything else is gathered: the last collective was one that failed.
TEST(Failures, ShardsAreWrittenRightAfterAReset) {
  on_ranks(3, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    try {
      if (rank == 1)
        model.at = [&](const std::string &at) { return at == "in forward b1" ? fail_here(model, "x") : void(); };
      model.forward(1);
      model.end();
      ADD_FAILURE() << "nothing failed";
    } catch (const Stop &) {
    } catch (const api::Error &error) {
      expect_remote(error, 1, "x");
    }
    model.reset();
    API(tpfsdp_shards_begin_write, model.root());
    for (const toy::Layer<float> &layer : model.layers) {
      for (tpfsdp_param *param : {layer.weight, layer.bias}) {
        const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD);
        std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), 3.0f);
      }
    }
    API(tpfsdp_shards_end_write, model.root());
    const Values full = model.full();
    EXPECT_EQ(full, Values(full.size(), 3));
  });
}

}  // namespace
