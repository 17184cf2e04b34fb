// SPDX-License-Identifier: Apache-2.0
// Manual mode: the host calls the state machine. Hooks run outside the rank's gate, so that they may call the library;
// a module without hooks costs one entry and no reference.
#include "fsdp/call.hpp"
#include "fsdp/state_machine.hpp"
#include "guard.hpp"
#include "handle.hpp"

#include <tpfsdp/module.h>

#include <optional>
#include <utility>

namespace tpfsdp::capi {
namespace {

bool has_hooks(const Module &module, HookKind kind) { return module.hooks && module.hooks->list(kind); }

// A module that is not sharded has hooks only.
template <class Step>
Status step_of(Module &module, Step &&step) {
  return state_or_null(module) ? step(module) : TPFSDP_OK;
}

// The step, then the hooks.
template <class Step>
Status before(tpfsdp_module *module, HookKind kind, tpfsdp_error **error, Step &&step) noexcept {
  return guard(error, [&]() -> Status {
    std::optional<Held<Module>> held;
    {
      Entry entry;
      Module &m = entry.get<Module>(module, "module");
      const Status status = step_of(m, step);
      if (status != TPFSDP_OK || !has_hooks(m, kind)) return status;
      // Once for each backward, however many outputs begin it.
      const bool once = kind == HookKind::kBackwardPre && state_or_null(m);
      if (once && std::exchange(m.hooks->ran_backward_pre, true)) return status;
      held.emplace(&m);
    }
    run_hooks(**held, kind);
    return TPFSDP_OK;
  });
}

// The hooks, then the step.
template <class Step>
Status after(tpfsdp_module *module, HookKind kind, tpfsdp_error **error, Step &&step) noexcept {
  return guard(error, [&]() -> Status {
    std::optional<Held<Module>> held;
    {
      Entry entry;
      Module &m = entry.get<Module>(module, "module");
      // Not again where only the step was PENDING.
      if (!has_hooks(m, kind) || (kind == HookKind::kBackward && m.hooks->ran_backward)) return step_of(m, step);
      held.emplace(&m);
    }
    run_hooks(**held, kind);
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    if (m.hooks && kind == HookKind::kBackward) m.hooks->ran_backward = state_or_null(m) != nullptr;
    return step_of(m, step);
  });
}

template <class Step>
Status drive(tpfsdp_module *module, tpfsdp_error **error, Step &&step) noexcept {
  return guard(error, [&]() -> Status {
    Entry entry;
    return step_of(entry.get<Module>(module, "module"), step);
  });
}

Status end_module(Module &module, bool may_wait) {
  const Status status = post_backward(module, may_wait);
  if (status == TPFSDP_OK && module.hooks) module.hooks->ran_backward = module.hooks->ran_backward_pre = false;
  return status;
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_module_pre_forward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return before(module, HookKind::kForwardPre, error, [](Module &m) { return pre_forward(m, true); });
}

tpfsdp_status tpfsdp_module_try_pre_forward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return before(module, HookKind::kForwardPre, error, [](Module &m) { return pre_forward(m, false); });
}

tpfsdp_status tpfsdp_module_post_forward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return after(module, HookKind::kForward, error, [](Module &m) -> Status {
    post_forward(m);
    return TPFSDP_OK;
  });
}

tpfsdp_status tpfsdp_module_fail_forward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] { fail_forward(*hold<Module>(module, "module")); });
}

tpfsdp_status tpfsdp_module_pre_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return before(module, HookKind::kBackwardPre, error, [](Module &m) { return pre_backward(m, true); });
}

tpfsdp_status tpfsdp_module_try_pre_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return before(module, HookKind::kBackwardPre, error, [](Module &m) { return pre_backward(m, false); });
}

tpfsdp_status tpfsdp_module_post_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return after(module, HookKind::kBackward, error, [](Module &m) { return end_module(m, true); });
}

tpfsdp_status tpfsdp_module_try_post_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return after(module, HookKind::kBackward, error, [](Module &m) { return end_module(m, false); });
}

tpfsdp_status tpfsdp_module_end_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return drive(module, error, [](Module &m) { return end_backward(m, true); });
}

tpfsdp_status tpfsdp_module_try_end_backward(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return drive(module, error, [](Module &m) { return end_backward(m, false); });
}

}  // extern "C"
