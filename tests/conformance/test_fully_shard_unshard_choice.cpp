// SPDX-License-Identifier: Apache-2.0
// Which unshard mode a unit gets, and why; and what each mode takes of memory.
#include "support/modes.hpp"

#include <array>
#include <atomic>
#include <cstdio>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::Meeting;
using chain::on_ranks;
using modes::Common;
using testing::AllOf;

struct Choice {
  tpfsdp_unshard_mode mode;
  std::string reason;
  friend bool operator==(const Choice &a, const Choice &b) { return a.mode == b.mode && a.reason == b.reason; }
  friend std::ostream &operator<<(std::ostream &out, const Choice &choice) {
    return out << modes::name_of(choice.mode) << " (" << choice.mode << "): " << choice.reason;
  }
};

Choice choice_of(tpfsdp_module *module) {
  const tpfsdp_unit_info info = api::unit_info(module);
  return {info.unshard_mode, info.unshard_reason};
}

// Past the suite's own wish: AUTO is what is tested.
tpfsdp_module *add_unit(api::Tree &tree, const std::string &name, const tpfsdp_fully_shard_options &options) {
  tpfsdp_module *module = tree.child(tree.root, name);
  tree.param(module, "weight", TPFSDP_DTYPE_F32, {5, 5}, chain::weight_values(1, 25));
  API(tpfsdp_fully_shard, &module, 1, nullptr, &options);
  return module;
}
void shard_root(api::Tree &tree, tpfsdp_unshard_mode mode = TPFSDP_UNSHARD_AUTO) {
  const tpfsdp_fully_shard_options options = modes::options(mode);
  API(tpfsdp_fully_shard, &tree.root, 1, nullptr, &options);
}

// ---- The choice -------------------------------------------------------------------------------------------------

TEST(Choice, WhatWasAskedForHolds) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    std::vector<tpfsdp_module *> modules;
    for (const tpfsdp_unshard_mode mode : {modes::kPrivate, modes::kShared, modes::kMapped})
      modules.push_back(add_unit(tree, modes::name_of(mode), modes::options(mode)));
    shard_root(tree);
    for (int round = 0; round < 2; ++round) {
      for (int32_t i = 0; i < 3; ++i)
        EXPECT_EQ(choice_of(modules[static_cast<size_t>(i)]), (Choice{TPFSDP_UNSHARD_PRIVATE + i, "asked for"}));
      API(tpfsdp_root_prepare, tree.root);
    }
    EXPECT_EQ(api::unit_info(modules[0]).slot, 0);
    EXPECT_EQ(api::unit_info(modules[1]).slot, 1) << "memory of this rank and memory of all are never one slot";
    EXPECT_EQ(api::unit_info(modules[2]).slot, -1);
  });
}

TEST_P(Common, WhatItCannotBeIsPrivateAndSaysWhy) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_fully_shard_options options = modes::options(GetParam());
    options.reshard_after_forward = {TPFSDP_RESHARD_SIZE, 1};  // is NEVER
    tpfsdp_module *kept = add_unit(tree, "kept", options);
    tpfsdp_memory_callback memory{};
    memory.call = [](void *, const tpfsdp_memory_args *args) -> tpfsdp_status {
      if (args->op == TPFSDP_MEMORY_ACQUIRE) *args->data = std::malloc(static_cast<size_t>(args->size_bytes));
      if (args->op == TPFSDP_MEMORY_RELEASE) std::free(*args->data);
      return TPFSDP_OK;
    };
    options = modes::options(GetParam());
    options.host_memory = &memory;
    tpfsdp_module *hosted = add_unit(tree, "hosted", options);
    shard_root(tree);
    EXPECT_EQ(choice_of(hosted),
              (Choice{TPFSDP_UNSHARD_PRIVATE, "full values lie in the host's memory, of each rank"}));
    EXPECT_EQ(choice_of(kept), (Choice{GetParam(), "asked for"}));
  });
  on_ranks(4, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_fully_shard_options options = modes::options(GetParam());
    options.reshard_after_forward = {TPFSDP_RESHARD_SIZE, 2};
    tpfsdp_module *parted = add_unit(tree, "parted", options);
    shard_root(tree);
    EXPECT_EQ(choice_of(parted),
              (Choice{TPFSDP_UNSHARD_PRIVATE, "reshard_after_forward SIZE keeps parts of a copy per rank"}));
  });
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *alone = add_unit(tree, "alone", modes::options(GetParam()));
    shard_root(tree);
    // One rank's shards are the full values: mapped, nothing is copied.
    EXPECT_EQ(choice_of(alone),
              GetParam() == TPFSDP_UNSHARD_MAPPED
                  ? (Choice{TPFSDP_UNSHARD_MAPPED, "asked for"})
                  : (Choice{TPFSDP_UNSHARD_PRIVATE, "the unit has one rank, and nobody to share a copy with"}));
  });
}

TEST(Choice, WithoutABudgetItIsPrivateFromTheFirstStepOn) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    api::Tree tree(context);
    tpfsdp_module *module = add_unit(tree, "a", modes::options(TPFSDP_UNSHARD_AUTO));
    shard_root(tree);
    EXPECT_EQ(choice_of(module), (Choice{TPFSDP_UNSHARD_AUTO, "decided at the first step"}));
    API(tpfsdp_root_prepare, tree.root);
    EXPECT_EQ(choice_of(module), (Choice{TPFSDP_UNSHARD_PRIVATE, "no memory budget is set"}));
  });
}

tpfsdp_context_options with_budget(int64_t bytes) {
  tpfsdp_context_options options = chain::options();
  options.memory_budget_bytes = bytes;
  return options;
}

// What a chain takes with private copies, of each rank of two: rank 0 owns more rows.
std::vector<int64_t> private_bytes(int64_t blocks) {
  const chain::Shared<std::array<int64_t, 2>> bytes;
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_PRIVATE, blocks));
    API(tpfsdp_root_prepare, model.root());
    (*bytes)[static_cast<size_t>(rank)] = api::memory(model.root()).planned_peak_bytes;
  });
  return {(*bytes)[0], (*bytes)[1]};
}

// The chain's own sharding asks for the suite's mode where a test leaves it to the library.
void shard_by_choice(chain::Chain &model) {
  for (size_t i = 1; i < model.layers.size(); ++i)
    API(tpfsdp_fully_shard, &model.layers[i].module, 1, nullptr, nullptr);
  API(tpfsdp_fully_shard, &model.tree.root, 1, nullptr, nullptr);
}

TEST(Choice, ABudgetDecidesOnAllRanksAlike) {
  const std::vector<int64_t> need = private_bytes(3);
  ASSERT_GT(need[0], need[1]);
  const auto text = [](auto... parts) {
    std::string out;
    ((out += parts), ...);
    return out;
  };
  for (const int64_t budget : {need[0], need[0] - 1, need[1], need[1] - 1, int64_t{1}}) {
    SCOPED_TRACE(budget);
    chain::SharedValues trained;
    api::run_ranks(
        2,
        [&](tpfsdp_context *context, int32_t rank) {
          chain::Chain model(context, rank, {.is_sharded = false});
          shard_by_choice(model);
          EXPECT_EQ(api::unit_info(model.block(0)).unshard_mode, TPFSDP_UNSHARD_AUTO);
          for (int i = 0; i < 2; ++i) model.step(i);
          const int64_t own = need[static_cast<size_t>(rank)];
          const std::string bytes = std::to_string(own) + " bytes", of = std::to_string(budget);
          const Choice expected =
              own > budget ? Choice{TPFSDP_UNSHARD_SHARED, text("a copy per rank would bring this rank to ", bytes,
                                                                ", over its memory budget of ", of)}
              : need[0] > budget
                  ? Choice{TPFSDP_UNSHARD_SHARED, "a copy per rank does not fit the memory budget of another rank"}
                  : Choice{TPFSDP_UNSHARD_PRIVATE,
                           text("a copy per rank brings this rank to ", bytes, ", within its memory budget of ", of)};
          for (size_t block = 0; block < 3; ++block) EXPECT_EQ(choice_of(model.block(block)), expected);
          EXPECT_EQ(choice_of(model.root()), expected);
          // Decided once.
          EXPECT_EQ(api::memory(model.root()).total_bytes, api::memory(model.root()).planned_peak_bytes);
          const chain::Values full = model.full();
          if (rank == 0) trained = full;
        },
        with_budget(budget));
    EXPECT_EQ(trained.get(), chain::clean_run(2, 2));
  }
}

TEST(Choice, ABudgetIsNotAskedWhereTheModeIs) {
  api::run_ranks(
      2,
      [](tpfsdp_context *context, int32_t rank) {
        chain::Chain model(context, rank, modes::shape(TPFSDP_UNSHARD_PRIVATE, 1));
        model.step(0);
        EXPECT_EQ(choice_of(model.block(0)), (Choice{TPFSDP_UNSHARD_PRIVATE, "asked for"}));
      },
      with_budget(1));
}

// The first step failed before all ranks had agreed, or after: they agree anew.
TEST(Choice, AfterAFailedFirstStepAllRanksChooseAnew) {
  const std::vector<int64_t> need = private_bytes(3);
  for (const bool is_prepared : {false, true}) {
    SCOPED_TRACE(is_prepared);
    chain::SharedValues trained;
    api::run_ranks(
        2,
        [&](tpfsdp_context *context, int32_t rank) {
          chain::Chain model(context, rank, {.is_sharded = false});
          shard_by_choice(model);
          if (is_prepared) API(tpfsdp_root_prepare, model.root());
          if (rank == 1) API(tpfsdp_root_fail, model.root(), "planted");
          if (rank == 0) {
            EXPECT_EQ(caught([&] { model.step(0); }).status, TPFSDP_ERR_REMOTE);
          }
          model.reset();
          for (int i = 0; i < 2; ++i) model.step(i);
          EXPECT_EQ(choice_of(model.block(0)).mode, TPFSDP_UNSHARD_SHARED);
          const chain::Values full = model.full();
          if (rank == 0) trained = full;
        },
        with_budget(need[1]));
    EXPECT_EQ(trained.get(), chain::clean_run(2, 2));
  }
}

TEST(Choice, WrongWishesAreRefused) {
  tpfsdp_context_options options = chain::options();
  options.memory_budget_bytes = -1;
  tpfsdp_context *made = nullptr;
  const api::Error budget = caught([&] { API(tpfsdp_context_create, &options, &made); });
  EXPECT_EQ(budget.status, TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(budget.what(), HasSubstr("memory_budget_bytes is -1"));
  on_ranks(1, [](tpfsdp_context *context, int32_t) {
    for (const tpfsdp_unshard_mode mode : {7, -1}) {
      api::Tree tree(context);
      const api::Error error = caught([&] { add_unit(tree, "a", modes::options(mode)); });
      EXPECT_EQ(error.status, TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("unshard_mode"), HasSubstr(std::to_string(mode))));
    }
  });
}

// With MAPPED on one of them already fully_shard meets; otherwise the first step does.
TEST(Choice, RanksThatAskForDifferentModesAreTold) {
  constexpr tpfsdp_unshard_mode kAuto = TPFSDP_UNSHARD_AUTO;
  for (const auto &[first, second] :
       {std::pair(modes::kPrivate, modes::kShared), std::pair(modes::kShared, modes::kMapped),
        std::pair(modes::kMapped, modes::kPrivate), std::pair(kAuto, modes::kPrivate), std::pair(kAuto, modes::kShared),
        std::pair(modes::kMapped, kAuto)}) {
    SCOPED_TRACE(std::to_string(first) + " and " + std::to_string(second));
    on_ranks(2, [&, first = first, second = second](tpfsdp_context *context, int32_t rank) {
      api::Tree tree(context);
      const api::Error error = caught([&] {
        add_unit(tree, "a", modes::options(rank == 0 ? first : second));
        shard_root(tree);
        API(tpfsdp_root_prepare, tree.root);
      });
      EXPECT_EQ(error.status, TPFSDP_ERR_MISMATCH) << error.what();
      EXPECT_THAT(error.what(), AllOf(HasSubstr("parameter a.weight"), HasSubstr("unshard mode")));
    });
  }
}

// ---- Memory -----------------------------------------------------------------------------------------------------

struct Bytes {
  int64_t shards = 0, slots = 0, total = 0, planned = 0, peak = 0;
};

TEST_P(Common, TheRanksTogetherHoldOneCopy) {
  for (int32_t world = 2; world <= 4; ++world) {
    SCOPED_TRACE(world);
    const chain::Shared<std::array<Bytes, 4>> ranks;
    const chain::Shared<int64_t> full_bytes, slot_count;
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(GetParam(), 5));
      for (int i = 0; i < 2; ++i) model.step(i);
      const tpfsdp_memory_info info = api::memory(model.root());
      (*ranks)[static_cast<size_t>(rank)] = {info.shard_bytes, info.slot_bytes, info.total_bytes,
                                             info.planned_peak_bytes, info.peak_bytes};
      EXPECT_EQ(info.spare_slot_count, 0);
      EXPECT_EQ(info.host_bytes + info.cast_bytes + info.part_bytes + info.accumulator_bytes, 0);
      if (rank > 0) return;
      *full_bytes = api::unit_info(model.block(0)).full_bytes;
      *slot_count = info.slot_count;
    });
    Bytes sum;
    for (const Bytes &of : *ranks) {
      sum.shards += of.shards;
      sum.slots += of.slots;
      EXPECT_EQ(of.total, of.planned);
      EXPECT_EQ(of.peak, of.planned);
    }
    EXPECT_EQ(*full_bytes, 128 + 20);
    if (GetParam() == TPFSDP_UNSHARD_MAPPED) {
      EXPECT_EQ(sum.shards, 6 * *full_bytes);
      EXPECT_EQ(sum.slots, 0);
      EXPECT_EQ(*slot_count, 0);
    } else {
      EXPECT_EQ(*slot_count, 3);  // the root's, and two that the blocks share
      EXPECT_EQ(sum.slots, 3 * *full_bytes);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // shadow memory would be counted

// Bytes of this process, of what it has in common with others its share.
int64_t proportional_bytes() {
  std::FILE *file = std::fopen("/proc/self/smaps_rollup", "r");
  if (!file) throw std::runtime_error("no /proc/self/smaps_rollup");
  char line[256];
  long long kib = -1;
  while (kib < 0 && std::fgets(line, sizeof line, file))
    if (std::sscanf(line, "Pss: %lld kB", &kib) != 1) kib = -1;
  std::fclose(file);
  if (kib < 0) throw std::runtime_error("/proc/self/smaps_rollup tells no Pss");
  return kib * 1024;
}

// Units of 4 MiB, gradients that the host fills: no memory but the library's.
class Large {
 public:
  explicit Large(tpfsdp_context *context) : tree(context) {
    for (int i = 0; i < kBlocks; ++i) {
      modules_.push_back(tree.child(tree.root, "b" + std::to_string(i)));
      weights_.push_back(tree.param(modules_.back(), "weight", TPFSDP_DTYPE_F32, {kRows, kRows},
                                    std::vector<float>(static_cast<size_t>(kRows * kRows), 0.5f)));
    }
    bias_ = tree.param(tree.root, "bias", TPFSDP_DTYPE_F32, {64}, std::vector<float>(64, 1));
  }
  void shard(tpfsdp_unshard_mode mode) {
    for (tpfsdp_module *module : modules_) tree.shard({module}, TPFSDP_RESHARD_AUTO, modes::options(mode));
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, modes::options(mode));
  }
  void step() {
    API(tpfsdp_module_pre_forward, tree.root);
    for (size_t i = 0; i < modules_.size(); ++i) {
      API(tpfsdp_module_pre_forward, modules_[i]);
      read(weights_[i]);
      API(tpfsdp_module_post_forward, modules_[i]);
    }
    API(tpfsdp_module_post_forward, tree.root);
    API(tpfsdp_module_pre_backward, tree.root);
    for (size_t i = modules_.size(); i-- > 0;) {
      API(tpfsdp_module_pre_backward, modules_[i]);
      read(weights_[i]);
      give(weights_[i]);
      API(tpfsdp_module_post_backward, modules_[i]);
    }
    give(bias_);
    API(tpfsdp_module_end_backward, tree.root);
  }

  api::Tree tree;

 private:
  static constexpr int kBlocks = 4;
  static constexpr int64_t kRows = 1024;

  static void read(tpfsdp_param *param) {
    const tpfsdp_view full = api::face(param, TPFSDP_FACE_FULL);
    int64_t wrong = 0;
    for (int64_t i = 0; i < api::count_of(full); ++i) wrong += static_cast<const float *>(full.data)[i] != 0.5f;
    EXPECT_EQ(wrong, 0);
  }
  static void give(tpfsdp_param *param) {
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, param, 0, &grad);
    std::fill_n(static_cast<float *>(grad.data), api::count_of(grad), 1.0f);
    API(tpfsdp_param_grad_ready, param);
  }

  std::vector<tpfsdp_module *> modules_;
  std::vector<tpfsdp_param *> weights_;
  tpfsdp_param *bias_ = nullptr;
};

// Ranks as processes, in every run: threads have one address space.
TEST(UnshardMemory, WhatProcessesTakeTogetherIsWhatTheFormulasSay) {
  constexpr int32_t kWorld = 4;
  for (const tpfsdp_unshard_mode mode : {modes::kPrivate, modes::kShared, modes::kMapped}) {
    SCOPED_TRACE(modes::name_of(mode));
    Meeting meeting(kWorld);
    const chain::Shared<std::atomic<int64_t>> grown(0), planned(0);
    api::run_processes(
        kWorld,
        [&](tpfsdp_context *context, int32_t) {
          Large model(context);
          meeting.arrive_and_wait();
          const int64_t before = proportional_bytes();
          meeting.arrive_and_wait();
          model.shard(mode);
          for (int i = 0; i < 2; ++i) model.step();
          meeting.arrive_and_wait();
          *grown += proportional_bytes() - before;
          *planned += api::memory(model.tree.root).total_bytes;
          EXPECT_EQ(api::memory(model.tree.root).total_bytes, api::memory(model.tree.root).planned_peak_bytes);
          meeting.arrive_and_wait();  // pages belong to all until all have looked
        },
        chain::options());
    const double formula = static_cast<double>(planned->load());
    EXPECT_LE(static_cast<double>(grown->load()), 1.02 * formula + 4e6);
    EXPECT_GE(static_cast<double>(grown->load()), 0.98 * formula) << "the formula counts what nobody has";
  }
}

#endif

INSTANTIATE_TEST_SUITE_P(Modes, Common, testing::Values(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED),
                         modes::name_of_test);

}  // namespace
