// SPDX-License-Identifier: Apache-2.0
#include "fsdp/slot_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace tpfsdp {
namespace {

using Units = std::vector<PlannedUnit>;

// The units that each unit may share no slot with; kept ones share with nobody and are not in it.
class Conflicts {
 public:
  Conflicts(const Units &units, const UnitPairs &together) : units_(units), of_(units.size()) {
    std::vector<int32_t> in_forward(units.size());
    std::iota(in_forward.begin(), in_forward.end(), 0);
    find_above();
    for (int32_t unit = 0; unit < count(); ++unit) {
      for (const int32_t other : above_[static_cast<size_t>(unit)]) add(unit, other);
    }
    add_neighbours(in_forward);
    add_neighbours(post_order(units));
    for (const auto &[a, b] : together) add(a, b);
  }

  const std::vector<int32_t> &of(int32_t unit) const { return of_[static_cast<size_t>(unit)]; }

 private:
  int32_t count() const { return static_cast<int32_t>(units_.size()); }
  const PlannedUnit &at(int32_t unit) const { return units_[static_cast<size_t>(unit)]; }
  bool shares(int32_t unit) const { return at(unit).size_bytes > 0 && !at(unit).keeps; }

  void add(int32_t a, int32_t b) {
    if (a == b || !shares(a) || !shares(b)) return;
    of_[static_cast<size_t>(a)].push_back(b);
    of_[static_cast<size_t>(b)].push_back(a);
  }

  void find_above() {
    std::vector<int32_t> above;
    for (int32_t unit = 0; unit < count(); ++unit) {
      while (!above.empty() && at(above.back()).depth >= at(unit).depth) above.pop_back();
      above_.push_back(above);
      above.push_back(unit);
    }
  }

  // While one computes, and all around it are full, the other is gathered.
  void add_neighbours(const std::vector<int32_t> &order) {
    int32_t before = -1;
    for (const int32_t unit : order) {
      if (!shares(unit)) continue;
      if (before >= 0) {
        add(unit, before);
        for (const int32_t other : above_[static_cast<size_t>(unit)]) add(before, other);
        for (const int32_t other : above_[static_cast<size_t>(before)]) add(unit, other);
      }
      before = unit;
    }
  }

  const Units &units_;
  std::vector<std::vector<int32_t>> above_;
  std::vector<std::vector<int32_t>> of_;
};

class Planner {
 public:
  explicit Planner(const Units &units) : units_(units) { plan.slot_of_unit.assign(units.size(), -1); }

  SlotPlan plan;

  int32_t new_slot(int32_t pool) {
    plan.slot_bytes.push_back(0);
    plan.slot_pool.push_back(pool);
    return static_cast<int32_t>(plan.slot_bytes.size()) - 1;
  }
  void put(int32_t unit, int32_t slot) {
    plan.slot_of_unit[static_cast<size_t>(unit)] = slot;
    int64_t &bytes = plan.slot_bytes[static_cast<size_t>(slot)];
    bytes = std::max(bytes, at(unit).size_bytes);
  }
  const PlannedUnit &at(int32_t unit) const { return units_[static_cast<size_t>(unit)]; }

 private:
  const Units &units_;
};

// The largest first, each into the first slot that it conflicts with nobody in.
SlotPlan plan_by_size(const Units &units, const Conflicts &conflicts) {
  Planner planner(units);
  std::vector<int32_t> order(units.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int64_t bytes_a = planner.at(a).size_bytes, bytes_b = planner.at(b).size_bytes;
    return bytes_a != bytes_b ? bytes_a > bytes_b : a < b;
  });
  std::vector<int32_t> shared;  // slots
  for (const int32_t unit : order) {
    if (planner.at(unit).size_bytes == 0) continue;
    const auto is_free = [&](int32_t slot) {
      if (planner.plan.slot_pool[static_cast<size_t>(slot)] != planner.at(unit).pool) return false;
#if defined(TPFSDP_MUTANT_SLOT_REUSED_BY_A_NEIGHBOUR)
      return true;
#endif
      const std::vector<int32_t> &others = conflicts.of(unit);
      return std::none_of(others.begin(), others.end(),
                          [&](int32_t other) { return planner.plan.slot_of_unit[static_cast<size_t>(other)] == slot; });
    };
    const auto found = planner.at(unit).keeps ? shared.end() : std::find_if(shared.begin(), shared.end(), is_free);
    const int32_t slot = found != shared.end() ? *found : planner.new_slot(planner.at(unit).pool);
    if (found == shared.end() && !planner.at(unit).keeps) shared.push_back(slot);
    planner.put(unit, slot);
  }
  return std::move(planner.plan);
}

// Two slots for each depth, in turn: what conflicts at one depth are neighbours there.
SlotPlan plan_by_depth(const Units &units) {
  Planner planner(units);
  struct Turn {
    int32_t slots[2] = {-1, -1};
    int next = 0;
  };
  std::map<std::pair<int32_t, int32_t>, Turn> turns;  // by depth and pool
  for (int32_t unit = 0; unit < static_cast<int32_t>(units.size()); ++unit) {
    const PlannedUnit &planned = planner.at(unit);
    if (planned.size_bytes == 0) continue;
    if (planned.keeps) {
      planner.put(unit, planner.new_slot(planned.pool));
      continue;
    }
    Turn &turn = turns[{planned.depth, planned.pool}];
    int32_t &slot = turn.slots[turn.next];
    if (slot < 0) slot = planner.new_slot(planned.pool);
    planner.put(unit, slot);
    turn.next = 1 - turn.next;
  }
  return std::move(planner.plan);
}

// Slots numbered by the first unit in each, so that equal trees have equal numbers.
SlotPlan in_order_of_use(const SlotPlan &plan) {
  SlotPlan out;
  std::vector<int32_t> number(plan.slot_bytes.size(), -1);
  for (const int32_t slot : plan.slot_of_unit) {
    if (slot < 0) {
      out.slot_of_unit.push_back(-1);
      continue;
    }
    const auto old = static_cast<size_t>(slot);
    if (number[old] < 0) {
      number[old] = static_cast<int32_t>(out.slot_bytes.size());
      out.slot_bytes.push_back(plan.slot_bytes[old]);
      out.slot_pool.push_back(plan.slot_pool[old]);
    }
    out.slot_of_unit.push_back(number[old]);
  }
  return out;
}

}  // namespace

std::vector<int32_t> post_order(const std::vector<PlannedUnit> &units) {
  std::vector<int32_t> order, open;
  const auto depth = [&units](int32_t unit) { return units[static_cast<size_t>(unit)].depth; };
  const auto end_open = [&](int32_t down_to) {
    while (!open.empty() && depth(open.back()) >= down_to) {
      order.push_back(open.back());
      open.pop_back();
    }
  };
  for (int32_t unit = 0; unit < static_cast<int32_t>(units.size()); ++unit) {
    end_open(depth(unit));
    open.push_back(unit);
  }
  end_open(0);
  return order;
}

int64_t SlotPlan::total_bytes() const { return std::accumulate(slot_bytes.begin(), slot_bytes.end(), int64_t{0}); }

SlotPlan plan_slots(const std::vector<PlannedUnit> &units, const UnitPairs &together) {
  const SlotPlan by_size = plan_by_size(units, Conflicts(units, together));
  if (together.empty()) {
    const SlotPlan by_depth = plan_by_depth(units);
    if (by_depth.total_bytes() < by_size.total_bytes()) return in_order_of_use(by_depth);
  }
  return in_order_of_use(by_size);
}

}  // namespace tpfsdp
