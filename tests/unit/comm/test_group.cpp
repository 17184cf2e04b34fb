// SPDX-License-Identifier: Apache-2.0
// Groups from the inside: the log, the dump, splits, groups of one, regions, what a call costs.
#include "comm/collective_log.hpp"
#include "comm/collectives.hpp"
#include "comm/exchange.hpp"
#include "comm/region.hpp"
#include "comm/run_ranks.hpp"
#include "support/allocation.hpp"
#include "tensor/dtype.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <barrier>
#include <thread>

namespace tpfsdp {
namespace {

Ref<Group> group_of(const Ref<Context> &context) { return Ref<Group>(&context->group()); }

tpfsdp_view view_of(void *data, tpfsdp_dtype dtype, const int64_t &count) {
  tpfsdp_view view{};
  view.data = data;
  view.size_bytes = dtype_bytes(dtype, count);
  view.shape = &count;
  view.ndim = 1;
  view.dtype = dtype;
  view.device_type = TPFSDP_DEVICE_CPU;
  return view;
}

TEST(CollectiveLog, KeepsTheLastAndTheirStates) {
  CollectiveLog log;
  for (int64_t sequence = 1; sequence <= 70; ++sequence) {
    CollectiveEntry entry;
    entry.sequence = sequence;
    entry.kind = TPFSDP_BACKEND_KIND_ALL_GATHER;
    log.post(entry);
  }
  int completed = 0;
  log.fail(66, TPFSDP_ERR_MISMATCH, 5);
  log.complete(68, 9, [&](const CollectiveEntry &) { ++completed; });
  log.fail_open(TPFSDP_ERR_ABORTED, 11);
  const auto entries = log.entries();
  ASSERT_EQ(entries.size(), 64u);
  EXPECT_EQ(entries.front().sequence, 7);
  EXPECT_EQ(completed, 61);  // 7 to 68 without 66
  EXPECT_EQ(log.find(66)->state, CollectiveState::kFailed);
  EXPECT_EQ(log.find(66)->status, TPFSDP_ERR_MISMATCH);
  EXPECT_EQ(log.find(68)->state, CollectiveState::kComplete);
  EXPECT_EQ(log.find(68)->ended_ns, 9);
  EXPECT_EQ(log.find(70)->status, TPFSDP_ERR_ABORTED);
  EXPECT_FALSE(log.find(6));
}

TEST(Group, DumpSaysWhoIsBehindAndWhere) {
  std::barrier seen(3);
  run_ranks(3, {}, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    barrier(group);
    float value = 1;
    const int64_t one = 1;
    const tpfsdp_view view = view_of(&value, TPFSDP_DTYPE_F32, one);
    Ref<Work> work;
    if (rank != 1) work = all_reduce(group, view, view, TPFSDP_REDUCE_SUM, true);
    seen.arrive_and_wait();
    if (rank == 0) {
      const auto dump = nlohmann::json::parse(group->dump());
      EXPECT_EQ(dump["rank"], 0);
      EXPECT_EQ(dump["world_size"], 3);
      EXPECT_EQ(dump["backend"], "threads");
      ASSERT_EQ(dump["collectives"].size(), 2u);
      EXPECT_EQ(dump["collectives"][0]["operation"], "barrier");
      EXPECT_EQ(dump["collectives"][0]["state"], "complete");
      EXPECT_EQ(dump["collectives"][1]["operation"], "all_reduce");
      EXPECT_EQ(dump["collectives"][1]["state"], "posted");
      EXPECT_EQ(dump["collectives"][1]["dtype"], "f32");
      ASSERT_EQ(dump["peers"].size(), 3u);
      EXPECT_EQ(dump["peers"][1]["posted"], 1);
      EXPECT_EQ(dump["peers"][1]["operation"], "barrier");
      EXPECT_EQ(dump["peers"][2]["posted"], 2);
      EXPECT_EQ(dump["peers"][2]["life"], "alive");
      ASSERT_EQ(dump["behind"].size(), 1u);
      EXPECT_EQ(dump["behind"][0]["rank"], 1);
      EXPECT_EQ(dump["behind"][0]["missing"], "all_reduce");
    }
    seen.arrive_and_wait();
    if (rank == 1) work = all_reduce(group, view, view, TPFSDP_REDUCE_SUM, true);
    EXPECT_EQ(work->wait(true), TPFSDP_OK);
    EXPECT_EQ(value, 3);
  });
}

TEST(Group, SplitByColourAndOrder) {
  run_ranks(5, {}, [](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    // 0, 2, 4 in falling order; 1 gets none; 3 is alone.
    const int32_t color = rank % 2 == 0 ? 7 : rank == 1 ? -1 : 2;
    const Ref<Group> part = Group::split(group, color, -rank, "part");
    if (rank == 1) {
      EXPECT_EQ(part.get(), nullptr);
    } else if (rank == 3) {
      EXPECT_EQ(part->global_ranks(), std::vector<int32_t>{3});
      EXPECT_EQ(part->comm(), nullptr);
    } else {
      EXPECT_EQ(part->global_ranks(), (std::vector<int32_t>{4, 2, 0}));
      EXPECT_EQ(part->rank(), (4 - rank) / 2);
      EXPECT_EQ(part->name(), "part");
      EXPECT_EQ(exchange(part, int64_t{rank}), (std::vector<int64_t>{4, 2, 0}));
    }
    // Groups of groups, again and again, and with names that ranks do not share: no key is ever used twice.
    for (int i = 0; i < 3; ++i) {
      const Ref<Group> again = Group::split(group, 0, 0, rank == 0 ? "odd name" : "");
      EXPECT_EQ(exchange(again, int64_t{rank}), (std::vector<int64_t>{0, 1, 2, 3, 4}));
    }
  });
}

TEST(Group, OfOneMovesNothingAndCountsNothing) {
  const Ref<Context> context = join({});
  const Ref<Group> group = group_of(context);
  const std::vector<int32_t> input = {7, -8, 9};
  std::vector<int32_t> output(3);
  const int64_t count = 3;
  const tpfsdp_view in = view_of(const_cast<int32_t *>(input.data()), TPFSDP_DTYPE_I32, count);
  const tpfsdp_view out = view_of(output.data(), TPFSDP_DTYPE_I32, count);
  EXPECT_EQ(all_reduce(group, in, out, TPFSDP_REDUCE_AVG, false).get(), nullptr);
  EXPECT_EQ(output, input);
  output.assign(3, 0);
  const Ref<Work> work = all_gather(group, in, out, {}, true);
  EXPECT_EQ(work->wait(false), TPFSDP_OK);
  EXPECT_EQ(output, input);
  barrier(group);
  group->reset();
  const Counters &counters = context->rank().recorder().counters;
  EXPECT_EQ(counters.all_gathers + counters.all_reduces + counters.other_collectives + counters.wire_bytes, 0);
  EXPECT_THROW(all_reduce(group, in, out, 0, false), Failure);
  context->abort("test");
  EXPECT_TRUE(group->has_failed());
  try {
    barrier(group);
    FAIL();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_ABORTED);
    EXPECT_EQ(failure.detail()->cause->status, TPFSDP_ERR_ABORTED);
  }
}

TEST(Group, TypesSmallerThanAByteMoveWhole) {
  run_ranks(2, {}, [](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    const int64_t four = 4, eight = 8, bytes = 2, all_bytes = 4;
    uint8_t mine[2] = {static_cast<uint8_t>(0x10 + rank), 0x5a}, all[4] = {};
    all_gather(group, view_of(mine, TPFSDP_DTYPE_F4_E2M1FN, four), view_of(all, TPFSDP_DTYPE_F4_E2M1FN, eight), {},
               false);
    EXPECT_EQ(std::vector<uint8_t>(all, all + 4), (std::vector<uint8_t>{0x10, 0x5a, 0x11, 0x5a}));
    EXPECT_EQ(context->rank().recorder().counters.wire_bytes, 2);
    // As many bytes of another type are not the same thing.
    try {
      if (rank == 0) {
        all_gather(group, view_of(mine, TPFSDP_DTYPE_F4_E2M1FN, four), view_of(all, TPFSDP_DTYPE_F4_E2M1FN, eight), {},
                   false);
      } else {
        all_gather(group, view_of(mine, TPFSDP_DTYPE_U8, bytes), view_of(all, TPFSDP_DTYPE_U8, all_bytes), {}, false);
      }
      ADD_FAILURE() << "nothing was refused";
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_MISMATCH);
    }
    group->reset();
  });
}

TEST(Group, DumpMayComeFromAnyThreadAtAnyTime) {
  std::atomic<bool> is_over{false};
  std::atomic<Group *> shown{nullptr};
  std::thread watchdog([&] {
    int dumps = 0;
    while (!is_over || dumps == 0) {
      if (Group *group = shown) {
        EXPECT_EQ(nlohmann::json::parse(group->dump())["peers"].size(), 2u);
        ++dumps;
      }
      if (is_over && !shown) break;
    }
    EXPECT_GT(dumps, 0);
    shown = nullptr;
  });
  run_ranks(2, {}, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    if (rank == 0) shown = &context->group();
    for (int i = 0; i < 300; ++i) barrier(group_of(context));
    is_over = true;
    while (rank == 0 && shown) std::this_thread::yield();
  });
  watchdog.join();
}

TEST(Group, WorkThatFailedUnseenDoesNotSpoilTheShutdown) {
  run_ranks(2, {}, [](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = Group::split(group_of(context), 0, 0, "part");
    float value = 1, other = 2;
    const int64_t one = 1;
    const tpfsdp_reduce_op op = rank == 0 ? TPFSDP_REDUCE_MIN : TPFSDP_REDUCE_MAX;
    const Ref<Work> work =
        all_reduce(group, view_of(&value, TPFSDP_DTYPE_F32, one), view_of(&other, TPFSDP_DTYPE_F32, one), op, true);
    group->shutdown();
    try {
      work->wait(false);
      ADD_FAILURE() << "nothing was refused";
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_MISMATCH);
    }
    EXPECT_EQ(other, 2);
  });
}

TEST(Group, StepsOfTheEngineAllocateNothing) {
  std::barrier ready(2);
  std::atomic<int64_t> before{0}, after{-1};
  JoinOptions options;
  options.rank.event_capacity = 16;
  run_ranks(2, options, [&](int32_t rank, int32_t, const Ref<Context> &context) {
    const Ref<Group> group = group_of(context);
    Region source(*group, 4096, nullptr);
    std::vector<float> full(2048);
    std::vector<tpfsdp_backend_piece> pieces;
    for (int32_t r = 0; r < 2; ++r) pieces.push_back({r, 0, 0, 1024, full.data() + 1024 * r});
    tpfsdp_backend_op op{};
    op.struct_size = sizeof op;
    op.kind = TPFSDP_BACKEND_KIND_ALL_GATHER;
    op.dtype = TPFSDP_DTYPE_F32;
    op.source = -1;
    op.unit = context->rank().name_unit("layers.0");
    op.input = source.data();
    op.input_region = source.backend_region();
    op.element_count = 2048;
    op.pieces = pieces.data();
    op.piece_count = 2;
    const auto step = [&] {
      int64_t sequence = 0;
      EXPECT_EQ(group->submit(op, 4096, true, &sequence), TPFSDP_OK);
      EXPECT_EQ(group->complete(sequence, true), TPFSDP_OK);
      EXPECT_EQ(group->wait_read(sequence, true), TPFSDP_OK);
    };
    step();
    ready.arrive_and_wait();
    if (rank == 0) before = allocation::made();
    ready.arrive_and_wait();
    for (int i = 0; i < 100; ++i) step();
    ready.arrive_and_wait();
    if (rank == 0) after = allocation::made();
    ready.arrive_and_wait();
    EXPECT_EQ(context->rank().recorder().counters.all_gathers, 101);
    EXPECT_EQ(context->rank().recorder().counters.wire_bytes, 101 * 4096);
  });
  EXPECT_EQ(after - before, 0);
}

TEST(Region, IsZeroEnteredAndSharedOrPrivate) {
  MemoryAccount alone;
  const Ref<Context> context = join({});
  {
    Region region(context->group(), 1000, &alone);
    EXPECT_EQ(region.backend_region(), nullptr);
    EXPECT_EQ(region.data()[999], std::byte{0});
    EXPECT_EQ(alone.held(), 1000);
    region.protect(true);  // nobody else reads it: stays as it is
    region.data()[0] = std::byte{1};
  }
  EXPECT_EQ(alone.held(), 0);
  run_ranks(2, {}, [](int32_t, int32_t, const Ref<Context> &ranks_context) {
    MemoryAccount account;
    {
      Region region(ranks_context->group(), 1000, &account);
      EXPECT_NE(region.backend_region(), nullptr);
      EXPECT_EQ(region.data()[999], std::byte{0});
      Region moved = std::move(region);
      EXPECT_EQ(region.data(), nullptr);
      EXPECT_EQ(moved.size_bytes(), 1000);
      EXPECT_EQ(account.held(), 1000);
    }
    EXPECT_EQ(account.held(), 0);
    EXPECT_EQ(account.peak(), 1000);
  });
}

}  // namespace
}  // namespace tpfsdp
