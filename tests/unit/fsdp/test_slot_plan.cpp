// SPDX-License-Identifier: Apache-2.0
// Which units share memory: properties over random trees, and the cases that users count on.
#include "fsdp/slot_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tpfsdp {
namespace {

using Slots = std::vector<int32_t>;
using Sizes = std::vector<int64_t>;

TEST(SlotPlan, TwelveEqualBlocksTakeTheRootAndTwoSlots) {
  std::vector<PlannedUnit> units{{4096, true, 0, 0}};
  for (int i = 0; i < 12; ++i) units.push_back({1024, false, 1, 0});
  const SlotPlan plan = plan_slots(units);
  EXPECT_EQ(plan.slot_bytes, (Sizes{4096, 1024, 1024}));
  EXPECT_EQ(plan.slot_of_unit, (Slots{0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(plan.total_bytes(), 4096 + 2 * 1024);
}

TEST(SlotPlan, ASlotIsAsLargeAsItsLargestUnit) {
  const SlotPlan plan =
      plan_slots({{10, true, 0, 0}, {100, false, 1, 0}, {7, false, 1, 0}, {300, false, 1, 0}, {9, false, 1, 0}});
  EXPECT_EQ(plan.slot_of_unit, (Slots{0, 1, 2, 1, 2}));
  EXPECT_EQ(plan.slot_bytes, (Sizes{10, 300, 9}));
}

TEST(SlotPlan, UnitsThatStayFullShareWithNobody) {
  std::vector<PlannedUnit> units;
  for (int i = 0; i < 5; ++i) units.push_back({8, true, i == 0 ? 0 : 1, 0});
  EXPECT_EQ(plan_slots(units).slot_of_unit, (Slots{0, 1, 2, 3, 4}));
}

TEST(SlotPlan, ARootThatFreesItsParametersStillHoldsThemAroundItsChildren) {
  const SlotPlan plan = plan_slots({{8, false, 0, 0}, {8, false, 1, 0}, {8, false, 1, 0}, {8, false, 1, 0}});
  EXPECT_EQ(plan.slot_of_unit, (Slots{0, 1, 2, 1}));
}

TEST(SlotPlan, UnitsWithNothingToHoldTakeNoSlot) {
  const SlotPlan plan = plan_slots({{0, true, 0, 0}, {8, false, 1, 0}, {0, false, 1, 0}, {8, false, 1, 0}});
  EXPECT_EQ(plan.slot_of_unit, (Slots{-1, 0, -1, 1}));
  EXPECT_EQ(plan_slots({}).total_bytes(), 0);
}

TEST(SlotPlan, PoolsShareNothing) {
  const SlotPlan plan = plan_slots({{8, false, 1, 0}, {8, false, 1, 1}, {8, false, 1, 0}, {8, false, 1, 1}});
  EXPECT_EQ(plan.slot_pool, (Slots{0, 1}));
  EXPECT_EQ(plan.slot_of_unit, (Slots{0, 1, 0, 1}));
}

std::vector<PlannedUnit> random_tree(std::mt19937 &random) {
  std::vector<PlannedUnit> units;
  int32_t depth = 0;
  for (size_t n = 1 + random() % 30; n > 0; --n) {
    units.push_back({static_cast<int64_t>(random() % 4 == 0 ? 0 : 1 + random() % 100), random() % 6 == 0, depth,
                     static_cast<int32_t>(random() % 2)});
    depth = 1 + static_cast<int32_t>(random() % static_cast<unsigned>(depth + 1));  // a child, a sibling, or further up
  }
  return units;
}

TEST(SlotPlan, NoTwoUnitsThatCanBeFullTogetherShareASlot) {
  std::mt19937 random(20);
  for (int i = 0; i < 3000; ++i) {
    const std::vector<PlannedUnit> units = random_tree(random);
    const SlotPlan plan = plan_slots(units);
    ASSERT_EQ(plan.slot_of_unit.size(), units.size());
    int64_t sum = 0, largest = 0;
    size_t before = units.size();  // the last one that shares
    for (size_t a = 0; a < units.size(); ++a) {
      const int32_t slot = plan.slot_of_unit[a];
      ASSERT_EQ(slot >= 0, units[a].size_bytes > 0);
      if (slot < 0) continue;
      sum += units[a].size_bytes;
      largest = std::max(largest, units[a].size_bytes);
      ASSERT_GE(plan.slot_bytes[static_cast<size_t>(slot)], units[a].size_bytes);
      ASSERT_EQ(plan.slot_pool[static_cast<size_t>(slot)], units[a].pool);
      int32_t above = units[a].depth;
      for (size_t b = a; b-- > 0;) {
        const bool is_ancestor = units[b].depth < above;
        if (is_ancestor) above = units[b].depth;
        if (is_ancestor || units[a].keeps || units[b].keeps) {
          ASSERT_NE(plan.slot_of_unit[b], slot) << a << " and " << b;
        }
      }
      if (units[a].keeps) continue;
      if (before < units.size()) {
        ASSERT_NE(plan.slot_of_unit[before], slot) << "neighbours " << before << ", " << a;
      }
      before = a;
    }
    ASSERT_LE(plan.total_bytes(), sum);
    ASSERT_GE(plan.total_bytes(), largest);
    for (const int64_t bytes : plan.slot_bytes)
      ASSERT_TRUE(std::any_of(units.begin(), units.end(), [&](const auto &unit) { return unit.size_bytes == bytes; }));
  }
}

}  // namespace
}  // namespace tpfsdp
