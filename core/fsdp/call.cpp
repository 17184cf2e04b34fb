// SPDX-License-Identifier: Apache-2.0
#include "fsdp/call.hpp"

#include "fsdp/root.hpp"
#include "fsdp/state_machine.hpp"

#include <new>
#include <utility>

namespace tpfsdp {
namespace {

template <class Body>
auto inside(Module &module, Body &&body) {
  const GateHold hold(module.gate());
  if (!hold.is_held())
    fail(TPFSDP_ERR_BUSY, "a call on module \"", module.path(), "\" of ", module.describe_rank(),
         " while another call is inside that rank: call from one thread at a time, and not from a callback of a "
         "parameter or of its memory");
  return body();
}

constexpr const char *kHookNames[] = {"", "forward pre-hook", "forward hook", "backward pre-hook", "backward hook"};

// What failed inside the host's function is the cause of its failure. Where the function hands that status on, it is
// the same failure: what the caller should do next does not change on the way up.
[[noreturn]] void refuse_host(const HostCall &call, const char *what, Status status, Context &context) {
  const auto cause = std::exchange(context.failure_of_call, nullptr);
  ErrorDetail detail;
  if (cause && cause->status == status) {
    detail = *cause;
  } else {
    detail.status = TPFSDP_ERR_CALLBACK;
    detail.backend_code = status;
  }
  detail.cause = cause;
  detail.message = cat(what, " of module \"", call.module->path(), "\" failed with status ", status);
  if (cause) append_text(detail.message, cat(": ", cause->message));
  throw Failure(std::move(detail));
}

using Hooks = std::shared_ptr<const HookList>;

Hooks hooks_of(Module &module, HookKind kind) {
  return inside(module, [&] { return module.hooks ? module.hooks->list(kind) : nullptr; });
}

// Those that have not been started, which `started` counts.
void run_list(const HookList &list, const HostCall &call, size_t &started) {
  while (started < list.size()) {
    const std::shared_ptr<Hook> &hook = list[started++];
    if (!hook->module || (call.failed && !hook->always_call)) continue;
    const Status status = hook->call(call);
    if (status < 0 && !call.failed)
      refuse_host(call, kHookNames[static_cast<int>(hook->kind)], status, call.module->context());
  }
}

void run_hooks_of(const HostCall &call, HookKind kind) {
  size_t started = 0;
  if (const Hooks hooks = hooks_of(*call.module, kind)) run_list(*hooks, call, started);
}

void invoke(const Method &method, const HostCall &call) {
  Context &context = call.module->context();
  context.failure_of_call = nullptr;
  const Status status = method.call(call);
  if (status < 0) refuse_host(call, cat("method \"", call.method, "\"").c_str(), status, context);
}

std::shared_ptr<const Method> method_of(Module &module, const std::string &name) {
  return inside(module, [&] {
    auto method = module.hooks ? module.hooks->method(name) : nullptr;
    if (!method)
      fail(TPFSDP_ERR_NOT_FOUND, "module \"", module.path(), "\" (", module.options().class_name, ") has no method \"",
           name, "\": set it with tpfsdp_module_set_method");
    return method;
  });
}

// A module that is not sharded has methods and hooks only.
template <class Step>
void step(Module &module, Step &&body) {
  inside(module, [&] {
    if (state_or_null(module)) body();
  });
}

void tell_peers(Module &module, const char *why) noexcept {
  try {
    inside(module, [&] { report_failure(module, why); });
  } catch (const std::exception &) {
    // Nothing is sharded here, or the library has told it already.
  }
}

// One call of call mode: how deep it is, and what becomes of its failure.
template <class Body>
void at_depth(Module &module, int32_t Context::*depth, Body &&body) {
  Context &context = module.context();
  const bool is_outermost = (context.*depth)++ == 0;
  try {
    body(is_outermost);
  } catch (const Failure &failure) {
    --(context.*depth);
    context.failure_of_call = is_outermost ? nullptr : failure.detail();
    if (is_outermost) tell_peers(module, failure.what());
    throw;
  } catch (const std::bad_alloc &) {
    --(context.*depth);
    if (is_outermost) tell_peers(module, "out of memory");
    throw;
  }
  --(context.*depth);
}

void call_around_forward(Module &module, const Method &method, const HostCall &call) {
  step(module, [&] { pre_forward(module, true); });
  Hooks hooks;
  size_t started = 0;
  try {
    run_hooks_of(call, HookKind::kForwardPre);
    invoke(method, call);
    hooks = hooks_of(module, HookKind::kForward);
    if (hooks) run_list(*hooks, call, started);
  } catch (...) {
    HostCall failed = call;
    failed.failed = true;
    if (!hooks) hooks = hooks_of(module, HookKind::kForward);
    if (hooks) run_list(*hooks, failed, started);
    try {
      step(module, [&] { post_forward(module); });
    } catch (const Failure &) {
      // The first failure is the one to tell of.
    }
    throw;
  }
  step(module, [&] { post_forward(module); });
}

void end_trees(Module &module) {
  inside(module, [&] {
    for (Root *root : roots_around(module)) {
      root->refuse_without_module();
      if (root->is_in_backward) end_backward(*root->module, true);
    }
  });
}

}  // namespace

void call_forward(Module &module, const std::string &name, void *payload) {
  const auto method = method_of(module, name);
  at_depth(module, &Context::forward_calls,
           [&](bool) { call_around_forward(module, *method, {&module, name.c_str(), payload, false}); });
}

void call_backward(Module &module, void *payload) {
  const auto method = method_of(module, "backward");
  const HostCall call{&module, "backward", payload, false};
  at_depth(module, &Context::backward_calls, [&](bool is_outermost) {
    step(module, [&] { pre_backward(module, true); });
    run_hooks_of(call, HookKind::kBackwardPre);
    invoke(*method, call);
    run_hooks_of(call, HookKind::kBackward);
    step(module, [&] { post_backward(module, true); });
    if (is_outermost) end_trees(module);
  });
}

void call_method(Module &module, const std::string &name, void *payload) {
  const auto method = method_of(module, name);
  if (method->is_forward) return call_forward(module, name, payload);
  invoke(*method, {&module, name.c_str(), payload, false});
}

void run_hooks(Module &module, HookKind kind) {
  const bool is_forward = kind == HookKind::kForwardPre || kind == HookKind::kForward;
  run_hooks_of({&module, is_forward ? "forward" : "backward", nullptr, false}, kind);
}

void fail_forward(Module &module) {
  run_hooks_of({&module, "forward", nullptr, true}, HookKind::kForward);
  step(module, [&] { post_forward(module); });
}

void register_forward_method(Module &module, const std::string &name) {
  inside(module, [&] {
    if (!state_or_null(module)) return;
    if (!module.hooks || !module.hooks->set_forward_method(name))
      fail(TPFSDP_ERR_NOT_FOUND, "module \"", module.path(), "\" has no method \"", name,
           "\": set it with tpfsdp_module_set_method first");
  });
}

}  // namespace tpfsdp
