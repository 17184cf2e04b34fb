// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state.hpp"

#include "fsdp/root.hpp"

namespace tpfsdp {

State::~State() {
  if (root) root->forget(*this);
}

void State::forget(const Module &module) noexcept {
  std::erase(modules, &module);
  std::erase(still_to_run, &module);
  std::erase(still_to_end, &module);
  if (!root) return;
  if (root->module == &module) root->module = nullptr;
  if (root->forward_root == &module) root->forward_root = nullptr;
}

bool State::is_root() const { return root && root->module && state_or_null(*root->module) == this; }

void State::leave_backward() noexcept {
  training_state = TrainingState::kIdle;
  still_to_end.clear();
  for (const Module *module : modules) {
    if (module->hooks) module->hooks->ran_backward = module->hooks->ran_backward_pre = false;
  }
}

std::string State::name() const {
  std::string out;
  for (const Module *module : modules) {
    if (!out.empty()) out += ", ";
    out += module->path();
  }
  return out;
}

State *state_or_null(const Module &module) noexcept { return static_cast<State *>(module.state.get()); }

State &state_of(const Module &module) {
  State *state = state_or_null(module);
  if (!state) fail(TPFSDP_ERR_STATE, "module \"", module.path(), "\" is not sharded: call fully_shard on it first");
  return *state;
}

}  // namespace tpfsdp
