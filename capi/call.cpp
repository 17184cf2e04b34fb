// SPDX-License-Identifier: Apache-2.0
// Call mode: methods and hooks of the host, and the calls that run them.
#include "fsdp/call.hpp"

#include "base/callback.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/fully_shard.h>
#include <tpfsdp/module.h>

namespace tpfsdp::capi {
namespace {

using ModuleCallback = Callback<tpfsdp_module_args>;

HostFunction host_function(ModuleCallback callback) {
  return [callback = std::move(callback)](const HostCall &call) {
    tpfsdp_module_args args{};
    args.struct_size = sizeof args;
    args.failed = call.failed;
    args.module = borrowed<tpfsdp_module>(call.module);
    args.method = call.method;
    args.payload = call.payload;
    return callback(args);
  };
}

Hooks &hooks_of(Module &module) {
  if (!module.hooks) module.hooks = std::make_unique<Hooks>();
  return *module.hooks;
}

// A hook as the host holds it; the module has it whether or not the host does.
class HookHandle final : public Object {
 public:
  static constexpr Kind kKind = Kind::kHook;

  HookHandle(Ref<Context> context, std::shared_ptr<Hook> hook) : context_(std::move(context)), hook_(std::move(hook)) {}
  Kind kind() const override { return kKind; }
  Gate *gate() const override { return context_->gate(); }
  std::string describe_rank() const override { return context_->describe_rank(); }
  void remove() const {
    if (hook_->module) hook_->module->hooks->remove(hook_);
  }

 private:
  Ref<Context> context_;
  std::shared_ptr<Hook> hook_;
};

HookKind hook_kind(tpfsdp_hook_kind kind) {
  if (kind < TPFSDP_HOOK_FORWARD_PRE || kind > TPFSDP_HOOK_BACKWARD)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "kind is ", kind, "; it is one of TPFSDP_HOOK_FORWARD_PRE to _BACKWARD");
  return static_cast<HookKind>(kind);
}

std::string method_name(const char *name) {
  if (!*name) fail(TPFSDP_ERR_INVALID_ARGUMENT, "name is empty; a method has a name");
  return name;
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_module_set_method(tpfsdp_module *module, const char *name, const tpfsdp_module_callback *callback,
                                       tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto copy = callback ? ModuleCallback::copy_of(*callback, "callback") : ModuleCallback();
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    const std::string method = method_name(&required(name, "name"));
    if (copy || m.hooks) hooks_of(m).set_method(method, copy ? host_function(copy) : HostFunction());
  });
}

tpfsdp_status tpfsdp_module_call(tpfsdp_module *module, void *payload, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] { call_forward(*hold<Module>(module, "module"), "forward", payload); });
}

tpfsdp_status tpfsdp_module_backward(tpfsdp_module *module, void *payload, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] { call_backward(*hold<Module>(module, "module"), payload); });
}

tpfsdp_status tpfsdp_module_call_method(tpfsdp_module *module, const char *name, void *payload,
                                        tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Module>(module, "module");
    call_method(*held, &required(name, "name"), payload);
  });
}

tpfsdp_status tpfsdp_module_register_hook(tpfsdp_module *module, tpfsdp_hook_kind kind,
                                          const tpfsdp_module_callback *callback, const tpfsdp_hook_options *options,
                                          tpfsdp_hook **out_hook, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto copy = ModuleCallback::copy_of(required(callback, "callback"), "callback");
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    const auto given = read_options(options, "tpfsdp_hook_options");
    const bool prepend = as_bool(given.prepend, false, "prepend");
    const bool always_call = as_bool(given.always_call, false, "always_call");
    if (always_call && kind != TPFSDP_HOOK_FORWARD)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "always_call is for TPFSDP_HOOK_FORWARD, kind is ", kind);
    auto hook = std::make_shared<Hook>(Hook{host_function(copy), hook_kind(kind), always_call, &m});
    if (!out_hook) return hooks_of(m).add(std::move(hook), prepend);
    auto *const handle = owned<tpfsdp_hook>(make<HookHandle>(Ref<Context>(&m.context()), hook).get());
    try {
      hooks_of(m).add(std::move(hook), prepend);
    } catch (...) {
      HandleTable::release(handle);
      throw;
    }
    *out_hook = handle;
  });
}

tpfsdp_status tpfsdp_hook_remove(tpfsdp_hook *hook, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<HookHandle>(hook, "hook").remove();
  });
}

tpfsdp_status tpfsdp_fully_shard_register_forward_method(tpfsdp_module *module, const char *method_name,
                                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Module>(module, "module");
    register_forward_method(*held, &required(method_name, "method_name"));
  });
}

}  // extern "C"
