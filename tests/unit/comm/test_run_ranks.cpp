// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.hpp"
#include "comm/run_ranks.hpp"

#include <gtest/gtest.h>

#include <pthread.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>

namespace tpfsdp {
namespace {

template <class Body>
std::shared_ptr<const ErrorDetail> failure_of_run(int32_t ranks, Body &&body, JoinOptions options = {}) {
  try {
    run_ranks(ranks, std::move(options), body);
  } catch (const Failure &failure) {
    return failure.detail();
  }
  ADD_FAILURE() << "nothing failed";
  return std::make_shared<const ErrorDetail>();
}

bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(RunRanks, EachRankOnceOnItsOwnThreadWithSignalsBlocked) {
  std::mutex mutex;
  std::set<int32_t> ranks;
  std::set<std::thread::id> threads;
  run_ranks(6, {}, [&](int32_t rank, int32_t world_size, const Ref<Context> &context) {
    EXPECT_EQ(world_size, 6);
    EXPECT_EQ(context->rank().rank(), rank);
    EXPECT_EQ(context->group().size(), 6);
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_TRUE(sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGTERM));
    barrier(Ref<Group>(&context->group()));
    const std::lock_guard lock(mutex);
    ranks.insert(rank);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ranks.size(), 6u);
  EXPECT_EQ(threads.size(), 6u);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGINT));
}

TEST(RunRanks, SixtyFourRanks) {
  std::atomic<int> ran{0};
  run_ranks(64, {}, [&](int32_t, int32_t, const Ref<Context> &context) {
    barrier(Ref<Group>(&context->group()));
    ++ran;
  });
  EXPECT_EQ(ran, 64);
}

TEST(RunRanks, RefusesNoRanks) {
  EXPECT_EQ(failure_of_run(0, [](int32_t, int32_t, const Ref<Context> &) {})->status, TPFSDP_ERR_INVALID_ARGUMENT);
}

TEST(RunRanks, FirstFailureAbortsTheOthersAndIsTold) {
  std::atomic<int> aborted{0};
  const auto failure = failure_of_run(4, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    if (rank == 2) fail(TPFSDP_ERR_NON_FINITE, "loss is NaN");
    try {
      barrier(Ref<Group>(&context->group()));
    } catch (const Failure &stopped) {
      EXPECT_EQ(stopped.status(), TPFSDP_ERR_ABORTED);
      EXPECT_TRUE(contains(stopped.what(), "rank 2 of 4 failed: loss is NaN")) << stopped.what();
      ++aborted;
      throw;
    }
  });
  EXPECT_EQ(failure->status, TPFSDP_ERR_NON_FINITE);
  EXPECT_EQ(failure->message, "loss is NaN");
  EXPECT_EQ(aborted, 3);
}

TEST(RunRanks, CauseIsToldNotItsConsequence) {
  // The peers return REMOTE before the rank that made the mistake returns.
  std::atomic<int> remote{0};
  ErrorDetail mistake;
  mistake.status = TPFSDP_ERR_CALLBACK;
  mistake.message = "the host's own exception";
  const auto failure = failure_of_run(3, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group(&context->group());
    try {
      if (rank == 1) fail_collective(*group, Failure(mistake));
      barrier(group);
    } catch (const Failure &) {
      if (rank == 1) {
        while (remote < 2) std::this_thread::yield();
      } else {
        ++remote;
      }
      throw;
    }
  });
  EXPECT_EQ(failure->status, TPFSDP_ERR_CALLBACK);
  EXPECT_TRUE(contains(failure->message, "the host's own exception")) << failure->message;
}

TEST(RunRanks, ExceptionsDoNotCross) {
  const auto failure = failure_of_run(2, [](int32_t rank, int32_t, const Ref<Context> &context) {
    if (rank == 0) throw std::runtime_error("thrown by the host");
    barrier(Ref<Group>(&context->group()));
  });
  EXPECT_EQ(failure->status, TPFSDP_ERR_CALLBACK);
  EXPECT_TRUE(contains(failure->message, "rank 0 of 2: its function threw: thrown by the host")) << failure->message;
}

TEST(RunRanks, ThreadThatEndsItselfIsSeenAtOnce) {
  std::atomic<int> aborted{0};
  const auto failure = failure_of_run(3, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    if (rank == 1) pthread_exit(nullptr);
    try {
      barrier(Ref<Group>(&context->group()));
    } catch (const Failure &stopped) {
      EXPECT_EQ(stopped.status(), TPFSDP_ERR_ABORTED);
      ++aborted;
      throw;
    }
  });
  EXPECT_EQ(failure->status, TPFSDP_ERR_CALLBACK);
  EXPECT_TRUE(contains(failure->message, "rank 1 of 3: its function ended the thread")) << failure->message;
  EXPECT_EQ(aborted, 2);
}

TEST(RunRanks, ShutDownByTheRankItselfIsFine) {
  run_ranks(3, {}, [](int32_t, int32_t, const Ref<Context> &context) { context->shutdown(); });
}

TEST(RunRanks, RankThatDoesNotShutDownWithTheOthersIsMissedByThem) {
  JoinOptions options;
  options.rank.arrival_timeout_ms = 200;
  std::atomic<bool> timed_out{false};
  const auto failure = failure_of_run(
      2,
      [&](int32_t rank, int32_t, const Ref<Context> &context) {
        if (rank == 1) {
          while (!timed_out) {
            timed_out = timed_out || context->rank().groups().empty();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            try {
              context->group().check();
            } catch (const Failure &stopped) {
              EXPECT_EQ(stopped.status(), TPFSDP_ERR_TIMEOUT);
              timed_out = true;
            }
          }
        }
      },
      options);
  EXPECT_EQ(failure->status, TPFSDP_ERR_TIMEOUT);
  EXPECT_TRUE(contains(failure->message, "shutdown")) << failure->message;
}

TEST(RunRanks, InterruptIsAskedOnTheCallingThread) {
  JoinOptions options;
  std::atomic<int> asked{0};
  const std::thread::id caller = std::this_thread::get_id();
  options.rank.interrupt = [&](int32_t waited_ms, const char *operation, const char *unit) -> Status {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_GE(waited_ms, 100 * (asked + 1));
    EXPECT_STREQ(operation, "run_ranks");
    EXPECT_STREQ(unit, "");
    return ++asked < 2 ? 0 : -7;
  };
  std::atomic<int> stopped{0};
  const auto failure = failure_of_run(
      3,
      [&](int32_t rank, int32_t, const Ref<Context> &context) {
        const auto wait = [&] { barrier(Ref<Group>(&context->group())); };
        try {
          // Rank 0 computes and only looks in from time to time.
          while (rank == 0) {
            context->group().check();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          wait();
        } catch (const Failure &end) {
          EXPECT_EQ(end.status(), TPFSDP_ERR_ABORTED);
          EXPECT_TRUE(contains(end.what(), "interrupt")) << end.what();
          ++stopped;
          throw;
        }
      },
      options);
  EXPECT_EQ(failure->status, TPFSDP_ERR_CANCELLED);
  EXPECT_EQ(failure->backend_code, -7);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(stopped, 3);
}

TEST(RunRanks, RunsInsideARank) {
  std::atomic<int> inner{0};
  run_ranks(2, {}, [&](int32_t, int32_t, const Ref<Context> &) {
    run_ranks(2, {}, [&](int32_t, int32_t, const Ref<Context> &context) {
      barrier(Ref<Group>(&context->group()));
      ++inner;
    });
  });
  EXPECT_EQ(inner, 4);
}

TEST(Join, TimeoutNamesWhoIsMissing) {
  JoinOptions options;
  options.rank.join_timeout_ms = 100;
  options.world_size = 3;
  options.store = "local:lonely";
  for (int32_t rank : {0, 2}) {
    options.rank.rank = rank;
    try {
      join(options);
      FAIL();
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_TIMEOUT) << failure.what();
      EXPECT_EQ(failure.detail()->operation, "join");
    }
  }
}

TEST(Join, InterruptEndsIt) {
  JoinOptions options;
  options.world_size = 2;
  options.store = "local:interrupted";
  std::atomic<int> asked{0};
  options.rank.interrupt = [&](int32_t, const char *operation, const char *) -> Status {
    EXPECT_STREQ(operation, "joining");
    ++asked;
    return -1;
  };
  for (int32_t rank : {0, 1}) {
    asked = 0;
    options.rank.rank = rank;
    try {
      join(options);
      FAIL();
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_CANCELLED) << failure.what();
    }
    EXPECT_EQ(asked, 1);
  }
}

}  // namespace
}  // namespace tpfsdp
