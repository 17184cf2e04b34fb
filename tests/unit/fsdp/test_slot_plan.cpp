// SPDX-License-Identifier: Apache-2.0
// Which units share memory: properties over random trees, and the cases that users count on.
#include "fsdp/slot_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
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

// What is full at once in one step of a tree: each unit with those around it, and the one gathered ahead.
std::vector<std::vector<int32_t>> moments_of_a_step(const std::vector<PlannedUnit> &units) {
  std::vector<std::vector<int32_t>> moments;
  std::vector<int32_t> around;
  std::vector<std::vector<int32_t>> around_of(units.size());
  for (size_t unit = 0; unit < units.size(); ++unit) {
    around.erase(
        std::find_if(around.begin(), around.end(),
                     [&](int32_t above) { return units[static_cast<size_t>(above)].depth >= units[unit].depth; }),
        around.end());
    around_of[unit] = around;
    around.push_back(static_cast<int32_t>(unit));
  }
  const auto walk = [&](const std::vector<int32_t> &order) {
    for (size_t i = 0; i < order.size(); ++i) {
      std::vector<int32_t> full = around_of[static_cast<size_t>(order[i])];
      full.push_back(order[i]);
      // The next one that shares: what is kept is gathered once and stays, what is empty is not gathered.
      for (size_t next = i + 1; next < order.size(); ++next) {
        const PlannedUnit &ahead = units[static_cast<size_t>(order[next])];
        if (ahead.size_bytes == 0 || ahead.keeps) continue;
        full.push_back(order[next]);
        break;
      }
      moments.push_back(full);
    }
  };
  std::vector<int32_t> forward(units.size());
  std::iota(forward.begin(), forward.end(), 0);
  walk(forward);
  const std::vector<int32_t> ends = post_order(units);
  walk({ends.rbegin(), ends.rend()});
  for (const PlannedUnit &unit : units) {
    if (!unit.keeps) continue;
    for (std::vector<int32_t> &full : moments) full.push_back(static_cast<int32_t>(&unit - units.data()));
  }
  return moments;
}

int64_t formula(const std::vector<PlannedUnit> &units) {
  int64_t bytes = 0;
  std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>> shared;  // sizes by depth and pool
  for (const PlannedUnit &unit : units) {
    if (unit.keeps) {
      bytes += unit.size_bytes;
    } else if (unit.size_bytes > 0) {
      shared[{unit.depth, unit.pool}].push_back(unit.size_bytes);
    }
  }
  for (const auto &[at, sizes] : shared)
    bytes += *std::max_element(sizes.begin(), sizes.end()) * (sizes.size() > 1 ? 2 : 1);
  return bytes;
}

void expect_apart(const SlotPlan &plan, const std::vector<int32_t> &full) {
  std::map<int32_t, int32_t> holder;
  for (const int32_t unit : full) {
    const int32_t slot = plan.slot_of_unit[static_cast<size_t>(unit)];
    if (slot < 0) continue;
    const auto [at, is_first] = holder.emplace(slot, unit);
    ASSERT_TRUE(is_first || at->second == unit) << "units " << at->second << " and " << unit << " in slot " << slot;
  }
}

TEST(SlotPlan, NoTwoUnitsThatCanBeFullTogetherShareASlot) {
  std::mt19937 random(20);
  for (int i = 0; i < 3000; ++i) {
    const std::vector<PlannedUnit> units = random_tree(random);
    const SlotPlan plan = plan_slots(units);
    ASSERT_EQ(plan.slot_of_unit.size(), units.size());
    for (const std::vector<int32_t> &full : moments_of_a_step(units)) {
      expect_apart(plan, full);
      if (HasFatalFailure()) return;
    }
    for (size_t unit = 0; unit < units.size(); ++unit) {
      const int32_t slot = plan.slot_of_unit[unit];
      ASSERT_EQ(slot >= 0, units[unit].size_bytes > 0);
      if (slot < 0) continue;
      ASSERT_GE(plan.slot_bytes[static_cast<size_t>(slot)], units[unit].size_bytes);
      ASSERT_EQ(plan.slot_pool[static_cast<size_t>(slot)], units[unit].pool);
    }
    ASSERT_LE(plan.total_bytes(), formula(units)) << "tree " << i;
    for (const int64_t bytes : plan.slot_bytes)
      ASSERT_TRUE(std::any_of(units.begin(), units.end(), [&](const auto &unit) { return unit.size_bytes == bytes; }));
  }
}

TEST(SlotPlan, PairsThatAreFullTogetherShareNoSlot) {
  std::mt19937 random(21);
  for (int i = 0; i < 1000; ++i) {
    const std::vector<PlannedUnit> units = random_tree(random);
    UnitPairs together;
    for (size_t n = random() % 20; n > 0; --n)
      together.emplace_back(static_cast<int32_t>(random() % units.size()),
                            static_cast<int32_t>(random() % units.size()));
    const SlotPlan plan = plan_slots(units, together);
    std::vector<std::vector<int32_t>> moments = moments_of_a_step(units);
    for (const auto &[a, b] : together) moments.push_back({a, b});
    for (const std::vector<int32_t> &full : moments) {
      expect_apart(plan, full);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SlotPlan, PostOrderIsTheOrderInWhichForwardsEnd) {
  const std::vector<PlannedUnit> units{{8, false, 0, 0}, {8, false, 1, 0}, {8, false, 2, 0},
                                       {8, false, 2, 0}, {8, false, 1, 0}, {8, false, 3, 0}};
  EXPECT_EQ(post_order(units), (Slots{2, 3, 1, 5, 4, 0}));
}

}  // namespace
}  // namespace tpfsdp
