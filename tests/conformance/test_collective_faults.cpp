// SPDX-License-Identifier: Apache-2.0
// What every rank sees when one of them fails, disagrees, stops, leaves or never comes; and that the group works again
// afterwards, or that it says for ever why not.
#include "conformance/ranks.hpp"
#include "support/shared.hpp"

#include <chrono>

namespace {

using ranks::Error;
using ranks::Rank;
using Clock = std::chrono::steady_clock;

bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// The group gives right results: each rank's number, gathered.
void expect_right(const Rank &me) {
  const std::vector<int32_t> mine = {me.rank + 100};
  std::vector<int32_t> all(static_cast<size_t>(me.world), -1), expected;
  for (int32_t rank = 0; rank < me.world; ++rank) expected.push_back(rank + 100);
  const int64_t one = 1, world = me.world;
  const tpfsdp_view input = ranks::view(mine.data(), TPFSDP_DTYPE_I32, one);
  const tpfsdp_view output = ranks::view(all.data(), TPFSDP_DTYPE_I32, world);
  Error error;
  EXPECT_EQ(tpfsdp_group_all_gather(me.group, &input, &output, nullptr, 0, nullptr, nullptr, &error), TPFSDP_OK)
      << error.text();
  EXPECT_EQ(all, expected) << "rank " << me.rank;
}

void reset_and_expect_right(const Rank &me) {
  Error error;
  ASSERT_EQ(tpfsdp_group_reset(me.group, &error), TPFSDP_OK) << error.text();
  expect_right(me);
}

tpfsdp_context_options with_timeout(int32_t arrival_timeout_ms) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.arrival_timeout_ms = arrival_timeout_ms;
  return options;
}

// Memory for collectives of up to 64 ranks.
struct Memory {
  std::vector<double> input = std::vector<double>(4096, 1.5), output = std::vector<double>(4096);
};

// A collective of a rank; `odd` is what one rank does otherwise.
using Call = std::function<tpfsdp_status(const Rank &, bool odd, Memory &, tpfsdp_error **)>;
struct Disagreement {
  const char *field;
  Call call;
  std::vector<std::string> texts;  // what the error must show
};

Call reduce_call(int64_t count, int64_t odd_count, tpfsdp_dtype dtype, tpfsdp_dtype odd_dtype, tpfsdp_reduce_op op,
                 tpfsdp_reduce_op odd_op) {
  return [=](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    const int64_t n = odd ? odd_count : count;
    const tpfsdp_view input = ranks::view(memory.input.data(), odd ? odd_dtype : dtype, n);
    const tpfsdp_view output = ranks::view(memory.output.data(), odd ? odd_dtype : dtype, n);
    return tpfsdp_group_all_reduce(me.group, &input, &output, odd ? odd_op : op, nullptr, nullptr, error);
  };
}

std::vector<Disagreement> disagreements() {
  constexpr auto kF32 = TPFSDP_DTYPE_F32, kI32 = TPFSDP_DTYPE_I32;
  constexpr auto kSum = TPFSDP_REDUCE_SUM, kMax = TPFSDP_REDUCE_MAX;
  const auto broadcast = [](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    const int64_t count = 100;
    const tpfsdp_view data = ranks::view(memory.input.data(), kF32, count);
    return tpfsdp_group_broadcast(me.group, &data, odd ? 1 : 0, nullptr, nullptr, error);
  };
  const auto gather = [](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    // The same total, cut otherwise: rank `me` has 4 elements in both.
    std::vector<int64_t> counts(static_cast<size_t>(me.world), 4);
    if (odd) {
      counts[static_cast<size_t>((me.rank + 1) % me.world)] = 5;
      counts[static_cast<size_t>((me.rank + 2) % me.world)] = 3;
    }
    const int64_t own = 4, all = 4 * me.world;
    const tpfsdp_view input = ranks::view(memory.input.data(), kF32, own);
    const tpfsdp_view output = ranks::view(memory.output.data(), kF32, all);
    return tpfsdp_group_all_gather(me.group, &input, &output, counts.data(), me.world, nullptr, nullptr, error);
  };
  const auto kind = [](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    if (odd) return tpfsdp_group_barrier(me.group, error);
    return reduce_call(10, 10, kF32, kF32, kSum, kSum)(me, false, memory, error);
  };
  return {{"kind", kind, {"all-reduce", "barrier"}},
          {"op", reduce_call(10, 10, kF32, kF32, kSum, kMax), {}},
          {"op of a large one", reduce_call(1000, 1000, kF32, kF32, kSum, kMax), {}},
          {"dtype", reduce_call(10, 10, kF32, kI32, kSum, kSum), {"f32", "i32"}},
          {"count", reduce_call(10, 11, kF32, kF32, kSum, kSum), {"10", "11"}},
          {"count of a large one", reduce_call(1000, 1001, kF32, kF32, kSum, kSum), {"1000", "1001"}},
          {"source", broadcast, {}},
          {"counts", gather, {}}};
}

TEST(Faults, RanksThatDisagreeAllGetMismatch) {
  int runs = 0;
  for (const Disagreement &disagreement : disagreements()) {
    for (int32_t odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(std::string(disagreement.field) + ", rank " + std::to_string(odd));
      const tpfsdp_status end = ranks::run_library(3, [&](const Rank &me) {
        Memory memory;
        const std::vector<double> before = memory.output;
        Error error;
        EXPECT_EQ(disagreement.call(me, me.rank == odd, memory, &error), TPFSDP_ERR_MISMATCH) << disagreement.field;
        for (const std::string &text : disagreement.texts) EXPECT_TRUE(contains(error.text(), text)) << error.text();
        EXPECT_TRUE(contains(error.text(), "rank " + std::to_string(odd))) << error.text();
        EXPECT_EQ(error.info().sequence, 1);
        EXPECT_EQ(error.info().is_sticky, 0);
        EXPECT_STREQ(error.info().group, "world");
        EXPECT_EQ(memory.output, before) << "bytes moved before the verdict";
        reset_and_expect_right(me);
        return TPFSDP_OK;
      });
      EXPECT_EQ(end, TPFSDP_OK);
      ++runs;
    }
  }
  EXPECT_EQ(runs, 24);
}

// A mistake in the arguments of one rank.
struct Mistake {
  const char *what;
  tpfsdp_status status;
  Call call;
  std::string text;
};

std::vector<Mistake> mistakes() {
  const auto gather = [](auto change) -> Call {
    return [change](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
      int64_t own = 4, all = 4 * me.world, read_only = 0;
      tpfsdp_stream stream = {TPFSDP_DEVICE_CPU, 0, nullptr};
      std::vector<int64_t> counts;
      tpfsdp_view input = ranks::view(memory.input.data(), TPFSDP_DTYPE_F32, own);
      tpfsdp_view output = ranks::view(memory.output.data(), TPFSDP_DTYPE_F32, all);
      const tpfsdp_view *in = &input;
      if (odd) change(in, input, output, counts, stream, memory);
      output.read_only |= static_cast<tpfsdp_bool>(read_only);
      return tpfsdp_group_all_gather(me.group, in, &output, counts.data(), static_cast<int64_t>(counts.size()), &stream,
                                     nullptr, error);
    };
  };
  using View = tpfsdp_view;
  using Counts = std::vector<int64_t>;
  static const int64_t three = 3;
  static const int64_t strides[1] = {2};
  const auto reduce = [](tpfsdp_dtype dtype, tpfsdp_reduce_op op, int64_t offset) -> Call {
    return [=](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
      const int64_t count = 100;
      const tpfsdp_dtype used = odd ? dtype : TPFSDP_DTYPE_F32;
      const tpfsdp_view input = ranks::view(memory.input.data(), used, count);
      const tpfsdp_view output = ranks::view(odd ? memory.input.data() + offset : memory.output.data(), used, count);
      return tpfsdp_group_all_reduce(me.group, &input, &output, odd ? op : TPFSDP_REDUCE_SUM, nullptr, nullptr, error);
    };
  };
  const Call scatter = [](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    const int64_t part = 5, all = 5 * me.world + (odd ? 1 : 0);
    const tpfsdp_view input = ranks::view(memory.input.data(), TPFSDP_DTYPE_F32, all);
    const tpfsdp_view output = ranks::view(memory.output.data(), TPFSDP_DTYPE_F32, part);
    return tpfsdp_group_reduce_scatter(me.group, &input, &output, TPFSDP_REDUCE_SUM, nullptr, nullptr, error);
  };
  const Call broadcast = [](const Rank &me, bool odd, Memory &memory, tpfsdp_error **error) {
    const int64_t count = 100;
    const tpfsdp_view data = ranks::view(memory.input.data(), TPFSDP_DTYPE_F32, count);
    return tpfsdp_group_broadcast(me.group, &data, odd ? me.world : 0, nullptr, nullptr, error);
  };
  constexpr auto kArgument = TPFSDP_ERR_INVALID_ARGUMENT, kUnsupported = TPFSDP_ERR_UNSUPPORTED;
  return {
      {"NULL input", kArgument,
       gather([](const View *&in, View &, View &, Counts &, tpfsdp_stream &, Memory &) { in = nullptr; }),
       "input is NULL"},
      {"input of another size", kArgument,
       gather([](const View *&, View &in, View &, Counts &, tpfsdp_stream &, Memory &memory) {
         in = ranks::view(memory.input.data(), TPFSDP_DTYPE_F32, three);
       }),
       "output has 12 elements, the parts of 3 ranks have 9"},
      {"other dtypes", kArgument, gather([](const View *&, View &in, View &, Counts &, tpfsdp_stream &, Memory &) {
         in.dtype = TPFSDP_DTYPE_I32;
       }),
       "input is i32, output is f32"},
      {"counts of another length", kArgument,
       gather([](const View *&, View &, View &, Counts &counts, tpfsdp_stream &, Memory &) { counts = {4, 4}; }),
       "counts has 2 entries"},
      {"counts without this rank's", kArgument,
       gather([](const View *&, View &, View &, Counts &counts, tpfsdp_stream &, Memory &) { counts = {3, 3, 3}; }),
       "input has 4 elements, counts["},
      {"negative counts", kArgument,
       gather([](const View *&, View &, View &, Counts &counts, tpfsdp_stream &, Memory &) { counts = {4, 12, -4}; }),
       "is -4"},
      {"strides", kUnsupported,
       gather([](const View *&, View &in, View &, Counts &, tpfsdp_stream &, Memory &) { in.strides = strides; }),
       "strides are (2)"},
      {"stream of another device", kUnsupported,
       gather([](const View *&, View &, View &, Counts &, tpfsdp_stream &stream, Memory &) {
         stream.device_type = TPFSDP_DEVICE_CUDA;
       }),
       "device type 2"},
      {"read-only output", kArgument,
       gather([](const View *&, View &, View &out, Counts &, tpfsdp_stream &, Memory &) { out.read_only = 1; }),
       "output is read-only"},
      {"overlap", kArgument, gather([](const View *&, View &in, View &out, Counts &, tpfsdp_stream &, Memory &) {
         in.data = static_cast<float *>(out.data) + 1;
       }),
       "input and output overlap"},
      {"no reduction", kArgument, reduce(TPFSDP_DTYPE_F32, 9, 1000), "op is 9"},
      {"a dtype that cannot be reduced", kUnsupported, reduce(TPFSDP_DTYPE_BOOL, TPFSDP_REDUCE_SUM, 1000),
       "bool cannot be reduced by SUM"},
      {"half an overlap", kArgument, reduce(TPFSDP_DTYPE_F32, TPFSDP_REDUCE_SUM, 3), "input and output overlap"},
      {"parts that are not equal", kArgument, scatter, "16 elements, which 3 ranks cannot share equally"},
      {"a source that is no rank", kArgument, broadcast, "source is 3"}};
}

TEST(Faults, MistakeOfOneRankIsRemoteOnTheOthersAtOnce) {
  int runs = 0;
  for (const Mistake &mistake : mistakes()) {
    for (int32_t odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(std::string(mistake.what) + ", rank " + std::to_string(odd));
      const tpfsdp_status end = ranks::run_library(3, [&](const Rank &me) {
        Memory memory;
        Error error;
        const auto began = Clock::now();
        const tpfsdp_status status = mistake.call(me, me.rank == odd, memory, &error);
        EXPECT_LT(Clock::now() - began, std::chrono::seconds(20)) << "the clocks of the ranks were waited for";
        EXPECT_EQ(status, me.rank == odd ? mistake.status : TPFSDP_ERR_REMOTE) << mistake.what << error.text();
        EXPECT_TRUE(contains(error.text(), mistake.text)) << error.text();
        EXPECT_EQ(error.info().rank, odd) << error.text();
        const std::string failed = "rank " + std::to_string(odd) + " failed";
        EXPECT_EQ(contains(error.text(), failed), me.rank != odd) << error.text();
        EXPECT_EQ(error.info().is_sticky, 0);
        // Nothing is half done: the next collective is right at once, and after a reset.
        expect_right(me);
        reset_and_expect_right(me);
        return TPFSDP_OK;
      });
      EXPECT_EQ(end, TPFSDP_OK);
      ++runs;
    }
  }
  EXPECT_EQ(runs, 45);
}

TEST(Faults, ResetMeetsRanksThatAreElsewhere) {
  // Rank 0 fails and resets at once; the others are in collectives that it never joins.
  for (int repeat = 0; repeat < 20; ++repeat) {
    const tpfsdp_status end = ranks::run_library(4, [&](const Rank &me) {
      Error error;
      for (int i = 0; me.rank > 0 && i < me.rank + repeat % 3; ++i) {
        if (tpfsdp_group_barrier(me.group, &error) != TPFSDP_OK) {
          EXPECT_EQ(error.info().status, TPFSDP_ERR_REMOTE) << error.text();
          break;
        }
      }
      reset_and_expect_right(me);
      return TPFSDP_OK;
    });
    ASSERT_EQ(end, TPFSDP_OK);
  }
}

TEST(Faults, AbortFromAnotherThreadEndsEveryWait) {
  const shared::Shared<std::atomic<int>> aborted(0);
  Error error;
  const tpfsdp_status end = ranks::run_library(
      3,
      [&](const Rank &me) {
        Error mine;
        std::thread other([&] {
          if (me.rank != 1) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          tpfsdp_group_abort(me.group, "the host gives up");
        });
        // Rank 2 stays away.
        EXPECT_EQ(me.rank == 2 ? TPFSDP_ERR_ABORTED : tpfsdp_group_barrier(me.group, &mine), TPFSDP_ERR_ABORTED);
        while (tpfsdp_group_check(me.group, &mine) == TPFSDP_OK) std::this_thread::yield();
        EXPECT_EQ(tpfsdp_group_barrier(me.group, &mine), TPFSDP_ERR_ABORTED);
        EXPECT_TRUE(contains(mine.text(), "the host gives up")) << mine.text();
        EXPECT_EQ(mine.info().is_sticky, 1);
        ++*aborted;
        other.join();
        return TPFSDP_ERR_ABORTED;
      },
      {}, &error);
  EXPECT_EQ(*aborted, 3);
  EXPECT_EQ(end, TPFSDP_ERR_ABORTED) << error.text();
}

TEST(Faults, RankThatNeverComesIsTimeoutForEver) {
  shared::Meeting done(3);
  const tpfsdp_status end = ranks::run_host(
      3,
      [&](const Rank &me) {
        if (me.rank == 1) {
          done.arrive_and_wait();
          return TPFSDP_ERR_TIMEOUT;
        }
        Error error, again;
        const auto began = Clock::now();
        EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_TIMEOUT);
        EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(150)) << "the clock was not waited for";
        EXPECT_TRUE(contains(error.text(), "rank 1 (last posted 0)")) << error.text();
        EXPECT_EQ(error.info().rank, 1);
        EXPECT_STREQ(error.info().operation, "barrier");
        EXPECT_STREQ(error.info().backend, ranks_are_processes() ? "shm" : "threads");
        EXPECT_EQ(error.info().is_sticky, 1);
        EXPECT_EQ(error.info().error_class, TPFSDP_ERROR_CLASS_GROUP);
        // Every later call repeats it, with the first as its cause.
        const int64_t one = 1;
        const int32_t value = 1;
        const tpfsdp_view view = ranks::view(&value, TPFSDP_DTYPE_I32, one);
        EXPECT_EQ(tpfsdp_group_all_reduce(me.group, &view, &view, TPFSDP_REDUCE_SUM, nullptr, nullptr, &again),
                  TPFSDP_ERR_TIMEOUT);
        EXPECT_STREQ(again.info().operation, "all_reduce");
        tpfsdp_error *cause = tpfsdp_error_get_cause(again.get());
        EXPECT_EQ(std::string(tpfsdp_error_message(cause)), error.text());
        EXPECT_EQ(tpfsdp_group_reset(me.group, nullptr), TPFSDP_ERR_TIMEOUT);
        EXPECT_EQ(tpfsdp_context_shutdown(me.context, nullptr), TPFSDP_ERR_TIMEOUT);
        tpfsdp_group_info info = TPFSDP_INIT(tpfsdp_group_info);
        EXPECT_EQ(tpfsdp_group_get_info(me.group, &info, nullptr), TPFSDP_OK);
        EXPECT_EQ(info.has_failed, 1);
        done.arrive_and_wait();
        return TPFSDP_ERR_TIMEOUT;
      },
      with_timeout(200));
  EXPECT_EQ(end, TPFSDP_ERR_TIMEOUT);
}

TEST(Faults, RankThatLeavesIsPeerLost) {
  const shared::Shared<std::atomic<int>> lost(0);
  ranks::run_host(3, [&](const Rank &me) {
    expect_right(me);
    if (me.rank == 2) return TPFSDP_ERR_STATE;  // released without shutdown
    Error error;
    const auto began = Clock::now();
    EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_PEER_LOST) << error.text();
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
    EXPECT_EQ(error.info().rank, 2) << error.text();
    EXPECT_TRUE(contains(error.text(), "rank 2 is lost")) << error.text();
    ++*lost;
    return TPFSDP_ERR_PEER_LOST;
  });
  EXPECT_EQ(*lost, 2);
}

struct Interrupted {
  int asked = 0;
  std::string operation;
};

tpfsdp_status cancel(void *user, const tpfsdp_interrupt_args *args) {
  auto *interrupted = static_cast<Interrupted *>(user);
  interrupted->operation = args->operation;
  EXPECT_GE(args->waited_ms, 100);
  EXPECT_STREQ(args->unit, "");
  ++interrupted->asked;
  return -42;
}

TEST(Faults, InterruptIsCancelledHereAndRemoteThere) {
  shared::Meeting cancelled(3);
  const tpfsdp_status end = ranks::run_host(3, [&](const Rank &me) {
    Error error;
    if (me.rank == 1) {
      Interrupted interrupted;
      const tpfsdp_interrupt_callback callback = {cancel, &interrupted, nullptr};
      EXPECT_EQ(tpfsdp_context_set_interrupt(me.context, &callback, nullptr), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_CANCELLED);
      EXPECT_EQ(error.info().backend_code, -42);
      EXPECT_EQ(error.info().error_class, TPFSDP_ERROR_CLASS_STEP);
      EXPECT_EQ(tpfsdp_context_set_interrupt(me.context, nullptr, nullptr), TPFSDP_OK);
      EXPECT_GE(ranks::counters(me.context, false).waits, 1);
      EXPECT_EQ(interrupted.asked, 1);
      EXPECT_EQ(interrupted.operation, "barrier");
      cancelled.arrive_and_wait();
    } else {
      cancelled.arrive_and_wait();
      // What rank 1 posted before it was interrupted is a promise; the next one is its failure.
      tpfsdp_status status = tpfsdp_group_barrier(me.group, &error);
      if (status == TPFSDP_OK) status = tpfsdp_group_barrier(me.group, &error);
      EXPECT_EQ(status, TPFSDP_ERR_REMOTE) << error.text();
      EXPECT_EQ(error.info().rank, 1);
      EXPECT_TRUE(contains(error.text(), "CANCELLED")) << error.text();
    }
    reset_and_expect_right(me);
    return TPFSDP_OK;
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

}  // namespace
