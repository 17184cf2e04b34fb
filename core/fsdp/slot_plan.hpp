// SPDX-License-Identifier: Apache-2.0
// Which units share memory for their full parameters, and for their full gradients. A pure function.
//
// Units that can be full together get different slots: one that stays full after forward has its own; a unit and those
// in its modules' subtrees; a unit and the one gathered while it computes, that is its neighbours in the order of
// forward (pre-order) and of backward (post-order, reversed) with all units around them; and what an explicit prefetch
// list adds. All others share; a slot is as large as its largest unit.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tpfsdp {

struct PlannedUnit {
  int64_t size_bytes = 0;
  bool keeps = false;  // stays full between forward and backward, or longer
  int32_t depth = 0;   // sharded modules above it
  int32_t pool = 0;    // units of different pools share no slot
};

struct SlotPlan {
  std::vector<int32_t> slot_of_unit;  // -1: nothing to hold
  std::vector<int64_t> slot_bytes;
  std::vector<int32_t> slot_pool;
  int64_t total_bytes() const;
};

// Positions of units in pre-order of their modules, in the order in which their modules' forward ends.
std::vector<int32_t> post_order(const std::vector<PlannedUnit> &units);

using UnitPairs = std::vector<std::pair<int32_t, int32_t>>;

// Units in pre-order of their modules; `together`: pairs that are full together for reasons of their own. Without such
// pairs never more than what is kept and, for each depth and pool, two units of the largest size there.
SlotPlan plan_slots(const std::vector<PlannedUnit> &units, const UnitPairs &together = {});

}  // namespace tpfsdp
