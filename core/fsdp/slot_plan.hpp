// SPDX-License-Identifier: Apache-2.0
// Which units share memory for their full parameters, and for their full gradients. A pure function.
//
// Units that can be full together get different slots: one that stays full after forward has its own; a unit and those
// in its modules' subtrees; and neighbours in the order of gathering, for the prefetch of the next while one computes.
// All others share; a slot is as large as its largest unit.
#pragma once

#include <cstdint>
#include <vector>

namespace tpfsdp {

struct PlannedUnit {
  int64_t size_bytes = 0;
  bool keeps = false;  // stays full after forward
  int32_t depth = 0;   // sharded modules above it
  int32_t pool = 0;    // units of different pools share no slot
};

struct SlotPlan {
  std::vector<int32_t> slot_of_unit;  // -1: nothing to hold
  std::vector<int64_t> slot_bytes;
  std::vector<int32_t> slot_pool;
  int64_t total_bytes() const;
};

// Units in pre-order of their modules.
SlotPlan plan_slots(const std::vector<PlannedUnit> &units);

}  // namespace tpfsdp
