// SPDX-License-Identifier: Apache-2.0
#include "fsdp/root.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/schedule.hpp"

#include <algorithm>
#include <new>
#include <unordered_map>

namespace tpfsdp {
namespace {

// Every state below, once, in pre-order, with the number of states on the way down to it.
void collect(Module &module, int32_t depth, Root &root, std::unordered_map<const Module *, bool> &seen) {
  if (!seen.emplace(&module, true).second) return;
  State *state = state_or_null(module);
  if (state && std::find(root.states.begin(), root.states.end(), state) == root.states.end()) {
    root.states.push_back(state);
    root.depths.push_back(depth);
  }
  for (const auto &[name, child] : module.children()) {
    if (child) collect(*child, depth + (state ? 1 : 0), root, seen);
  }
}

// Everything about the tree below that can fail; nothing of it is settled yet.
void survey(Module &module, State &own, Root &root) {
  std::unordered_map<const Module *, bool> seen;
  collect(module, 0, root, seen);
  if (own.modules.size() > 1)
    fail(TPFSDP_ERR_STATE, "unit \"", own.name(), "\" spans ", own.modules.size(),
         " modules and cannot be the root: call fully_shard on the one module above them");
  for (State *state : root.states) {
    if (state->root)
      fail(TPFSDP_ERR_STATE, "module \"", state->name(), "\" below \"", module.path(),
           "\" already ran as a root of its own: run the forward through the root first");
    if (!state->unit) continue;
    root.units.push_back(state->unit.get());
    const Ref<Group> &group = state->unit->group;
    if (group->size() > 1 && std::find(root.groups.begin(), root.groups.end(), group) == root.groups.end())
      root.groups.push_back(group);
  }
  root.post_forward_order.reserve(2 * root.units.size());
  root.reductions.reserve(root.units.size());
}

void tell(const Root &root, Status status, const char *why) {
  for (const State *state : root.states) {
    if (state->unit) state->unit->group->post_failure(status, why);
  }
  for (const State *state : root.states) {
    if (state->unit) state->unit->group->give_up();
  }
}

void settle(Module &module) {
  auto root = std::make_shared<Root>(module);
  try {
    survey(module, state_of(module), *root);
  } catch (const Failure &failure) {
    tell(*root, failure.status(), failure.what());
    throw;
  } catch (const std::bad_alloc &) {
    tell(*root, TPFSDP_ERR_OUT_OF_MEMORY, "out of memory before the first step");
    throw;
  }
  for (State *state : root->states) state->root = root;
  for (const ParamGroup *unit : root->units) root->account.add(unit->shard_bytes() + unit->mapped_cast_bytes());
}

// The outermost sharded module on the way up; null: none.
Module *outermost_sharded(Module &module) {
  Module *outermost = nullptr;
  for (Module *at = &module; at; at = at->parent()) {
    if (at->state) outermost = at;
  }
  return outermost;
}

[[noreturn]] void refuse_other_module(const Module &module, const Module &root, const char *call) {
  const auto name = [](const Module &of) { return of.path().empty() ? std::string("<root>") : of.path(); };
  fail(TPFSDP_ERR_STATE, call, " is for the root; \"", name(module), "\" is not, the root is \"", name(root), "\"");
}

}  // namespace

Root &settle_by_forward(Module &module) {
  State &state = state_of(module);
  if (!state.root) settle(module);
  return *state.root;
}

Root &settle_outermost(Module &module) {
  State &state = state_of(module);
  if (!state.root) settle(*outermost_sharded(module));
  return *state.root;
}

Root &root_of(Module &module, const char *call) {
  const State &state = state_of(module);
  if (!state.root) {
    if (Module *outermost = outermost_sharded(module); outermost != &module)
      refuse_other_module(module, *outermost, call);
    settle(module);
  }
  state.root->refuse_without_module();
  if (state.root->module != &module) refuse_other_module(module, *state.root->module, call);
  return *state.root;
}

const Root &settled_root(Module &module, const char *call) {
  if (!state_of(module).root)
    fail(TPFSDP_ERR_STATE, call, " of module \"", module.path(),
         "\": nothing is known before the first step; call tpfsdp_root_prepare first");
  return root_of(module, call);
}

Status Root::prepare(bool may_wait) {
  if (plan_may_improve_ && is_between_steps()) plan_is_old_ = true;
  if (stage_ == Stage::kReady && !plan_is_old_ && !misses_slots_) return TPFSDP_OK;
  return step([&]() -> Status {
    if (stage_ == Stage::kNew) {
      check_units();
      name_units();
      exchange_ = std::make_unique<DigestExchange>(*this, wanted_mode());
      stage_ = Stage::kComparing;
    }
    if (stage_ == Stage::kComparing) {
      if (exchange_->wait(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
      settle_modes();
      exchange_ = nullptr;
      stage_ = Stage::kReady;
    }
    if (make_post_forward_groups(*this, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    if (plan_is_old_) make_plan();
    return make_common_slots(may_wait);
  });
}

bool Root::is_between_steps() const {
  return !forward_root && !is_in_backward && end_phase == 0 && post_forward_order.empty() && reductions.empty() &&
         std::none_of(units.begin(), units.end(), [](const ParamGroup *unit) {
           return unit->is_posting || unit->is_gathering || unit->held_grad_slot || unit->scopes > 0 ||
                  unit->has_accumulated();
         });
}

void Root::forget(State &state) noexcept {
  const auto at = std::find(states.begin(), states.end(), &state);
  if (at != states.end()) {
    depths.erase(depths.begin() + (at - states.begin()));
    states.erase(at);
  }
  if (state.unit) {
    ParamGroup *unit = state.unit.get();
    // What is under way points into the unit's memory.
    if (unit->group->size() > 1 && (unit->is_gathering || unit->is_posting || unit->is_reducing))
      unit->group->give_up();
    drop_full_parameters(*unit);
    if (unit->held_grad_slot) unit->held_grad_slot->holder = nullptr;
    account.subtract(unit->shard_bytes() + unit->mapped_cast_bytes() + unit->grad_shards->size_bytes());
    std::erase(units, unit);
    std::erase(reductions, unit);
    for (PastForward &past : post_forward_order) {
      if (past.unit == unit) past.unit = nullptr;
    }
  }
}

// Trainable parameters of a unit are reduced together, so they are of one dtype.
void Root::check_units() const {
  std::string unwritten;
  for (const ParamGroup *unit : units) {
    for (const ShardedParam &p : unit->params) {
      if (p.is_unwritten) append_text(unwritten, cat(unwritten.empty() ? "" : ", ", p.param->full_name()));
    }
  }
  if (!unwritten.empty())
    fail(TPFSDP_ERR_STATE, "parameters have no values yet: ", unwritten,
         " were on META at fully_shard; give each shard its values with tpfsdp_param_set_tensor first");
  for (const ParamGroup *unit : units) {
    const ShardedParam *first = nullptr;
    for (const ShardedParam &p : unit->params) {
      if (!p.param->requires_grad()) continue;
      if (!first) first = &p;
      if (p.param->dtype() != first->param->dtype())
        fail(TPFSDP_ERR_INVALID_ARGUMENT, "trainable parameters of unit \"", unit->state.name(),
             "\" have two dtypes: ", first->param->full_name(), " is ", dtype_name(first->param->dtype()), ", ",
             p.param->full_name(), " is ", dtype_name(p.param->dtype()), "; shard them apart, or freeze one");
    }
  }
}

void Root::name_units() {
  Rank &rank = context->rank();
  for (State *state : states) {
    const std::string name = state->name();
    state->event_name = rank.recorder().intern(name.empty() ? "<root>" : name);
  }
  for (ParamGroup *unit : units) {
    unit->event_name = unit->state.event_name;
    unit->name = unit->event_name;
    if (unit->number < 0) unit->number = rank.name_unit(unit->name);
  }
}

}  // namespace tpfsdp
