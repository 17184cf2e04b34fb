// SPDX-License-Identifier: Apache-2.0
#include "fsdp/schedule.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tpfsdp {
namespace {

// The gather belongs to the pass that asks for it, whatever the unit itself was last in.
Status prefetch(ParamGroup &unit, TrainingState pass, bool may_wait) {
  if (pass == TrainingState::kPreBackward && !unit.state.switches.unshards_in_backward) return TPFSDP_OK;
  const TrainingState own = std::exchange(unit.training_state, pass);
  Status status = TPFSDP_OK;
  try {
    status = issue_gather(unit, may_wait, true);
  } catch (...) {
    unit.training_state = own;
    throw;
  }
  unit.training_state = own;
  return status;
}

ParamGroup *unit_at(const std::weak_ptr<ModuleState> &entry) {
  const auto state = std::static_pointer_cast<State>(entry.lock());
  return state ? state->unit.get() : nullptr;
}

}  // namespace

void record_post_forward(Root &root, ParamGroup &unit) {
  // Forwards whose backward never comes would make it grow for ever.
  if (root.post_forward_order.size() >= 64 * root.units.size()) forget_order(root);
  unit.post_forward_positions.push_back(static_cast<int64_t>(root.post_forward_order.size()));
  root.post_forward_order.push_back({&unit, root.forward_passes});
}

Status prefetch_in_backward(Root &root, ParamGroup &unit, bool may_wait) {
  const PrefetchList &list = unit.state.backward_prefetch;
  if (!list.empty()) return prefetch_list(root, list, TrainingState::kPreBackward, may_wait);
  if (unit.post_forward_positions.empty()) return TPFSDP_OK;
#if defined(TPFSDP_MUTANT_PREFETCH_FOLLOWS_FORWARD)
  const auto position = static_cast<size_t>(unit.post_forward_positions.front() + 2) % root.post_forward_order.size();
#else
  const auto position = static_cast<size_t>(unit.post_forward_positions.back());
#endif
  PastForward &own = root.post_forward_order[position];
  if (position > 0) {
    const PastForward &before = root.post_forward_order[position - 1];
    // The last unit of an earlier micro-batch, whose backward is over, is not wanted again. Of the same forward it may
    // be: two backwards can share a unit.
    const bool is_wanted = before.unit && (before.pass == own.pass || !before.is_over);
    if (is_wanted && prefetch(*before.unit, TrainingState::kPreBackward, may_wait) == TPFSDP_PENDING)
      return TPFSDP_PENDING;
  }
  own.is_over = true;
  unit.post_forward_positions.pop_back();
  return TPFSDP_OK;
}

void forget_order(Root &root) {
  for (ParamGroup *unit : root.units) unit->post_forward_positions.clear();
  root.post_forward_order.clear();
}

void part_from_last(const Root &root, ParamGroup &unit) {
  if (root.post_forward_order.empty() || !unit.slot || unit.has_destination || !unit.post_forward_positions.empty())
    return;
  const ParamGroup *const last = root.post_forward_order.back().unit;
  if (last && last->slot == unit.slot && last != &unit) give_own_slot(unit);
}

Status prefetch_list(Root &root, const PrefetchList &list, TrainingState pass, bool may_wait) {
  for (const auto &entry : list) {
    ParamGroup *unit = unit_at(entry);
    if (!unit) continue;
    if (unit->state.root.get() != &root)
      fail(TPFSDP_ERR_STATE, "unit ", unit->name, " is to be prefetched by unit(s) of another tree, whose root is \"",
           root.module->path(), "\": prefetch units of one tree only");
    if (prefetch(*unit, pass, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  return TPFSDP_OK;
}

UnitPairs prefetched_together(const Root &root, const std::vector<int32_t> &post_order) {
  UnitPairs pairs;
  std::vector<int32_t> forward(root.units.size()), backward(post_order.rbegin(), post_order.rend());
  std::iota(forward.begin(), forward.end(), 0);
  const auto add_list = [&](const State &state, const PrefetchList &list, const std::vector<int32_t> &order) {
    const auto place_of = [&](const ParamGroup *unit) {
      const auto at = std::find(root.units.begin(), root.units.end(), unit) - root.units.begin();
      return std::find(order.begin(), order.end(), static_cast<int32_t>(at)) - order.begin();
    };
    // Of a state without parameters nothing computes on a unit: its list is served where its first child runs.
    const ptrdiff_t now = state.unit ? place_of(state.unit.get()) : 0;
    for (const auto &entry : list) {
      const ParamGroup *unit = unit_at(entry);
      if (!unit || unit->state.root.get() != &root) continue;
      const ptrdiff_t turn = place_of(unit);
      const ptrdiff_t end = turn >= now ? turn : std::ssize(order);
      for (ptrdiff_t other = now; other < end; ++other)
        pairs.emplace_back(order[static_cast<size_t>(turn)], order[static_cast<size_t>(other)]);
    }
  };
  for (const State *state : root.states) {
    add_list(*state, state->forward_prefetch, forward);
    add_list(*state, state->backward_prefetch, backward);
  }
  return pairs;
}

}  // namespace tpfsdp
