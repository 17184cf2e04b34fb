// SPDX-License-Identifier: Apache-2.0
// The traces of the protocol's section 8 that apply to a transport, each as a schedule: right here, wrong on the mutant
// of its name.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduled.hpp"

namespace host_test {
namespace {

void expect_clean(const Scheduled &ranks, const Schedule &schedule) {
  EXPECT_TRUE(schedule.followed()) << schedule.where();
  EXPECT_EQ(ranks.violations(), 0U);
  EXPECT_EQ(ranks.fibers.rescues(), 0) << "a rank slept for ever";
}

// Trace 2: r1 has completed its last collective, and its host raises before the end of backward.
TEST(Window, AgreesWithHostFailureAfterLastOp) {
  Scheduled ranks(2);
  Schedule schedule("window_on_done");
  tpfsdp_status window = TPFSDP_OK;
  ranks.run(
      [&](Rank &rank) {
        ASSERT_EQ(rank.barrier(), TPFSDP_OK);
        if (rank.rank == 1) return rank.fail(TPFSDP_ERR_CALLBACK, "the host raised");
        window = rank.window();
      },
      schedule);
  EXPECT_EQ(window, TPFSDP_ERR_REMOTE) << "r0 applied a step that r1 did not";
  expect_clean(ranks, schedule);
}

// Trace 3: r1 finds r0's step short; r0 says step, opens, and fails in its next step; r1 sees that failure.
TEST(Window, LastLookBeatsErrorOfNextStep) {
  Scheduled ranks(2);
  Schedule schedule("no_last_look");
  tpfsdp_status window[2] = {TPFSDP_PENDING, TPFSDP_PENDING};
  ranks.run(
      [&](Rank &rank) {
        ASSERT_EQ(rank.barrier(), TPFSDP_OK);
        window[rank.rank] = rank.window();
        if (rank.rank == 0) rank.fail(TPFSDP_ERR_CALLBACK, "next step");
      },
      schedule);
  EXPECT_EQ(window[0], TPFSDP_OK);
  EXPECT_EQ(window[1], TPFSDP_OK) << "r0 applied a step that r1 did not";
  expect_clean(ranks, schedule);
}

Op gather_of(const Rank &rank, std::vector<float> &in, std::vector<float> &out) {
  in.assign(40, static_cast<float>(rank.rank + 1));
  out.assign(40 * static_cast<size_t>(rank.world), -1);
  return all_gather(rank, in.data(), out.data(), std::vector<int64_t>(static_cast<size_t>(rank.world), 40));
}

// Trace 6: two reductions posted and not completed; both ranks wait for the other's done.
TEST(Reduce, CompletesOwnBeforeWaiting) {
  Scheduled ranks(2);
  Schedule schedule("own_reduce_not_completed");
  ranks.run(
      [&](Rank &rank) {
        std::vector<float> in(80, 1), out(80, -1);
        Op b = reduce_scatter(rank, in.data(), out.data(), {40, 40});
        Op c = reduce_scatter(rank, in.data(), out.data() + 40, {40, 40});
        ASSERT_EQ(rank.submit(b), TPFSDP_OK);
        ASSERT_EQ(rank.submit(c), TPFSDP_OK);
        EXPECT_EQ(rank.wait_read(2), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(out[0], 2.0F);
        EXPECT_EQ(out[79], 2.0F);
      },
      schedule);
  expect_clean(ranks, schedule);
}

// Trace 7: r0 posts, sees all, then fails in the copy; r1 looks at r0's record later.
TEST(Fail, MidReadLeavesThePost) {
  Scheduled ranks(2);
  Schedule schedule("error_overwrites_post");
  tpfsdp_status first = TPFSDP_PENDING, second = TPFSDP_PENDING;
  ranks.run(
      [&](Rank &rank) {
        ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
        if (rank.rank == 0) return rank.fail(TPFSDP_ERR_IO, "in the copy");
        first = rank.complete(1);
        second = rank.barrier();
      },
      schedule);
  EXPECT_EQ(first, TPFSDP_OK) << "one sequence, two verdicts";
  EXPECT_EQ(second, TPFSDP_ERR_REMOTE);
  expect_clean(ranks, schedule);
}

// Trace 9: r0 got MISMATCH on the first comm; r1 waits in a gather on the second. Who resets comm by comm waits for
// ever. The order is the caller's; core/fsdp has the mutant of this name.
TEST(Reset, TwoCommsNoDeadlock) {
  Scheduled ranks(2, 2);
  Schedule schedule("reset_comm_by_comm");
  tpfsdp_status ends[2] = {TPFSDP_PENDING, TPFSDP_PENDING};
  ranks.run(
      [&](Rank &rank) {
        Rank &second = ranks.rank(rank.rank, 1);
        Op op = barrier_op();
        op.op.unit = rank.rank;
        ASSERT_EQ(rank.submit(op), TPFSDP_OK);
        const tpfsdp_status told = rank.rank == 0 ? rank.complete(1) : second.barrier();
        EXPECT_EQ(told, rank.rank == 0 ? TPFSDP_ERR_MISMATCH : TPFSDP_ERR_REMOTE);
#if !defined(TPFSDP_MUTANT_RESET_COMM_BY_COMM)
        table().post_reset(rank.comm, 0);
        table().post_reset(second.comm, 0);
#endif
        ends[rank.rank] = rank.reset();
        if (ends[rank.rank] == TPFSDP_OK) ends[rank.rank] = second.reset();
      },
      schedule);
  EXPECT_EQ(ends[0], TPFSDP_OK) << ranks.rank(0).call.text << ranks.rank(0, 1).call.text;
  EXPECT_EQ(ends[1], TPFSDP_OK) << ranks.rank(1).call.text << ranks.rank(1, 1).call.text;
  expect_clean(ranks, schedule);
}

// Trace 10: r0 has posted a prefetch at 2; r1's failure is 2 as well; r0 waits for r1 to have read 1.
TEST(Fail, PeerWaitsForReaders) {
  Scheduled ranks(2);
  Schedule schedule("error_watched_at_next_only");
  tpfsdp_status read = TPFSDP_PENDING;
  ranks.run(
      [&](Rank &rank) {
        std::vector<float> in, out, in2, out2;
        Op a = gather_of(rank, in, out);
        Op b = gather_of(rank, in2, out2);
        ASSERT_EQ(rank.submit(a), TPFSDP_OK);
        if (rank.rank == 1) {
          table().post_failure(rank.comm, TPFSDP_ERR_CALLBACK, "hook");
          return;  // its give-up comes later
        }
        ASSERT_EQ(rank.submit(b), TPFSDP_OK);
        EXPECT_EQ(rank.complete(1), TPFSDP_ERR_REMOTE) << "r1's own memory is taken back";
        read = rank.wait_read(1);
      },
      schedule);
  EXPECT_EQ(read, TPFSDP_ERR_REMOTE) << ranks.rank(0).call.text;
  expect_clean(ranks, schedule);
}

// Trace 12: a later operation is waited for first; the earlier one must have been read when done says so.
TEST(Reduce, SlotFromRecordInPostingOrder) {
  Scheduled ranks(2);
  Schedule schedule("completed_out_of_order");
  ranks.run(
      [&](Rank &rank) {
        std::vector<float> in(80), out(80, -1), slot(80);
        Op b = reduce_scatter(rank, in.data(), out.data(), {40, 40});
        Op c = reduce_scatter(rank, slot.data(), out.data() + 40, {40, 40});
        in.assign(80, 1);
        slot.assign(80, 10);
        ASSERT_EQ(rank.submit(b), TPFSDP_OK);
        ASSERT_EQ(rank.submit(c), TPFSDP_OK);
        EXPECT_EQ(rank.complete(2), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(out[0], 2.0F) << "done jumped over the first";
        EXPECT_EQ(out[40], 20.0F);
        EXPECT_EQ(rank.wait_read(2), TPFSDP_OK) << rank.call.text;
      },
      schedule);
  expect_clean(ranks, schedule);
}

// Trace 13: r1, woken by r2, does not find r0's CLOSE; r0 posts it and is closed before r1 looks at its life.
TEST(Close, ExitAtOnceIsNotLost) {
  Scheduled ranks(3);
  Schedule schedule("liveness_no_last_look");
  ranks.run(
      [&](Rank &rank) {
        EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
        rank.leave();
      },
      schedule);
  EXPECT_TRUE(schedule.followed()) << schedule.where();
}

// Trace 14: the publisher's look at the sleepers passes its own store.
TEST(Flags, PublishThenSleepNeverMissesWake) {
  Scheduled ranks(2);
  Schedule schedule("publish_without_seq_cst");
  ranks.run(
      [&](Rank &rank) {
        ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
        if (rank.rank == 1) return;
        EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      },
      schedule);
  expect_clean(ranks, schedule);
}

}  // namespace
}  // namespace host_test
