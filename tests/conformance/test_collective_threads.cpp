// SPDX-License-Identifier: Apache-2.0
// Who may call what from where: BUSY, handles of two ranks, releases in any order from any thread.
#include "conformance/ranks.hpp"

#include <algorithm>
#include <barrier>
#include <random>

namespace {

using ranks::Error;
using ranks::Rank;

TEST(Threads, SecondThreadOnAContextIsBusy) {
  std::atomic<int> busy{0};
  const tpfsdp_status end = ranks::run_library(2, [&](const Rank &me) {
    if (me.rank == 1) {
      while (busy == 0) std::this_thread::yield();
      return tpfsdp_group_barrier(me.group, nullptr);
    }
    std::thread second([&] {
      Error error;
      // Rank 0's own thread waits in the barrier until this one has been refused.
      while (tpfsdp_trace_clear(me.context, &error) == TPFSDP_OK) std::this_thread::yield();
      EXPECT_EQ(error.info().status, TPFSDP_ERR_BUSY) << error.text();
      EXPECT_EQ(tpfsdp_group_barrier(me.group, nullptr), TPFSDP_ERR_BUSY);
      tpfsdp_group_info group = TPFSDP_INIT(tpfsdp_group_info);
      EXPECT_EQ(tpfsdp_group_get_info(me.group, &group, nullptr), TPFSDP_OK) << "infos may be asked by any thread";
      EXPECT_EQ(tpfsdp_group_check(me.group, nullptr), TPFSDP_OK);
      tpfsdp_blob *dump = nullptr;
      EXPECT_EQ(tpfsdp_group_dump_recorder(me.group, &dump, nullptr), TPFSDP_OK);
      tpfsdp_handle_release(dump);
      busy = 1;
    });
    tpfsdp_status status = TPFSDP_ERR_BUSY;
    while (status == TPFSDP_ERR_BUSY) status = tpfsdp_group_barrier(me.group, nullptr);
    second.join();
    return status;
  });
  EXPECT_EQ(end, TPFSDP_OK);
  EXPECT_EQ(busy, 1);
}

TEST(Threads, HandlesOfTwoRanksAreRefusedByName) {
  std::vector<tpfsdp_group *> groups(2);
  std::barrier meet(2);
  const tpfsdp_status end = ranks::run_library(2, [&](const Rank &me) {
    groups[static_cast<size_t>(me.rank)] = me.group;
    meet.arrive_and_wait();
    if (me.rank == 0) {
      Error error;
      tpfsdp_mesh *mesh = nullptr;
      EXPECT_EQ(tpfsdp_mesh_create_from_groups(groups.data(), 2, nullptr, 0, &mesh, &error),
                TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_NE(error.text().find("rank 0 of 2 and rank 1 of 2"), std::string::npos) << error.text();
      EXPECT_EQ(mesh, nullptr);
    }
    meet.arrive_and_wait();
    return tpfsdp_group_barrier(me.group, nullptr);
  });
  EXPECT_EQ(end, TPFSDP_OK);
}

TEST(Threads, EverythingIsReleasedInAnyOrderFromAnyThread) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::vector<void *> handles;
    std::mutex mutex;
    const tpfsdp_status end = ranks::run_host(4, [&](const Rank &me) {
      tpfsdp_group *half = nullptr;
      EXPECT_EQ(tpfsdp_group_split(me.group, me.rank % 2, 0, "half", &half, nullptr), TPFSDP_OK);
      const int32_t sizes[] = {2, 2};
      const char *names[] = {"dp", "tp"};
      tpfsdp_mesh *mesh = nullptr, *slice = nullptr;
      EXPECT_EQ(tpfsdp_mesh_create(me.group, sizes, 2, names, 2, &mesh, nullptr), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_mesh_slice(mesh, names + 1, 1, &slice, nullptr), TPFSDP_OK);
      tpfsdp_work *work = nullptr;
      const int64_t one = 1;
      float value = 1;
      const tpfsdp_view view = ranks::view(&value, TPFSDP_DTYPE_F32, one);
      EXPECT_EQ(tpfsdp_group_all_reduce(half, &view, &view, TPFSDP_REDUCE_SUM, nullptr, &work, nullptr), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_work_wait(work, nullptr, nullptr), TPFSDP_OK);
      EXPECT_EQ(value, 2.0f);
      const std::lock_guard lock(mutex);
      for (void *handle : std::initializer_list<void *>{half, mesh, slice, work, tpfsdp_handle_retain(me.context)})
        handles.push_back(handle);
      return TPFSDP_OK;
    });
    EXPECT_EQ(end, TPFSDP_OK);
    ASSERT_EQ(handles.size(), 20u);
    std::shuffle(handles.begin(), handles.end(), std::mt19937(seed));
    std::vector<std::thread> threads;
    for (size_t part = 0; part < 4; ++part) {
      threads.emplace_back([&, part] {
        for (size_t i = part; i < handles.size(); i += 4) tpfsdp_handle_release(handles[i]);
      });
    }
    for (std::thread &thread : threads) thread.join();
    for (void *handle : handles) EXPECT_EQ(tpfsdp_handle_retain(handle), nullptr) << "still alive";
  }
}

TEST(Threads, GroupReleasedByOneRankDoesNotSpoilTheShutdown) {
  const tpfsdp_status end = ranks::run_host(2, [](const Rank &me) {
    tpfsdp_group *part = nullptr;
    EXPECT_EQ(tpfsdp_group_split(me.group, 0, me.rank, nullptr, &part, nullptr), TPFSDP_OK);
    EXPECT_EQ(tpfsdp_group_barrier(part, nullptr), TPFSDP_OK);
    if (me.rank == 0) tpfsdp_handle_release(part);
    const tpfsdp_status status = tpfsdp_context_shutdown(me.context, nullptr);
    if (me.rank == 1) tpfsdp_handle_release(part);
    EXPECT_EQ(status, TPFSDP_OK);
    Error error;
    EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_STATE) << error.text();
    EXPECT_EQ(tpfsdp_context_shutdown(me.context, nullptr), TPFSDP_ERR_STATE);
    return TPFSDP_ERR_STATE;  // shut down already
  });
  EXPECT_EQ(end, TPFSDP_ERR_STATE);
}

}  // namespace
