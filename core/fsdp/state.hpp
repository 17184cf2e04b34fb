// SPDX-License-Identifier: Apache-2.0
// One fully_shard call: its modules, its unit if it has parameters, its switches, and where its modules are in a step.
#pragma once

#include "fsdp/mixed_precision.hpp"
#include "fsdp/param_group.hpp"

#include <memory>
#include <vector>

namespace tpfsdp {

// What the program may change; each holds until changed.
struct Switches {
  bool reduces = true;  // else gradients only add up on each rank
  bool reduces_unused = false;
  bool reshards_after_backward = true;
  bool unshards_in_backward = true;
};

class State final : public ModuleState {
 public:
  ~State() override;
  void forget(const Module &module) noexcept override;

  std::shared_ptr<Root> root;     // null until it is settled; outlives the unit, whose memory is in its account
  std::vector<Module *> modules;  // all hold this state
  const char *event_name = "";    // interned, once the root is settled
  Ref<ParamGroup> unit;           // null: no parameters of its own
  ReshardKind reshard_kind = ReshardKind::kAuto;
  int32_t reshard_size = 0;  // ranks, of kSize
  MixedPrecision precision;
  Switches switches;
  bool has_kept_after_backward = false;  // once was told to: the plan gives it a slot of its own
  // Explicit prefetch; empty: none in forward, the recorded order in backward. They may end before this state.
  std::vector<std::weak_ptr<ModuleState>> forward_prefetch;
  std::vector<std::weak_ptr<ModuleState>> backward_prefetch;
  TrainingState training_state = TrainingState::kIdle;
  std::vector<Module *> still_to_run;  // of several modules, in this forward
  std::vector<Module *> still_to_end;  // of several modules, those that ran forward and whose backward has not ended

  bool is_root() const;
  void leave_backward() noexcept;
  std::string name() const;  // dotted, joined by ", "
};

// The state of a module that fully_shard was called on; throws STATE naming the module otherwise.
State &state_of(const Module &module);
State *state_or_null(const Module &module) noexcept;

}  // namespace tpfsdp
