// SPDX-License-Identifier: Apache-2.0
// Each invariant is broken by hand through the engine's insides, and found: INTERNAL with its name sticks to the comm.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/host/comm.hpp"
#include "backends/host/post.hpp"
#include "backends/host/progress.hpp"
#include "backends/host/region.hpp"
#include "backends/host/run.hpp"
#include "ranks.hpp"

#if !defined(NDEBUG)

namespace host_test {
namespace {

namespace host = tpfsdp::host;

host::Comm &of(Rank &rank) { return *reinterpret_cast<host::Comm *>(rank.comm); }

float *region_of(Rank &rank, int64_t floats, tpfsdp_backend_region **region) {
  void *data = nullptr;
  EXPECT_EQ(table().region_create(rank.call.handle(), rank.comm, floats * 4, &data, region), TPFSDP_OK);
  return static_cast<float *>(data);
}

void expect_violated(Rank &rank, const std::string &name) {
  EXPECT_EQ(of(rank).alarm->violations.load(), 1U) << name;
  EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_ERR_INTERNAL) << name;
  EXPECT_NE(rank.call.text.find("invariant " + name + " does not hold on rank 0"), std::string::npos) << rank.call.text;
  EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_INTERNAL) << "it sticks";
}

/// Rank 0 breaks the rule; rank 1 does `peer` and stays until it is over.
void violate(
    const std::string &name, const std::function<void(Rank &)> &breaks,
    const std::function<void(Rank &)> &peer = [](Rank &) {}) {
  std::atomic<bool> over{false};
  run_ranks(2, [&](Rank &rank) {
    if (rank.rank == 0) {
      breaks(rank);
      expect_violated(rank, name);
      over = true;
    } else {
      peer(rank);
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(table().comm_check(rank.call.handle(), rank.comm), TPFSDP_ERR_INTERNAL) << "every rank learns it";
    }
  });
}

void one_barrier(Rank &rank) { ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text; }

TEST(Invariant, WordMonotone) {
  const auto broken = [](const std::function<void(host::Comm &)> &breaks) {
    violate(
        "WORD_MONOTONE",
        [&](Rank &rank) {
          ASSERT_EQ(rank.barrier(), TPFSDP_OK);
          table().publish_step(rank.comm);
          breaks(of(rank));
        },
        one_barrier);
  };
  broken([](host::Comm &comm) { host::set_done(comm, 0); });
  broken([](host::Comm &comm) { host::set_done(comm, 2); });
  broken([](host::Comm &comm) { host::set_step(comm, 0); });
  broken([](host::Comm &comm) { host::set_step(comm, 2); });
}

TEST(Invariant, VerdictBeforeBytes) {
  violate("VERDICT_BEFORE_BYTES", [](Rank &rank) {
    std::vector<float> in(2000, 1), out(2000, -1);
    Op op = all_gather(rank, in.data(), out.data(), {1000, 1000});
    ASSERT_EQ(rank.submit(op), TPFSDP_OK);
    bool consumed = true;
    EXPECT_EQ(host::run(of(rank), rank.call.handle(), 1, &consumed).status, TPFSDP_ERR_INTERNAL);
    EXPECT_FALSE(consumed);
    EXPECT_EQ(out[0], -1.0F) << "a byte was moved";
    table().give_up(rank.comm);
  });
}

TEST(Invariant, VerdictOfAnEarlierCallDoesNotCount) {
  violate(
      "VERDICT_BEFORE_BYTES",
      [](Rank &rank) {
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        bool consumed = true;
        EXPECT_EQ(host::run(of(rank), rank.call.handle(), 1, &consumed).status, TPFSDP_ERR_INTERNAL);
      },
      one_barrier);
}

TEST(Invariant, NoErrorTwice) {
  violate("NO_ERROR_TWICE", [](Rank &rank) {
    rank.fail(TPFSDP_ERR_CALLBACK, "first");
    host::Record::Body body{};
    body.post = host::Post::ERR;
    host::post(of(rank), body, nullptr, "second");
  });
}

TEST(Invariant, NotOnRegionFree) {
  violate("NOT_ON_REGION_FREE", [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 100, &region);
    std::vector<float> out(200);
    Op op = all_gather(rank, data, out.data(), {100, 100}, region);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    const std::unique_ptr<host::Region> owned(reinterpret_cast<host::Region *>(region));
    host::drop(*owned);
  });
}

TEST(Invariant, SourceStableWhenMadeWritable) {
  violate("SOURCE_STABLE", [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 100, &region);
    EXPECT_EQ(table().region_protect(rank.call.handle(), region, 1), TPFSDP_OK);
    EXPECT_EQ(table().region_protect(rank.call.handle(), region, 0), TPFSDP_OK) << "shown to nobody yet";
    std::vector<float> out(200);
    Op op = all_gather(rank, data, out.data(), {100, 100}, region);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(table().region_protect(rank.call.handle(), region, 1), TPFSDP_OK);
    EXPECT_EQ(table().region_protect(rank.call.handle(), region, 0), TPFSDP_ERR_INTERNAL);
    table().region_destroy(region);
  });
}

TEST(Invariant, SourceStableInTheSecondHalfOfAnAllReduce) {
  std::atomic<bool> posted{false}, over{false};
  run_ranks(2, [&](Rank &rank) {
    std::vector<float> data(1000, 1);
    Op op = all_reduce(data.data(), data.data(), 1000);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      rank.call.status = TPFSDP_OK;
      of(rank).lane().done.store(0);  // as if it had posted its second half before it had read the first
      posted = true;
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      while (!posted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(rank.complete(2));
      expect_violated(rank, "SOURCE_STABLE");
      over = true;
    }
    table().give_up(rank.comm);
  });
}

TEST(Invariant, GradientSlotFree) {
  // A wait that takes rank 1 for done: its cursor is put behind all peers.
  violate("GSLOT_FREE", [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, 100, &region);
    std::vector<float> out(200);
    Op op = all_gather(rank, data, out.data(), {100, 100}, region);
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    of(rank).done = 1;
    host::Patience &patience = of(rank).patience[static_cast<size_t>(host::Target::DONE)];
    patience.target = host::Target::DONE;
    patience.sequence = 1;
    patience.cursor = 2;
    static_cast<void>(rank.wait_read(1));
    table().region_destroy(region);
  });
}

TEST(Invariant, SlotFree) {
  const auto in_use_by = [](int user) {
    std::atomic<bool> released{false};
    violate(
        "SLOT_FREE",
        [&](Rank &rank) {
          CommonMemory slot;
          ASSERT_EQ(rank.make_common(200, &slot), TPFSDP_OK) << rank.call.text;
          ASSERT_EQ(rank.run(gather_in(slot, TPFSDP_BACKEND_KIND_SHARED_GATHER, 200)), TPFSDP_OK) << rank.call.text;
          if (user != 0) table().region_release(slot.region);
          while (user != 1 && !released) std::this_thread::yield();
          static_cast<void>(rank.submit(gather_in(slot, TPFSDP_BACKEND_KIND_SHARED_GATHER, 200)));
          table().region_destroy(slot.region);
        },
        [&](Rank &rank) {
          CommonMemory slot;
          ASSERT_EQ(rank.make_common(200, &slot), TPFSDP_OK) << rank.call.text;
          ASSERT_EQ(rank.run(gather_in(slot, TPFSDP_BACKEND_KIND_SHARED_GATHER, 200)), TPFSDP_OK) << rank.call.text;
          if (user != 1) table().region_release(slot.region);
          released = true;
          // Destroyed, it would be used no more.
          while (table().comm_check(rank.call.handle(), rank.comm) == TPFSDP_OK) std::this_thread::yield();
          table().region_destroy(slot.region);
        });
  };
  in_use_by(0);
  in_use_by(1);
}

TEST(Invariant, SourceStableOfMappedMemory) {
  violate(
      "SOURCE_STABLE",
      [](Rank &rank) {
        CommonMemory shards;
        ASSERT_EQ(rank.make_common(200, &shards), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(table().region_protect(rank.call.handle(), shards.region, 0), TPFSDP_OK) << "shown to nobody yet";
        ASSERT_EQ(rank.run(gather_in(shards, TPFSDP_BACKEND_KIND_MAPPED_GATHER, 200)), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(table().region_protect(rank.call.handle(), shards.region, 1), TPFSDP_OK);
        EXPECT_EQ(table().region_protect(rank.call.handle(), shards.region, 0), TPFSDP_ERR_INTERNAL);
        table().region_destroy(shards.region);
      },
      [](Rank &rank) {
        CommonMemory shards;
        ASSERT_EQ(rank.make_common(200, &shards), TPFSDP_OK) << rank.call.text;
        ASSERT_EQ(rank.run(gather_in(shards, TPFSDP_BACKEND_KIND_MAPPED_GATHER, 200)), TPFSDP_OK) << rank.call.text;
        while (table().comm_check(rank.call.handle(), rank.comm) == TPFSDP_OK) std::this_thread::yield();
        table().region_destroy(shards.region);
      });
}

TEST(Invariant, WindowAgreed) {
  // Rank 1 has read everything but has not reached its end of backward.
  violate(
      "WINDOW_AGREED",
      [](Rank &rank) {
        ASSERT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        table().publish_step(rank.comm);
        host::Patience &patience = of(rank).patience[static_cast<size_t>(host::Target::STEP)];
        patience.target = host::Target::STEP;
        patience.sequence = 1;
        patience.cursor = 2;
        EXPECT_EQ(table().wait_step(rank.call.handle(), rank.comm, 1), TPFSDP_ERR_INTERNAL);
      },
      one_barrier);
}

}  // namespace
}  // namespace host_test

#endif
