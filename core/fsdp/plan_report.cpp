// SPDX-License-Identifier: Apache-2.0
#include "fsdp/plan_report.hpp"

#include "tensor/dtype.hpp"

#include <algorithm>
#include <numeric>

namespace tpfsdp {
namespace {

template <class Slots, class Slot>
int32_t number_of(const Slots &slots, const Slot *slot) {
  for (size_t i = 0; slot && i < slots.size(); ++i) {
    if (&slots[i] == slot) return static_cast<int32_t>(i);
  }
  return -1;
}

std::string reshard_text(const ParamGroup &unit) {
  switch (unit.state.reshard_kind) {
    case ReshardKind::kAlways: return "always";
    case ReshardKind::kNever: return "never";
    case ReshardKind::kSize: return cat("to size ", unit.state.reshard_size);
    case ReshardKind::kAuto: break;
  }
  return unit.keeps() ? "automatic: never" : "automatic: always";
}

// What one forward and one backward with sync cost this unit.
void count_collectives(const ParamGroup &unit, PlanReport::Unit &out) {
  if (unit.group->size() == 1) return;
  const Switches &switches = unit.state.switches;
  out.gathers = 1;
  out.gathered_bytes = unit.gather_wire_bytes();
  if (!unit.keeps() && switches.unshards_in_backward) {
    ++out.gathers;
    out.gathered_bytes += unit.part ? unit.part->route.wire_bytes : unit.gather_wire_bytes();
  }
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ParamLayout &at = unit.layout.params[i];
    if (at.grad_offset < 0 || at.full_bytes() == 0) continue;
    out.reductions = 1;
    const int64_t owned = unit.layout.owned(i, unit.group->rank()).count();
    out.reduced_bytes += dtype_bytes(at.full_dtype, owned) * (unit.group->size() - 1);
  }
}

PlanReport::Unit report_unit(const Root &root, const ParamGroup &unit) {
  PlanReport::Unit out;
  out.name = unit.name;
  out.group = unit.group->name();
  out.ranks = unit.group->size();
  out.reshard = reshard_text(unit);
  out.slot = number_of(root.slots, unit.slot);
  out.grad_slot = number_of(root.grad_slots, unit.grad_slot);
  out.unshard_mode = mode_name(unit.mode.mode);
  out.unshard_reason = unit.mode.reason;
  out.is_host_memory = static_cast<bool>(unit.host_memory);
  out.shard_bytes = unit.shard_bytes();
  out.full_bytes = unit.layout.full_bytes;
  out.padding_bytes = unit.layout.full_bytes - unit.layout.logical_bytes;
  out.grad_bytes = unit.layout.grad_bytes;
  count_collectives(unit, out);
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const Param &of = *unit.params[i].param;
    const ParamLayout &at = unit.layout.params[i];
    PlanReport::Parameter param;
    param.name = of.full_name();
    param.dtype = dtype_name(at.dtype);
    param.full_dtype = dtype_name(at.full_dtype);
    param.reduce_dtype = dtype_name(at.reduce_dtype);
    param.shape = of.shape();
    param.trainable = of.requires_grad();
    param.in_elements = unit.layout.ownership.cuts_inside_rows();
    for (int32_t rank = 0; rank < unit.group->size(); ++rank) {
      const ElementRange elements = unit.layout.owned(i, rank);
      param.owned.push_back(param.in_elements ? RowRange{elements.begin, elements.end}
                                              : unit.layout.owned_rows(i, rank));
    }
    out.parameters.push_back(std::move(param));
  }
  return out;
}

template <class Member>
int64_t sum(const std::vector<PlanReport::Unit> &units, Member &&member) {
  return std::accumulate(units.begin(), units.end(), int64_t{0},
                         [&](int64_t total, const auto &unit) { return total + member(unit); });
}

}  // namespace

int64_t PlanReport::gathers() const {
  return sum(units, [](const Unit &unit) { return unit.gathers; });
}
int64_t PlanReport::reductions() const {
  return sum(units, [](const Unit &unit) { return unit.reductions; });
}
int64_t PlanReport::received_bytes() const {
  return sum(units, [](const Unit &unit) { return unit.gathered_bytes + unit.reduced_bytes; });
}

PlanReport report_plan(const Root &root) {
  if (!root.is_ready())
    fail(TPFSDP_ERR_STATE, "the plan of the tree is made by its first step: call tpfsdp_root_prepare first");
  PlanReport report;
  report.rank = root.context->rank().rank();
  for (const ParamGroup *unit : root.units) report.units.push_back(report_unit(root, *unit));
  for (const Slot &slot : root.slots) report.slot_bytes.push_back(slot.held_bytes());
  for (const GradSlot &slot : root.grad_slots) report.grad_slot_bytes.push_back(slot.memory.size_bytes());
  const MemoryReport memory = root.memory_report();
  report.shard_bytes = memory.shard_bytes;
  report.cast_bytes = memory.cast_bytes;
  report.grad_shard_bytes = memory.grad_shard_bytes;
  report.part_bytes = memory.part_bytes;
  report.peak_bytes = root.planned_bytes;
  return report;
}

}  // namespace tpfsdp
