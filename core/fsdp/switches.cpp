// SPDX-License-Identifier: Apache-2.0
#include "fsdp/switches.hpp"

#include "fsdp/root.hpp"

namespace tpfsdp {
namespace {

template <class Change>
void change(Module &module, bool recurse, Change &&apply) {
  State &own = state_of(module);
  if (!recurse) return apply(own);
  for_each_below(module, [&](Module &below) {
    if (State *state = state_or_null(below)) apply(*state);
  });
}

void plan_better(const State &state) {
  if (state.root) state.root->plan_better();
}

std::vector<std::weak_ptr<ModuleState>> states_of(const State &state, const std::vector<Ref<Module>> &targets) {
  std::vector<std::weak_ptr<ModuleState>> list;
  for (const Ref<Module> &target : targets) {
    const State &other = state_of(*target);
    if (state.root && other.root && state.root != other.root)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", target->path(), "\" has another root than \"", state.name(),
           "\": prefetch modules of one tree only");
    list.push_back(target->state);
  }
  return list;
}

}  // namespace

void set_requires_gradient_sync(Module &module, bool enabled, bool recurse) {
  change(module, recurse, [=](State &state) { state.switches.reduces = enabled; });
}

void set_reduce_scatter_unused_params(Module &module, bool enabled, bool recurse) {
  change(module, recurse, [=](State &state) { state.switches.reduces_unused = enabled; });
}

void set_reshard_after_backward(Module &module, bool enabled, bool recurse) {
  change(module, recurse, [=](State &state) {
    state.switches.reshards_after_backward = enabled;
    if (enabled || state.has_kept_after_backward) return;
    // For good: who switches it off for all but the last of several backwards does so in each step.
    state.has_kept_after_backward = true;
    plan_better(state);
  });
}

void set_unshard_in_backward(Module &module, bool enabled) { state_of(module).switches.unshards_in_backward = enabled; }

void set_reshard_after_forward(Module &module, ReshardKind kind, bool recurse) {
  change(module, recurse, [=](State &state) {
    if (state.reshard_kind == kind) return;
    state.reshard_kind = kind;
    state.reshard_size = 0;
    plan_better(state);
  });
}

void set_forward_prefetch(Module &module, const std::vector<Ref<Module>> &targets) {
  State &state = state_of(module);
  state.forward_prefetch = states_of(state, targets);
  plan_better(state);
}

void set_backward_prefetch(Module &module, const std::vector<Ref<Module>> &targets) {
  State &state = state_of(module);
  state.backward_prefetch = states_of(state, targets);
  plan_better(state);
}

void set_is_last_backward(Module &module, bool enabled) { settle_outermost(module).is_last_backward = enabled; }

void set_manual_backward_finalization(Module &module, bool enabled) {
  Root &root = root_of(module, "set_manual_backward_finalization");
  if (root.is_in_backward)
    fail(TPFSDP_ERR_STATE, "manual backward finalization cannot be switched ", enabled ? "on" : "off",
         " inside a backward: call end_backward first");
  root.finalizes_manually = enabled;
}

}  // namespace tpfsdp
