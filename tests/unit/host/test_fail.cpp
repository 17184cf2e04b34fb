// SPDX-License-Identifier: Apache-2.0
// A failure of one rank reaches the others in place of its next sequence; the comm stays usable.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(Fail, BeforePost) {
  run_ranks(3, [](Rank &rank) {
    if (rank.rank == 1) {
      rank.fail(TPFSDP_ERR_CALLBACK, "the host's hook raised");
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_EQ(rank.call.at_fault, 1);
      EXPECT_EQ(rank.call.sequence, 1);
      EXPECT_TRUE(has(rank.call.text, "the host's hook raised") && has(rank.call.text, "CALLBACK") &&
                  has(rank.call.text, "barrier at sequence 1 on comm 'world'") && has(rank.call.text, "reset on every"))
          << rank.call.text;
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_REMOTE) << "asked again, the same error";
    }
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, AfterPostIsTheNextSequence) {
  run_ranks(2, [](Rank &rank) {
    ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_CANCELLED, "stopped by hand");
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_CANCELLED);
    } else {
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "stopped by hand")) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, MidRead) {
  // The reduction fails in the second of three chunks on rank 1, whose post everybody has read by then or will.
  constexpr int64_t PART = 600'000;
  static thread_local bool fails_here = false;
  std::atomic<int> chunks{0}, fired{0};
  hooks().before_reduce = [&]() -> tpfsdp_status {
    if (!fails_here || ++chunks != 2) return TPFSDP_OK;
    ++fired;
    return TPFSDP_ERR_IO;
  };
  run_ranks(3, [&](Rank &rank) {
    void *data = nullptr;
    tpfsdp_backend_region *region = nullptr;
    ASSERT_EQ(table().region_create(rank.call.handle(), rank.comm, 3 * PART * 4, &data, &region), TPFSDP_OK);
    auto *in = static_cast<float *>(data);
    std::fill(in, in + 3 * PART, static_cast<float>(rank.rank + 1));
    std::vector<float> out(PART, -1);
    Op op = reduce_scatter(rank, in, out.data(), {PART, PART, PART}, region);
    fails_here = rank.rank == 1;
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_IO);
      EXPECT_EQ(rank.call.sequence, 1);
      EXPECT_TRUE(has(rank.call.text, "reducing f32")) << rank.call.text;
      EXPECT_EQ(out[PART - 1], -1.0F) << "went on after the failure";
      rank.fail(TPFSDP_ERR_IO, "the copy broke");
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_IO) << "asked again, the same error";
    } else {
      EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(out, std::vector<float>(PART, 6));
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_EQ(rank.call.at_fault, 1);
      EXPECT_EQ(rank.call.sequence, 2);
      EXPECT_TRUE(has(rank.call.text, "the copy broke")) << rank.call.text;
    }
    fails_here = false;
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(out, std::vector<float>(PART, 6));
    table().region_destroy(region);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK) << rank.call.text;
  });
  hooks() = {};
  EXPECT_EQ(fired, 1);
}

TEST(Fail, UnreadErrorBehindACollectiveIsTheOnlyOne) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_CALLBACK, "first");
      ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK) << rank.call.text;
      tpfsdp_backend_peer other{};
      other.struct_size = sizeof other;
      ASSERT_EQ(table().comm_get_peer(rank.comm, 1, &other), TPFSDP_OK);
      if (other.posted == 0) {
        rank.fail(TPFSDP_ERR_CALLBACK, "second");
        EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_OK) << rank.call.text;
      }
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "first")) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, WithPrefetchOutstanding) {
  run_ranks(3, [](Rank &rank) {
    for (int i = 0; i < 3 + rank.rank; ++i) ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_OUT_OF_MEMORY, "no room");
    } else {
      EXPECT_EQ(rank.complete(3), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(rank.complete(4), TPFSDP_ERR_REMOTE);
      EXPECT_EQ(rank.call.at_fault, 0);
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, TwoRanksAtOnceLowestIsNamed) {
  run_ranks(3, [](Rank &rank) {
    if (rank.rank != 1) {
      rank.fail(TPFSDP_ERR_IO, rank.rank == 0 ? "disk zero" : "disk two");
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_EQ(rank.call.at_fault, 0);
      EXPECT_TRUE(has(rank.call.text, "disk zero")) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, TwiceBeforeVerdict) {
  run_ranks(2, [](Rank &rank) {
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_CALLBACK, "first");
      tpfsdp_backend_peer peer{};
      peer.struct_size = sizeof peer;
      EXPECT_EQ(table().comm_get_peer(rank.comm, 0, &peer), TPFSDP_OK);
      const int64_t posted = peer.posted;
      tpfsdp_backend_peer other{};
      other.struct_size = sizeof other;
      EXPECT_EQ(table().comm_get_peer(rank.comm, 1, &other), TPFSDP_OK);
      if (other.posted == 0) {
        rank.fail(TPFSDP_ERR_CALLBACK, "second");
        EXPECT_EQ(table().comm_get_peer(rank.comm, 0, &peer), TPFSDP_OK);
        EXPECT_LE(peer.posted, posted + 1);
      }
    } else {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, "first")) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, PeerThatWaitsForReadersIsTold) {
  run_ranks(2, [](Rank &rank) {
    std::vector<float> data(100, 1), out(200);
    Op op = all_gather(rank, data.data(), out.data(), {100, 100});
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    if (rank.rank == 1) {
      // Posted, never completed, then failed: rank 0 waits for its done, which the give-up publishes; but not before
      // the failure.
      table().post_failure(rank.comm, TPFSDP_ERR_CALLBACK, "hook");
      table().give_up(rank.comm);
    } else {
      const tpfsdp_status own = rank.complete(1);
      EXPECT_TRUE(own == TPFSDP_OK || own == TPFSDP_ERR_REMOTE) << rank.call.text;
      const tpfsdp_status read = rank.wait_read(1);
      EXPECT_TRUE(read == TPFSDP_OK || read == TPFSDP_ERR_REMOTE) << rank.call.text;
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Fail, ArgumentsAreRefusedAndNothingIsPosted) {
  run_ranks(2, [](Rank &rank) {
    float x = 0;
    Op no_output = all_reduce(&x, nullptr, 1);
    EXPECT_EQ(rank.submit(no_output), TPFSDP_ERR_INVALID_ARGUMENT);
    Op no_root = broadcast(2, &x, &x, 1);
    EXPECT_EQ(rank.submit(no_root), TPFSDP_ERR_INVALID_ARGUMENT);
    Op outside = all_gather(rank, &x, &x, {1, 1});
    outside.pieces[0].count = 3;
    EXPECT_EQ(rank.submit(outside), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.complete(1), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 1);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

TEST(Post, TextSurvivesUntilVerdict) {
  const std::string long_text(3000, 'x');
  std::atomic<bool> posted{false};
  run_ranks(2, [&](Rank &rank) {
    for (int i = 0; i < 7; ++i) ASSERT_EQ(rank.submit(barrier_op()), TPFSDP_OK);
    if (rank.rank == 0) {
      rank.fail(TPFSDP_ERR_IO, long_text.c_str());
      table().post_reset(rank.comm, 0);
      posted = true;
    } else {
      while (!posted) {
      }
      EXPECT_EQ(rank.complete(7), TPFSDP_OK) << rank.call.text;
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
      EXPECT_TRUE(has(rank.call.text, std::string(1023, 'x'))) << rank.call.text;
      EXPECT_FALSE(has(rank.call.text, std::string(1024, 'x')));
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Post, FailuresWithoutResetStayWithinTheRing) {
  run_ranks(3, [](Rank &rank) {
    for (int round = 0; round < 60; ++round) {
      if (round % 3 == rank.rank) {
        rank.fail(TPFSDP_ERR_CALLBACK, ("round " + std::to_string(round)).c_str());
        // As a host that goes on without reset: it must not run away from peers.
        if (rank.barrier() == TPFSDP_OK) continue;
      } else {
        const tpfsdp_status status = rank.barrier();
        ASSERT_TRUE(status == TPFSDP_OK || status == TPFSDP_ERR_REMOTE) << rank.call.text;
      }
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Post, FormsThatNeverWait) {
  run_ranks(3, [](Rank &rank) {
    std::vector<float> data(300);
    for (int round = 0; round < 50; ++round) {
      std::fill(data.begin(), data.end(), static_cast<float>(rank.rank));
      Op op = all_reduce(data.data(), data.data(), 300);
      tpfsdp_status status = TPFSDP_PENDING;
      while ((status = rank.submit(op, false)) == TPFSDP_PENDING) {
      }
      ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
      while ((status = rank.complete(rank.last, false)) == TPFSDP_PENDING) {
      }
      ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(rank.last, 2 * round + 2);
      while ((status = rank.wait_read(rank.last, false)) == TPFSDP_PENDING) {
      }
      ASSERT_EQ(status, TPFSDP_OK) << rank.call.text;
      ASSERT_EQ(data[299], 3.0F);
    }
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

}  // namespace
}  // namespace host_test
