// SPDX-License-Identifier: Apache-2.0
// After a failure the ranks agree on a fresh start, whatever each had posted.
#include <gtest/gtest.h>

#include <string>

#include "backends/host/comm.hpp"
#include "ranks.hpp"

namespace host_test {
namespace {

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(Reset, AbsorbsErrorsAndOps) {
  run_ranks(4, [](Rank &rank) {
    for (int round = 0; round < 25; ++round) {
      // Each rank is somewhere else: with ops in flight, failed, or at the reset already.
      const int ops = (rank.rank * 5 + round) % 7;
      for (int i = 0; i < ops; ++i) ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK) << rank.call.text;
      if ((rank.rank + round) % 3 == 0) rank.fail(TPFSDP_ERR_CALLBACK, "hook");
      ASSERT_EQ(rank.reset(round), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Reset, PeerInACollectiveIsTold) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 0) {
      EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "rank 0 is resetting")) << rank.call.text;
      EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    }
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Reset, InterruptedGoesOn) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 0) {
      rank.call.interrupted = true;
      table().post_reset(rank.comm, 0);
      tpfsdp_bool all = 0;
      EXPECT_EQ(table().wait_reset(rank.call.handle(), rank.comm, 1, &all), TPFSDP_ERR_CANCELLED);
      EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_STATE) << "the reset has not ended";
      rank.call.interrupted = false;
    } else {
      Store unused;
      for (int i = 0; i < 3; ++i) {
        tpfsdp_backend_peer peer{};
        peer.struct_size = sizeof peer;
        do EXPECT_EQ(table().comm_get_peer(rank.comm, 0, &peer), TPFSDP_OK);
        while (peer.posted == 0);
      }
      const int64_t until = services().clock_ns() + 250'000'000;
      while (services().clock_ns() < until) {
      }
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 2) << "one RESET was enough";
    EXPECT_EQ(rank.complete(rank.last), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Reset, UnequalStepsReported) {
  run_ranks(3, [](Rank &rank) {
    EXPECT_EQ(rank.reset(rank.rank == 2 ? 41 : 40), TPFSDP_ERR_STATE);
    EXPECT_TRUE(has(rank.call.text, "rank 2 applied 41") && has(rank.call.text, "rank 0 applied 40")) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Reset, WithPeerClosed) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 0) {
      EXPECT_TRUE(rank.shutdown() < 0);
    } else {
      EXPECT_TRUE(rank.reset() < 0);
      EXPECT_EQ(rank.call.status, TPFSDP_ERR_ABORTED);
      EXPECT_TRUE(has(rank.call.text, "rank 0 shut down comm 'world'")) << rank.call.text;
    }
  });
}

TEST(Reset, EpochAdvancesEverywhere) {
  run_ranks(2, [](Rank &rank) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(rank.reset(), TPFSDP_OK);
    Op op = barrier_op();
    op.op.unit = rank.rank;
    EXPECT_EQ(rank.run(op), TPFSDP_ERR_MISMATCH);
    EXPECT_TRUE(has(rank.call.text, "epoch 3")) << rank.call.text;
    EXPECT_FALSE(has(rank.call.text, "epoch 2")) << rank.call.text;
  });
}

TEST(Reset, EpochEqual) {
  // Rank 1 has missed a reset. No collective moves a byte, and the next reset says so instead of going on.
  run_ranks(3, [](Rank &rank) {
    for (int i = 0; i < 2; ++i) ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) --reinterpret_cast<tpfsdp::host::Comm *>(rank.comm)->epoch;
    EXPECT_EQ(rank.barrier(), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_TRUE(has(rank.call.text, "epoch 2") && has(rank.call.text, "epoch 1")) << rank.call.text;
    EXPECT_EQ(rank.reset(), TPFSDP_ERR_INTERNAL);
    EXPECT_TRUE(has(rank.call.text, "RESET_EQUAL") && has(rank.call.text, "at epoch 2") &&
                has(rank.call.text, "at epoch 1") && has(rank.call.text, "rank 1"))
        << rank.call.text;
    EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_INTERNAL) << "it sticks";
  });
}

TEST(Reset, TwoCommsNoDeadlock) {
  Store store;
  run_ranks(2, [&](Rank &rank) {
    Rank second(rank.rank, 2, &store);
    Options options;
    options.name = "replicas";
    ASSERT_EQ(second.join(options), TPFSDP_OK) << second.call.text;
    for (int round = 0; round < 50; ++round) {
      // Rank 0 fails on both; rank 1 is in a collective of the second.
      if (rank.rank == 0) {
        table().post_failure(rank.comm, TPFSDP_ERR_CALLBACK, "hook");
        table().post_failure(second.comm, TPFSDP_ERR_CALLBACK, "hook");
        table().give_up(rank.comm);
        table().give_up(second.comm);
      } else {
        EXPECT_EQ(second.barrier(), TPFSDP_ERR_REMOTE);
      }
      table().post_reset(rank.comm, 0);
      table().post_reset(second.comm, 0);
      ASSERT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(second.reset(), TPFSDP_OK) << second.call.text;
      ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(second.barrier(), TPFSDP_OK) << second.call.text;
    }
  });
}

}  // namespace
}  // namespace host_test
