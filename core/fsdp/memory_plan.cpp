// SPDX-License-Identifier: Apache-2.0
// The memory of a tree: in which mode its units come to be full, which slots they get, and what all of it takes.
#include "fsdp/gather.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/root.hpp"
#include "fsdp/schedule.hpp"

#include <algorithm>

namespace tpfsdp {

namespace {

// Kept beside shards, of this rank.
int64_t planned_cast_bytes(const ParamGroup &unit) {
  if (!unit.needs_cast_shards()) return unit.mapped_cast_bytes();
  return unit.layout.cast_shard_places(unit.group->rank()).size_bytes;
}

}  // namespace

// A slot of mode shared belongs to one group; private ones are of any.
Root::Plan Root::plan() const {
  std::vector<PlannedUnit> full(units.size()), gradients(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    const ParamGroup &unit = *units[i];
    const auto at = static_cast<size_t>(std::find(states.begin(), states.end(), &unit.state) - states.begin());
    const auto group = static_cast<int32_t>(std::find(groups.begin(), groups.end(), unit.group) - groups.begin());
    const bool spans = unit.state.modules.size() > 1;  // others run between its modules, while it is full
    const bool keeps = unit.keeps() || unit.state.has_kept_after_backward || spans;
    const bool has_own_memory = unit.host_memory || unit.mapped;
    const int32_t pool = unit.mode.mode == UnshardMode::kShared ? 1 + group : 0;
    full[i] = {has_own_memory ? 0 : unit.layout.full_bytes, keeps, depths[at], pool};
    gradients[i] = {unit.layout.grad_bytes, spans, depths[at], group};
  }
  return {plan_slots(full, prefetched_together(*this, post_order(full))), plan_slots(gradients)};
}

int64_t Root::bytes_of(const Plan &plan) const {
  int64_t bytes = plan.gradients.total_bytes();
  for (size_t i = 0; i < plan.full.slot_bytes.size(); ++i) {
    const int64_t slot = plan.full.slot_bytes[i];
    const Group *group = group_of_pool(plan.full.slot_pool[i]);
    bytes += group ? CommonRegion::part_bytes(slot, group->rank(), group->size()) : slot;
  }
  for (const ParamGroup *unit : units) {
    bytes += unit->shard_bytes() + planned_cast_bytes(*unit) +
             unit->layout.grad_shard_places(unit->group->rank()).size_bytes;
    if (unit->state.reshard_kind == ReshardKind::kSize) bytes += part_bytes(unit->layout, unit->state.reshard_size);
  }
  return bytes;
}

Group *Root::group_of_pool(int32_t pool) const {
  return pool == 0 ? nullptr : groups[static_cast<size_t>(pool) - 1].get();
}

UnshardMode Root::wanted_mode() {
  for (ParamGroup *unit : units) {  // anew, where a first step failed
    if (unit->mode.is_library_choice) unit->mode.mode = UnshardMode::kAuto;
  }
  budgeted_bytes_ = 0;
  const int64_t budget = context->rank().options().memory_budget_bytes;
  if (budget > 0) budgeted_bytes_ = bytes_of(plan());
  return mode_that_fits(budgeted_bytes_, budget);
}

void Root::settle_modes() {
  const int64_t budget = context->rank().options().memory_budget_bytes;
  const UnshardMode own = mode_that_fits(budgeted_bytes_, budget);
  for (ParamGroup *unit : units) {
    if (unit->mode.is_library_choice)
      unit->mode = settle_mode(own, exchange_->agreed_mode(*unit->group), budgeted_bytes_, budget);
  }
}

void Root::make_plan() {
  check_units();  // again: what is trainable may have changed
  for (ParamGroup *unit : units) {
    reshard(*unit);
    if (unit->is_full() || unit->held_grad_slot)
      fail(TPFSDP_ERR_STATE, "unit ", unit->name,
           " is in use, so memory cannot be planned anew after parameters were frozen or unfrozen, or switches "
           "changed: close scopes and release views first");
    unit->lay_out();
    lay_out_part(*unit);
    std::string names;
    for (const ShardedParam &p : unit->params) {
      if (p.param->requires_grad()) append_text(names, cat(names.empty() ? "" : ",", p.param->full_name()));
    }
    unit->reduce_detail = recorder().intern(names);
    unit->slot = unit->spare = nullptr;
    unit->grad_slot = nullptr;
  }
  const Plan made = plan();
  make_slots(made.full);
  grad_slots.clear();
  grad_slots.resize(made.gradients.slot_bytes.size());
  for (size_t i = 0; i < units.size(); ++i) {
    const int32_t full = made.full.slot_of_unit[i], number = made.gradients.slot_of_unit[i];
    if (full >= 0) units[i]->slot = &slots[static_cast<size_t>(full)];
    if (number < 0) continue;
    GradSlot &slot = grad_slots[static_cast<size_t>(number)];
    if (!slot.memory.data())
      slot.memory = Region(*units[i]->group, made.gradients.slot_bytes[static_cast<size_t>(number)], &account);
    units[i]->grad_slot = &slot;
  }
  planned_slots = static_cast<int32_t>(slots.size());
  planned_grad_slots = static_cast<int32_t>(grad_slots.size());
  planned_bytes = bytes_of(made);
  recorder().counters.allocations += planned_grad_slots + static_cast<int64_t>(units.size());
  plan_is_old_ = plan_may_improve_ = false;
}

// Those of the last plan stay where this one wants the same, so that what only one rank plans anew is no collective.
void Root::make_slots(const SlotPlan &plan) {
  slots.resize(std::min(slots.size(), static_cast<size_t>(planned_slots)));
  const auto is_same = [&](const Slot &slot) {
    const auto i = static_cast<size_t>(slot.number);
    return i < plan.slot_bytes.size() && slot.size_bytes == plan.slot_bytes[i] &&
           slot.group.get() == group_of_pool(plan.slot_pool[i]);
  };
  if (!loses_slots_ && slots.size() == plan.slot_bytes.size() && std::all_of(slots.begin(), slots.end(), is_same))
    return;
  slots.clear();
  planned_slots = 0;
  misses_slots_ = true;
  for (size_t i = 0; i < plan.slot_bytes.size(); ++i) {
    Slot &slot = slots.emplace_back();
    slot.number = static_cast<int32_t>(i);
    slot.size_bytes = plan.slot_bytes[i];
    slot.group = Ref<Group>(group_of_pool(plan.slot_pool[i]));
    if (!slot.group) slot.memory = Buffer(slot.size_bytes, &account);
  }
  recorder().counters.allocations += std::ssize(slots);
  loses_slots_ = false;
}

Status Root::make_common_slots(bool may_wait) {
  for (Slot &slot : slots) {
    if (!slot.group || slot.common) continue;
    if (slot.common.create(*slot.group, slot.size_bytes, &account, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  misses_slots_ = false;
  return TPFSDP_OK;
}

MemoryReport Root::memory_report() const {
  MemoryReport report;
  report.spare_slots =
      static_cast<int32_t>(slots.size()) - planned_slots + static_cast<int32_t>(grad_slots.size()) - planned_grad_slots;
  for (const ParamGroup *unit : units) {
    report.shard_bytes += unit->shard_bytes();
    report.cast_bytes += unit->cast_bytes();
    report.grad_shard_bytes += unit->grad_shards->size_bytes();
    report.grad_slot_bytes += unit->second_gradient.size_bytes();
    report.accumulator_bytes += unit->accumulator.memory.size_bytes();
    if (unit->part) report.part_bytes += unit->part->memory.size_bytes();
  }
  for (const Slot &slot : slots) report.slot_bytes += slot.held_bytes();
  for (const GradSlot &slot : grad_slots) report.grad_slot_bytes += slot.memory.size_bytes();
  return report;
}

}  // namespace tpfsdp
