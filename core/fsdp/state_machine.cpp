// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state_machine.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/gradients.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"
#include "fsdp/schedule.hpp"
#include "fsdp/write_window.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

// A call on a tree that nothing has settled yet comes too early; its peers hear of it like of any failed step.
Root &settled(Module &module, const char *call) {
  State &state = state_of(module);
  if (state.root) return *state.root;
  settle_outermost(module).step([&]() -> Status {
    fail(TPFSDP_ERR_STATE, call, " of module \"", module.path(),
         "\" came before any forward: run the forward through the root first");
  });
  return *state.root;
}

void record_call(Root &root, const State &state, const char *operation) {
  Recorder &recorder = root.recorder();
  if (!recorder.is_on()) return;
  Event event;
  event.kind = EventKind::kHook;
  event.training_state = static_cast<int32_t>(state.training_state);
  event.unit = state.event_name;
  event.operation = operation;
  recorder.record(event);
}

// Full parameters leave after forward, unless they are kept for backward. Without gradients no backward comes for which
// the root would keep them on its own account.
void end_unit_forward(Root &root, ParamGroup &unit, bool backward_will_come) {
  if (!root.is_in_backward) {
    const bool keep = unit.state.reshard_kind == ReshardKind::kNever || (unit.keeps() && backward_will_come);
    if (keep) {
      unit.is_full_beside_scopes = true;
    } else {
      if (unit.part && unit.is_full()) keep_part(unit);
      reshard(unit);
    }
    if (backward_will_come) record_post_forward(root, unit);
  }
  unit.training_state = TrainingState::kIdle;
}

void end_forward(Root &root, State &state) {
  state.still_to_run.clear();
  if (state.unit) end_unit_forward(root, *state.unit, state.modules.front()->grad_enabled);
  state.training_state = TrainingState::kIdle;
}

// Units over several modules of which some never ran: the deepest first.
void end_partial_forwards(Root &root, const State &outermost) {
  const auto is_partial = [&](const State *state) { return state != &outermost && !state->still_to_run.empty(); };
  if (std::none_of(root.states.begin(), root.states.end(), is_partial)) return;
  for (int32_t depth = *std::max_element(root.depths.begin(), root.depths.end()); depth >= 0; --depth) {
    for (size_t i = 0; i < root.states.size(); ++i) {
      if (root.depths[i] == depth && is_partial(root.states[i])) end_forward(root, *root.states[i]);
    }
  }
}

Status end_unit_backward(Root &root, ParamGroup &unit, bool may_wait) {
  if (!unit.did_post_backward) {
    Event event;
    event.kind = EventKind::kPostBackward;
    event.training_state = static_cast<int32_t>(unit.training_state);
    event.unit = unit.event_name;
    root.recorder().record(event);
    unit.training_state = TrainingState::kPostBackward;
    unit.did_post_backward = unit.owes_gradients = true;
    unit.did_prefetch = unit.did_pre_backward = false;
    if (unit.state.switches.reshards_after_backward) {
      forget_part(unit);
      reshard(unit);
    } else if (unit.is_full()) {
      unit.is_full_beside_scopes = true;
    }
  }
  if (unit.owes_gradients && end_gradients(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  unit.owes_gradients = false;
  return TPFSDP_OK;
}

// Every unit has ended its part of this backward, also those whose own post-backward nobody called.
Status end_units(Root &root, bool may_wait) {
  for (State *state : root.states) {
    if (!state->unit) continue;
    ParamGroup &unit = *state->unit;
    if (root.is_in_backward) {
      if (end_unit_backward(root, unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    } else if (unit.held_grad_slot && end_gradients(unit, may_wait) == TPFSDP_PENDING) {
      return TPFSDP_PENDING;
    }
  }
  return TPFSDP_OK;
}

Status drop_unused_prefetches(Root &root, bool may_wait) {
  for (ParamGroup *unit : root.units) {
    if (unit->is_prefetch && drop_prefetch(*unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  return TPFSDP_OK;
}

void leave_backward(Root &root) {
  for (State *state : root.states) state->leave_backward();
  for (ParamGroup *unit : root.units) {
    unit->training_state = TrainingState::kIdle;
    unit->did_prefetch = unit->did_pre_backward = unit->did_post_backward = false;
  }
  root.forward_root = nullptr;
  root.is_in_backward = false;
}

Status end(Module &module, const char *call, bool ends_step, bool may_wait) {
  Root &root = settle_outermost(module);
  if (root.end_phase == 0) {
    const Status status = root.step([&]() -> Status {
      root_of(module, call);
      if (!root.is_ready()) fail(TPFSDP_ERR_STATE, call, " of module \"", module.path(), "\" came before any forward");
      if (end_units(root, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
      return ends_step ? drop_unused_prefetches(root, may_wait) : TPFSDP_OK;
    });
    if (status != TPFSDP_OK) return status;
  }
  if (ends_step) {
    if (open_window_after_backward(root, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    forget_order(root);
  }
  record_call(root, *root.states.front(), call);
  leave_backward(root);
  return TPFSDP_OK;
}

}  // namespace

Status pre_forward(Module &module, bool may_wait) {
  State &state = state_of(module);
  Root &root = settle_by_forward(module);
  if (root.forward_root == nullptr && !root.is_in_backward) {
    if (root.prepare(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  return root.step([&]() -> Status {
    if (!root.is_ready()) fail(TPFSDP_ERR_STATE, "the tree was not prepared; run the forward through the root first");
    ParamGroup *unit = state.unit.get();
    // Inside a backward of the module this is its recomputation: parameters are wanted, nothing else changes.
    if (state.training_state == TrainingState::kPreBackward) return unit ? unshard(*unit, may_wait) : TPFSDP_OK;
    if (state.training_state != TrainingState::kForward) {
      record_call(root, state, "pre_forward");
      state.training_state = TrainingState::kForward;
      if (state.modules.size() > 1) state.still_to_run = state.modules;
      if (!root.forward_root) {
        root.forward_root = &module;
        ++root.forward_passes;
      }
      if (unit) unit->training_state = TrainingState::kForward;
      if (unit && module.grad_enabled && !root.is_in_backward) {
        settle_place(*unit);
        part_from_last(root, *unit);
      }
    }
    if (state.modules.size() > 1 && module.grad_enabled &&
        std::find(state.still_to_end.begin(), state.still_to_end.end(), &module) == state.still_to_end.end())
      state.still_to_end.push_back(&module);
    if (unit && unshard(*unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    // A recomputation wants what its backward wants, not what follows in forward.
    if (root.is_in_backward) return TPFSDP_OK;
    return prefetch_list(root, state.forward_prefetch, TrainingState::kForward, may_wait);
  });
}

void post_forward(Module &module) {
  State &state = state_of(module);
  Root &root = settled(module, "post_forward");
  root.step([&]() -> Status {
    if (state.training_state == TrainingState::kPreBackward) return TPFSDP_OK;  // recomputed
    if (state.training_state != TrainingState::kForward)
      fail(TPFSDP_ERR_STATE, "post_forward of module \"", module.path(), "\" without pre_forward");
    record_call(root, state, "post_forward");
    std::erase(state.still_to_run, &module);
    // A member of a list that is run alone, outside the root's forward, ends with its own.
    const bool is_outermost = root.forward_root == &module;
    if (!state.still_to_run.empty() && !is_outermost) return TPFSDP_OK;
    if (is_outermost) end_partial_forwards(root, state);
    end_forward(root, state);
    if (is_outermost) root.forward_root = nullptr;
    return TPFSDP_OK;
  });
}

Status pre_backward(Module &module, bool may_wait) {
  State &state = state_of(module);
  Root &root = settled(module, "pre_backward");
  return root.step([&]() -> Status {
    if (!root.is_ready())
      fail(TPFSDP_ERR_STATE, "pre_backward of module \"", module.path(), "\" came before any forward");
    root.is_in_backward = true;
    if (state.training_state != TrainingState::kPreBackward) record_call(root, state, "pre_backward");
    state.training_state = TrainingState::kPreBackward;
    ParamGroup *unit = state.unit.get();
    if (!unit) return prefetch_list(root, state.backward_prefetch, TrainingState::kPreBackward, may_wait);
    if (unit->did_pre_backward) return TPFSDP_OK;
    unit->training_state = TrainingState::kPreBackward;
    if (state.switches.unshards_in_backward) {
      settle_place(*unit);
      if (!unit->is_gathering && !unit->is_posting && !has_fresh_values(*unit))
        ++root.recorder().counters.prefetch_misses;
      if (unit->is_gathering && unit->is_prefetch) ++root.recorder().counters.prefetch_hits;
      if (unshard(*unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    }
    if (!unit->did_prefetch && prefetch_in_backward(root, *unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    unit->did_prefetch = true;
    if (take_grad_slot(*unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    unit->did_pre_backward = true;
    unit->did_post_backward = false;
    return TPFSDP_OK;
  });
}

Status post_backward(Module &module, bool may_wait) {
  State &state = state_of(module);
  Root &root = settled(module, "post_backward");
  return root.step([&]() -> Status {
    if (!root.is_in_backward)
      fail(TPFSDP_ERR_STATE, "post_backward of module \"", module.path(),
           "\" outside a backward: pre_backward comes first");
    // A unit over several modules ends when the last of those that ran has: their gradients are reduced together.
    std::erase(state.still_to_end, &module);
    if (!state.still_to_end.empty()) return TPFSDP_OK;
    if (state.unit && end_unit_backward(root, *state.unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    record_call(root, state, "post_backward");
    state.training_state = TrainingState::kPostBackward;
    return TPFSDP_OK;
  });
}

Status end_backward(Module &module, bool may_wait) {
  const Root &root = settle_outermost(module);
  return end(module, "end_backward", root.is_last_backward && !root.finalizes_manually, may_wait);
}

Status finalize_backward(Module &module, bool may_wait) {
  const Root &root = root_of(module, "finalize_backward");
  if (!root.is_ready()) return TPFSDP_OK;
  return end(module, "finalize_backward", true, may_wait);
}

}  // namespace tpfsdp
