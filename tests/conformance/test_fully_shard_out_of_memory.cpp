// SPDX-License-Identifier: Apache-2.0
// Every allocation that the library makes on one rank, from building the tree to the end of the first step, fails once.
// That rank hears OUT_OF_MEMORY, its peer REMOTE, nobody waits for ever, and after reset_iter_state on both training
// comes to the same bits as if memory had never been short.
#include "support/allocation.hpp"
#include "support/chain.hpp"

namespace {

namespace allocation = tpfsdp::allocation;
using chain::Values;

constexpr int32_t kWorld = 2;
constexpr int32_t kShort = 1;  // the rank that is short of memory

chain::Shape small(tpfsdp_reshard_kind reshard) {
  chain::Shape shape;
  shape.blocks = 2;
  shape.width = 3;
  shape.reshard = reshard;
  return shape;
}

// True: it went well. False: it ended for want of memory, here or on the peer.
template <class Attempt>
bool went_well(int32_t rank, Attempt &&attempt) {
  try {
    attempt();
    return true;
  } catch (const api::Error &error) {
    EXPECT_EQ(error.status, rank == kShort ? TPFSDP_ERR_OUT_OF_MEMORY : TPFSDP_ERR_REMOTE) << error.what();
    if (rank != kShort) {
      EXPECT_EQ(error.rank, kShort) << error.what();
      EXPECT_THAT(error.what(),
                  testing::AnyOf(testing::HasSubstr("OUT_OF_MEMORY"), testing::HasSubstr("is resetting")));
    }
    return false;
  }
}

// One run in which the allocation after `successes` others fails. False: there were not so many.
bool run_short_of_memory(int64_t successes, tpfsdp_reshard_kind reshard, const Values &expected) {
  chain::Shared<bool> fault_fired(false);
  chain::on_ranks(kWorld, [&](tpfsdp_context *context, int32_t rank) {
    if (rank == kShort) {
      allocation::pause(true);
      allocation::fail_after(successes);
      api::around_call = [](bool begins) { allocation::pause(!begins); };
    }
    std::unique_ptr<chain::Chain> model;
    tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
    API(tpfsdp_context_get_info, context, &info);
    // Then building is collective: all begin again where one could not.
    const bool is_mapped = api::unshard_mode_of_suite() == TPFSDP_UNSHARD_MAPPED;
    const auto build = [&] {
      model = std::make_unique<chain::Chain>(context, rank, small(reshard));
      if (is_mapped) API(tpfsdp_group_barrier, info.group);
    };
    const bool is_built = went_well(rank, build);
    if (is_mapped && !is_built) API(tpfsdp_group_reset, info.group);
    if (!is_built) build();
    // Who was told of an error resets; the peer hears of it, and resets too.
    const bool is_well = is_built && went_well(rank, [&] { model->step(0); });
    if (rank == kShort) {
      *fault_fired = allocation::has_failed();
      allocation::never_fail();
      allocation::pause(false);
      api::around_call = nullptr;
      EXPECT_EQ(is_well, !*fault_fired) << "an allocation failed, and nobody was told";
    }
    if (!is_well) {
      model->reset();
      model->expect_idle();
      model->step(0);
    }
    model->step(1);
    EXPECT_EQ(model->full(), expected) << "after allocation " << successes << " failed";
  });
  return *fault_fired;
}

class OutOfMemory : public testing::TestWithParam<tpfsdp_reshard_kind> {};

TEST_P(OutOfMemory, EveryAllocationOfOneRankFailsOnce) {
  const Values expected = chain::clean_run(kWorld, 2, small(GetParam()));
  int64_t failed = 0;
  while (run_short_of_memory(failed, GetParam(), expected) && !HasFailure()) {
    ++failed;
    ASSERT_LT(failed, 5000) << "the library allocates without end";
  }
  EXPECT_GT(failed, 80) << "building, the plan of the first step, its slots and its errors";
  RecordProperty("allocations", static_cast<int>(failed));
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemory, testing::Values(TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER),
                         [](const auto &tested) {
                           return std::string(tested.param == TPFSDP_RESHARD_ALWAYS ? "Always" : "Never");
                         });

}  // namespace
