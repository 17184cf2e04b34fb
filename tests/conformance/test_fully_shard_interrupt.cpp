// SPDX-License-Identifier: Apache-2.0
// Ctrl-C in every kind of wait: CANCELLED here, REMOTE on the peers, and training goes on after a reset. Where nothing
// was posted, the call can simply be made again.
#include "support/chain.hpp"

#include <atomic>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Interrupt;
using chain::Meeting;
using chain::on_ranks;
using chain::Values;

// Rank 0 waits at `point` of step 1 for rank 1, which stays away until rank 0 was cancelled.
void cancel_at(const std::string &point) {
  SCOPED_TRACE(point);
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    if (rank == 0) {
      Interrupt interrupt(context);
      const api::Error error = caught([&] { model.step(1); });
      EXPECT_EQ(error.status, TPFSDP_ERR_CANCELLED) << error.what();
      EXPECT_NE(interrupt.operation, "");
      meeting.arrive_and_wait();
    } else {
      bool is_late = true;
      model.at = [&](const std::string &here) {
        if (here == point && std::exchange(is_late, false)) meeting.arrive_and_wait();
      };
      const api::Error error = caught([&] { model.step(1); });
      EXPECT_FALSE(is_late);
      EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE) << error.what();
      EXPECT_EQ(error.rank, 0);
      EXPECT_THAT(error.what(), HasSubstr("CANCELLED"));
    }
    model.at = [](const std::string &) {};
    model.reset();
    model.expect_idle();
    for (int i = 1; i < 4; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 4));
    }
  });
}

TEST(InterruptOf, AGatherInForward) { cancel_at("forward b1"); }
TEST(InterruptOf, AGatherInBackward) { cancel_at("backward b2"); }
TEST(InterruptOf, AReductionAtTheEnd) { cancel_at("end"); }

TEST(InterruptOf, TheComparisonAtTheStart) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    if (rank == 0) {
      const Interrupt interrupt(context);
      EXPECT_EQ(caught([&] { API(tpfsdp_root_prepare, model.root()); }).status, TPFSDP_ERR_CANCELLED);
      meeting.arrive_and_wait();
    } else {
      meeting.arrive_and_wait();
      // What rank 0 had posted before it was cancelled is there, so this rank may have compared.
      EXPECT_EQ(caught([&] { model.step(0); }).status, TPFSDP_ERR_REMOTE);
    }
    model.reset();
    for (int i = 0; i < 2; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(InterruptOf, TheWindowPostsNothingAndTheCallIsMadeAgain) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.backward(model.forward(0));
    API(tpfsdp_module_post_backward, model.root());  // the last reduction of this rank
    if (rank == 0) {
      Interrupt interrupt(context);
      for (int i = 0; i < 2; ++i) {
        const api::Error error = caught([&] { model.end(); });
        EXPECT_EQ(error.status, TPFSDP_ERR_CANCELLED) << error.what();
      }
      // The peer may be inside its window from now on: nothing of this tree may read shards or write them.
      for (const auto &call :
           std::vector<std::function<void()>>{[&] { API(tpfsdp_module_pre_forward, model.root()); },
                                              [&] { API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr); },
                                              [&] { API(tpfsdp_shards_begin_write, model.root()); }}) {
        const api::Error early = caught(call);
        EXPECT_EQ(early.status, TPFSDP_ERR_STATE) << early.what();
        EXPECT_THAT(early.what(), testing::AllOf(HasSubstr("end_backward"), HasSubstr("call it again")));
      }
      meeting.arrive_and_wait();
      interrupt.is_on = false;
      model.end();
    } else {
      meeting.arrive_and_wait();
      model.end();  // hears of nothing
    }
    model.sgd();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

TEST(InterruptOf, BeginWritePostsNothingAndTheCallIsMadeAgain) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.options = api::privately()});
    model.step(0);
    tpfsdp_work *work = nullptr;
    API(tpfsdp_fsdp_module_unshard, model.block(0), &work);
    const api::Owned<tpfsdp_work> held(work);
    if (rank == 0) {
      API(tpfsdp_work_wait, work, nullptr);
      Interrupt interrupt(context);
      EXPECT_EQ(caught([&] { API(tpfsdp_shards_begin_write, model.root()); }).status, TPFSDP_ERR_CANCELLED);
      meeting.arrive_and_wait();
      interrupt.is_on = false;
      API(tpfsdp_shards_begin_write, model.root());
      API(tpfsdp_shards_end_write, model.root());
    } else {
      meeting.arrive_and_wait();  // it has not read rank 0's rows until here
      API(tpfsdp_work_wait, work, nullptr);
      API(tpfsdp_shards_begin_write, model.root());
      API(tpfsdp_shards_end_write, model.root());
    }
    API(tpfsdp_fsdp_module_reshard, model.block(0));
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

TEST(InterruptOf, AResetGoesOnWhenItIsCalledAgain) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank);
    model.step(0);
    if (rank == 0) {
      API(tpfsdp_root_fail, model.root(), "stopped by hand");
      Interrupt interrupt(context);
      for (int i = 0; i < 2; ++i) EXPECT_EQ(caught([&] { model.reset(); }).status, TPFSDP_ERR_CANCELLED);
      EXPECT_EQ(caught([&] { API(tpfsdp_module_pre_forward, model.root()); }).status, TPFSDP_ERR_STATE);
      meeting.arrive_and_wait();
      interrupt.is_on = false;
    } else {
      meeting.arrive_and_wait();
      EXPECT_EQ(caught([&] { model.step(1); }).status, TPFSDP_ERR_REMOTE);
    }
    model.reset();
    for (int i = 1; i < 3; ++i) model.step(i);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3));
    }
  });
}

}  // namespace
