// SPDX-License-Identifier: Apache-2.0
#include "fsdp/slot_plan.hpp"

#include <algorithm>
#include <numeric>

namespace tpfsdp {

int64_t SlotPlan::total_bytes() const { return std::accumulate(slot_bytes.begin(), slot_bytes.end(), int64_t{0}); }

SlotPlan plan_slots(const std::vector<PlannedUnit> &units) {
  SlotPlan plan;
  plan.slot_of_unit.assign(units.size(), -1);
  std::vector<bool> is_shared;       // per slot
  std::vector<int32_t> slots_above;  // of the units on the path from the root, by depth
  int32_t slot_before = -1;          // of the last shared unit
  for (size_t i = 0; i < units.size(); ++i) {
    const PlannedUnit &unit = units[i];
    slots_above.resize(static_cast<size_t>(unit.depth), -1);
    int32_t slot = -1;
    if (unit.size_bytes > 0) {
      const auto is_free = [&](int32_t candidate) {
        return is_shared[static_cast<size_t>(candidate)] &&
               plan.slot_pool[static_cast<size_t>(candidate)] == unit.pool && candidate != slot_before &&
               std::find(slots_above.begin(), slots_above.end(), candidate) == slots_above.end();
      };
      const auto count = static_cast<int32_t>(plan.slot_bytes.size());
      if (!unit.keeps) {
        // Nesting is shallow and few slots are shared, so this look is short.
        for (int32_t candidate = 0; candidate < count && slot < 0; ++candidate) {
          if (is_free(candidate)) slot = candidate;
        }
      }
      if (slot < 0) {
        slot = count;
        plan.slot_bytes.push_back(0);
        plan.slot_pool.push_back(unit.pool);
        is_shared.push_back(!unit.keeps);
      }
      int64_t &bytes = plan.slot_bytes[static_cast<size_t>(slot)];
      bytes = std::max(bytes, unit.size_bytes);
      if (!unit.keeps) slot_before = slot;
    }
    plan.slot_of_unit[i] = slot;
    slots_above.push_back(slot);
  }
  return plan;
}

}  // namespace tpfsdp
