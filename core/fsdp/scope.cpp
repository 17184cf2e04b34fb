// SPDX-License-Identifier: Apache-2.0
#include "fsdp/scope.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"
#include "fsdp/state_machine.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

void add_unit(std::vector<ParamGroup *> &units, const Module &module) {
  const State *state = state_or_null(module);
  if (!state || !state->unit) return;
  if (std::find(units.begin(), units.end(), state->unit.get()) == units.end()) units.push_back(state->unit.get());
}

class UnshardWork final : public Work {
 public:
  explicit UnshardWork(Ref<Module> module) : module_(std::move(module)), resets_(state_of(*module_).root->resets) {}
  Gate *gate() const override { return module_->gate(); }
  std::string describe_rank() const override { return module_->describe_rank(); }
  Status wait(bool may_wait) override {
    const State &state = state_of(*module_);
    if (is_done_ || !state.unit) return TPFSDP_OK;
    if (state.root->resets != resets_)
      fail(TPFSDP_ERR_CANCELLED, "the unshard of unit ", state.unit->name, " was given up by reset_iter_state");
    const Status status = state.root->step([&] { return wait_gather(*state.unit, may_wait); });
    is_done_ = status == TPFSDP_OK;
    return status;
  }

 private:
  Ref<Module> module_;
  int64_t resets_;
  bool is_done_ = false;
};

class FinalizeWork final : public Work {
 public:
  explicit FinalizeWork(Ref<Module> module) : module_(std::move(module)) {}
  Gate *gate() const override { return module_->gate(); }
  std::string describe_rank() const override { return module_->describe_rank(); }
  Status wait(bool may_wait) override {
    if (is_done_) return TPFSDP_OK;
    const Status status = finalize_backward(*module_, may_wait);
    is_done_ = status == TPFSDP_OK;
    return status;
  }

 private:
  Ref<Module> module_;
  bool is_done_ = false;
};

}  // namespace

Scope::Scope(std::vector<Ref<Module>> modules, bool recurse) : modules_(std::move(modules)) {
  Root &root = settle_outermost(*modules_.front());
  for (const Ref<Module> &module : modules_) {
    if (&settle_outermost(*module) != &root)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "modules \"", modules_.front()->path(), "\" and \"", module->path(),
           "\" of one scope have two roots");
    if (!recurse) {
      add_unit(units_, *module);
      continue;
    }
    for_each_below(*module, [&](const Module &below) { add_unit(units_, below); });
  }
  root.prepare(true);
  for (ParamGroup *unit : units_) {
    if (unit->scopes == 0) unit->is_full_beside_scopes = has_fresh_values(*unit) && !unit->has_deferred_reshard;
  }
  root.step([&] {
    for (ParamGroup *unit : units_) issue_gather(*unit, true, false);
    for (ParamGroup *unit : units_) wait_gather(*unit, true);
    return TPFSDP_OK;
  });
  for (ParamGroup *unit : units_) ++unit->scopes;
  resets_ = root.resets;
  is_open_ = true;
}

Scope::~Scope() { let_go(); }

void Scope::close() {
  if (!is_open_) fail(TPFSDP_ERR_STATE, "the scope on module \"", modules_.front()->path(), "\" is closed already");
  let_go();
}

void Scope::let_go() noexcept {
  if (!is_open_) return;
  is_open_ = false;
  for (ParamGroup *unit : units_) {
    if (unit->root().resets != resets_) continue;
    if (--unit->scopes == 0 && unit->training_state != TrainingState::kForward &&
        unit->training_state != TrainingState::kPreBackward && !unit->is_full_beside_scopes)
      reshard(*unit);
  }
}

Ref<Work> unshard_module(const Ref<Module> &module, bool async) {
  const State &state = state_of(*module);
  Root &root = settle_outermost(*module);
  root.prepare(true);
  if (!state.unit) return async ? make<UnshardWork>(module) : nullptr;
  root.step([&] { return async ? issue_gather(*state.unit, true, false) : unshard(*state.unit, true); });
  state.unit->is_full_beside_scopes = true;
  return async ? make<UnshardWork>(module) : nullptr;
}

void reshard_module(Module &module) {
  const State &state = state_of(module);
  if (!state.unit) return;
  ParamGroup &unit = *state.unit;
  if (unit.training_state == TrainingState::kForward) {
    if (unit.keeps()) return;
    if (unit.part && unit.is_full()) keep_part(unit);
  } else {
    forget_part(unit);
  }
  reshard(unit);
}

Ref<Work> finalize_module(const Ref<Module> &module, bool async) {
  if (!async) {
    finalize_backward(*module, true);
    return nullptr;
  }
  auto work = make<FinalizeWork>(module);
  work->wait(false);
  return work;
}

void reduce_below(Module &module) {
  bool is_sharded = false;
  for_each_below(module, [&](Module &below) {
    const State *state = state_or_null(below);
    is_sharded = is_sharded || state;
    if (!state || !state->unit) return;
    settle_outermost(below).step([&] { return end_gradients(*state->unit, true); });
  });
  if (!is_sharded) state_of(module);
}

}  // namespace tpfsdp
