// SPDX-License-Identifier: Apache-2.0
// Which unshard mode a unit gets, why, what it then holds, and what an unshard costs.
#include "support/chain.hpp"

#include <sys/prctl.h>
#include <sys/ucontext.h>

#include <csignal>
#include <fstream>

namespace {

using chain::caught;
using chain::Chain;
using chain::HasSubstr;
using chain::on_ranks;
using testing::AllOf;

tpfsdp_fully_shard_options in(tpfsdp_unshard_mode mode) {
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  options.unshard_mode = mode;
  return options;
}

// A tree with one unit of four rows, sharded as asked, without what a suite asks.
struct One {
  One(tpfsdp_context *context, tpfsdp_fully_shard_options options, tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO)
      : tree(context) {
    w = tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {4, 16}, std::vector<float>(64, 1));
    options.reshard_after_forward.kind = reshard;
    API(tpfsdp_fully_shard, &tree.root, 1, nullptr, &options);
  }
  void expect(tpfsdp_unshard_mode mode, const std::string &reason) const {
    EXPECT_EQ(api::unit_info(tree.root).unshard_mode, mode);
    EXPECT_THAT(api::unit_info(tree.root).unshard_reason, HasSubstr(reason));
  }
  void prepare() const { API(tpfsdp_root_prepare, tree.root); }
  api::Tree tree;
  tpfsdp_param *w;
};

TEST(UnshardChoice, WishesAreGrantedOrSayWhyNot) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    One(context, in(TPFSDP_UNSHARD_PRIVATE)).expect(TPFSDP_UNSHARD_PRIVATE, "asked for");
    One(context, in(TPFSDP_UNSHARD_SHARED)).expect(TPFSDP_UNSHARD_SHARED, "asked for");
    One(context, in(TPFSDP_UNSHARD_MAPPED)).expect(TPFSDP_UNSHARD_MAPPED, "asked for");
    for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_AUTO, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
      tpfsdp_fully_shard_options options = in(mode);
      tpfsdp_memory_callback memory{};
      memory.call = [](void *, const tpfsdp_memory_args *) -> tpfsdp_status { return TPFSDP_OK; };
      options.host_memory = &memory;
      One(context, options).expect(TPFSDP_UNSHARD_PRIVATE, "the host's memory");
    }
    const api::Error error = caught([&] { One(context, in(7)); });
    EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("unshard_mode is 7"));
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    API(tpfsdp_group_reset, info.group);  // the refusal was told
  });
  on_ranks(4, [](tpfsdp_context *context, int32_t) {
    tpfsdp_fully_shard_options options = in(TPFSDP_UNSHARD_MAPPED);
    options.reshard_after_forward.size = 2;
    One(context, options, TPFSDP_RESHARD_SIZE).expect(TPFSDP_UNSHARD_PRIVATE, "SIZE");
  });
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    One(context, in(TPFSDP_UNSHARD_SHARED)).expect(TPFSDP_UNSHARD_PRIVATE, "one rank");
    One(context, in(TPFSDP_UNSHARD_MAPPED)).expect(TPFSDP_UNSHARD_MAPPED, "asked for");
  });
}

void with_budgets(const std::vector<int64_t> &budgets, const std::function<void(const One &, int32_t)> &body) {
  // Each rank reads its own: options of threads are one record.
  const auto world = static_cast<int32_t>(budgets.size());
  std::vector<std::thread> ranks;
  static std::atomic<int> number{0};
  const std::string store = "local:budgets" + std::to_string(++number);
  for (int32_t rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      tpfsdp_context_options options = chain::options();
      options.rank = rank;
      options.world_size = world;
      options.store = store.c_str();
      options.memory_budget_bytes = budgets[static_cast<size_t>(rank)];
      tpfsdp_context *made = nullptr;
      API(tpfsdp_context_create, &options, &made);
      const api::Owned<tpfsdp_context> context(made);
      {
        const One one(made, in(TPFSDP_UNSHARD_AUTO));
        one.expect(TPFSDP_UNSHARD_AUTO, "decided at the first step");
        one.prepare();
        body(one, rank);
      }
      API(tpfsdp_context_shutdown, made);
    });
  }
  for (std::thread &rank : ranks) rank.join();
}

// 128 bytes of shards and as many of gradients, 256 of full values and as many of gradients.
TEST(UnshardChoice, ABudgetDecidesAtTheFirstStepForAllRanksAlike) {
  with_budgets({0, 0}, [](const One &one, int32_t) { one.expect(TPFSDP_UNSHARD_PRIVATE, "no memory budget is set"); });
  with_budgets({768, 768}, [](const One &one, int32_t) {
    one.expect(TPFSDP_UNSHARD_PRIVATE, "768 bytes, within its memory budget of 768");
    EXPECT_EQ(api::memory(one.tree.root).total_bytes, 768);
  });
  with_budgets({0, 767}, [](const One &one, int32_t rank) {
    one.expect(TPFSDP_UNSHARD_SHARED,
               rank == 1 ? "bring this rank to 768 bytes, over its memory budget of 767" : "of another rank");
    EXPECT_EQ(api::memory(one.tree.root).total_bytes, 768 - 128);
  });
  tpfsdp_context_options options = chain::options();
  options.memory_budget_bytes = -1;
  tpfsdp_context *made = nullptr;
  EXPECT_EQ(caught([&] { API(tpfsdp_context_create, &options, &made); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
}

TEST(UnshardChoice, RanksThatWishDifferentModesAreTold) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    const One one(context, in(rank == 0 ? TPFSDP_UNSHARD_PRIVATE : TPFSDP_UNSHARD_SHARED));
    const api::Error error = caught([&] { one.prepare(); });
    EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("parameter w"), HasSubstr("unshard mode private"), HasSubstr("unshard mode shared")));
  });
}

// Parts of all ranks add up to one copy.
TEST(UnshardChoice, OneCopyIsCountedOnce) {
  for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
    chain::Shared<std::atomic<int64_t>> shards(0), slots(0);
    on_ranks(3, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, {.options = in(mode)});
      model.step(0);
      const tpfsdp_memory_info memory = api::memory(model.root());
      EXPECT_EQ(memory.total_bytes,
                memory.shard_bytes + memory.grad_shard_bytes + memory.slot_bytes + memory.grad_slot_bytes);
      EXPECT_EQ(memory.peak_bytes, memory.planned_peak_bytes);
      *shards += memory.shard_bytes;
      *slots += memory.slot_bytes;
    });
    // 148 bytes in full, rows of 2, 2 and 1: 64 + 8, 64 + 8 and 64 + 4 bytes where they lie apart.
    EXPECT_EQ(*shards, mode == TPFSDP_UNSHARD_MAPPED ? 4 * 148 : 4 * (72 + 72 + 68));
    EXPECT_EQ(*slots, mode == TPFSDP_UNSHARD_PRIVATE ? 3 * 3 * 148 : mode == TPFSDP_UNSHARD_SHARED ? 3 * 148 : 0);
  }
}

// The sanitizers hold memory of their own for each byte.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TPFSDP_TEST_SANITIZED
#endif

#if !defined(TPFSDP_TEST_SANITIZED)
int64_t pss_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(rollup, line)) {
    if (line.rfind("Pss:", 0) == 0) return 1024 * std::stoll(line.substr(4));
  }
  return -1;
}

// What the kernel says of the whole job is what the ranks say together.
TEST(UnshardChoice, MemoryOfTheMachineIsWhatTheRanksSay) {
  constexpr int64_t kRows = 1 << 20;  // 4 MiB a parameter
  for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
    chain::Shared<std::atomic<int64_t>> measured(0), said(0);
    chain::Meeting meeting(4);
    on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
      std::vector<float> memory(kRows, 1);
      meeting.arrive_and_wait();
      const bool measures = ranks_are_processes() || rank == 0;
      const int64_t before = measures ? pss_bytes() : 0;
      EXPECT_GE(before, 0);
      meeting.arrive_and_wait();
      api::Tree tree(context);
      std::vector<tpfsdp_module *> blocks;
      const std::vector<int64_t> shape{kRows};
      const tpfsdp_view view = api::view(memory.data(), TPFSDP_DTYPE_F32, shape);
      for (int i = 0; i < 6; ++i) {
        tpfsdp_param *made = nullptr;
        API(tpfsdp_param_create, &view, 1, &made);
        const api::Owned<tpfsdp_param> param(made);
        blocks.push_back(tree.child(tree.root, "b" + std::to_string(i)));
        API(tpfsdp_module_register_parameter, blocks.back(), "w", made);
        tree.shard({blocks.back()}, TPFSDP_RESHARD_ALWAYS, in(mode));
      }
      tree.shard({tree.root}, TPFSDP_RESHARD_ALWAYS, in(mode));
      API(tpfsdp_module_pre_forward, tree.root);
      for (tpfsdp_module *block : blocks) {
        API(tpfsdp_module_pre_forward, block);
        API(tpfsdp_module_post_forward, block);
      }
      API(tpfsdp_module_post_forward, tree.root);
      meeting.arrive_and_wait();
      if (measures) *measured += pss_bytes() - before;
      *said += api::memory(tree.root).total_bytes;
      meeting.arrive_and_wait();
    });
    EXPECT_LE(*measured, *said + *said / 50 + (4 << 20)) << "mode " << mode;
    EXPECT_GE(*measured, *said - *said / 10) << "mode " << mode;
  }
}

#endif

#if defined(__x86_64__) && !defined(TPFSDP_TEST_SANITIZED)
// Every system call of this thread, between two points, goes to a handler that counts it and lets it pass.
thread_local volatile char is_counting = 0;
volatile int calls = 0;

void count_call(int, siginfo_t *, void *context) {
  is_counting = 0;
  calls = calls + 1;
  // It is not made: the test fails anyway, and what was asked for may wait for ever.
  static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RAX] = 0;
}

TEST(UnshardChoice, AnUnshardInCommonMemoryMakesNoSystemCall) {
  struct sigaction action{};
  action.sa_sigaction = count_call;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSYS, &action, nullptr), 0);
  for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
    chain::Meeting meeting(2);
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Chain model(context, rank, {.options = in(mode)});
      model.step(0);
      model.full();
      tpfsdp_work *work = nullptr;
      if (rank == 0) {
        API(tpfsdp_fsdp_module_unshard, model.block(0), &work);  // its part is there, and it waits for nobody
        meeting.arrive_and_wait();
        meeting.arrive_and_wait();
        API(tpfsdp_work_wait, work, nullptr);
        tpfsdp_handle_release(work);
        API(tpfsdp_fsdp_module_reshard, model.block(0));
      } else {
        meeting.arrive_and_wait();
        ASSERT_EQ(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &is_counting), 0);
        calls = 0;
        is_counting = 1;
        const tpfsdp_status status = tpfsdp_fsdp_module_unshard(model.block(0), nullptr, nullptr);
        const tpfsdp_status given_back = tpfsdp_fsdp_module_reshard(model.block(0), nullptr);
        is_counting = 0;
        ASSERT_EQ(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, nullptr), 0);
        EXPECT_EQ(status, TPFSDP_OK);
        EXPECT_EQ(given_back, TPFSDP_OK);
        EXPECT_EQ(calls, 0);
        meeting.arrive_and_wait();
      }
      model.step(1);
    });
  }
}
#endif

}  // namespace
