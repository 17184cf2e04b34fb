// SPDX-License-Identifier: Apache-2.0
#include "fsdp/root.hpp"
#include "fsdp/scope.hpp"
#include "fsdp/state_machine.hpp"
#include "fsdp/switches.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/fsdp_module.h>

namespace tpfsdp::capi {
namespace {

// A switch of one module, or of all below it.
template <class Set>
tpfsdp_status change(tpfsdp_module *module, tpfsdp_error **error, Set &&set) noexcept {
  return guard(error, [&] {
    Entry entry;
    set(entry.get<Module>(module, "module"));
  });
}

template <class Set>
tpfsdp_status set_list(tpfsdp_module *module, tpfsdp_module *const *modules, int64_t module_count, tpfsdp_error **error,
                       Set &&set) noexcept {
  return guard(error, [&] {
    Entry entry;
    Module &target = entry.get<Module>(module, "module");
    std::vector<Ref<Module>> list;
    as_count(module_count, modules, "module_count");
    for (int64_t i = 0; i < module_count; ++i) list.emplace_back(&entry.get<Module>(modules[i], "modules[i]"));
    set(target, list);
  });
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_fsdp_module_get_info(tpfsdp_module *module, tpfsdp_fsdp_module_info *out_info,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    const State &state = state_of(entry.get<Module>(module, "module"));
    tpfsdp_fsdp_module_info info{};
    info.unit_count = state.unit ? 1 : 0;
    info.is_root = !state.root ? -1 : state.is_root() ? 1 : 0;
    info.module_count = static_cast<int32_t>(state.modules.size());
    info.training_state = static_cast<int32_t>(state.training_state);
    info.reshard_after_forward.kind = static_cast<int32_t>(state.reshard_kind);
    info.reshard_after_forward.size = state.reshard_size;
    info.reshard_after_backward = state.switches.reshards_after_backward;
    info.requires_gradient_sync = state.switches.reduces;
    info.is_last_backward = !state.root || state.root->is_last_backward;
    info.manual_backward_finalization = state.root && state.root->finalizes_manually;
    info.unshard_in_backward = state.switches.unshards_in_backward;
    info.reduce_unused_params = state.switches.reduces_unused;
    info.input_dtype = state.precision.input_dtype();
    info.output_dtype = state.precision.output_dtype;
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_fsdp_module_get_unit(tpfsdp_module *module, int32_t index, tpfsdp_unit **out_unit,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    const State &state = state_of(m);
    if (index != 0 || !state.unit)
      fail(TPFSDP_ERR_NOT_FOUND, "module \"", m.path(), "\" has ", state.unit ? 1 : 0, " unit(s), none at index ",
           index);
    required(out_unit, "out_unit") = borrowed<tpfsdp_unit>(state.unit.get());
  });
}

tpfsdp_status tpfsdp_fsdp_module_unshard(tpfsdp_module *module, tpfsdp_work **out_work,
                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Ref<Module> m(&entry.get<Module>(module, "module"));
    const Ref<Work> work = unshard_module(m, out_work != nullptr);
    if (out_work) *out_work = owned<tpfsdp_work>(work.get());
  });
}

tpfsdp_status tpfsdp_fsdp_module_reshard(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    reshard_module(entry.get<Module>(module, "module"));
  });
}

tpfsdp_status tpfsdp_fsdp_module_reset_iter_state(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    root_of(entry.get<Module>(module, "module"), "reset_iter_state").reset();
  });
}

tpfsdp_status tpfsdp_fsdp_module_finalize_backward(tpfsdp_module *module, tpfsdp_work **out_work,
                                                   tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Ref<Module> m(&entry.get<Module>(module, "module"));
    const Ref<Work> work = finalize_module(m, out_work != nullptr);
    if (out_work) *out_work = owned<tpfsdp_work>(work.get());
  });
}

tpfsdp_status tpfsdp_fsdp_module_set_requires_gradient_sync(tpfsdp_module *module, tpfsdp_bool enabled,
                                                            tpfsdp_bool recurse, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) {
    set_requires_gradient_sync(m, as_bool(enabled, "enabled"), as_bool(recurse, "recurse"));
  });
}

tpfsdp_status tpfsdp_fsdp_module_set_is_last_backward(tpfsdp_module *module, tpfsdp_bool enabled,
                                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) { set_is_last_backward(m, as_bool(enabled, "enabled")); });
}

tpfsdp_status tpfsdp_fsdp_module_set_manual_backward_finalization(tpfsdp_module *module, tpfsdp_bool enabled,
                                                                  tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) { set_manual_backward_finalization(m, as_bool(enabled, "enabled")); });
}

tpfsdp_status tpfsdp_fsdp_module_set_reshard_after_forward(tpfsdp_module *module, tpfsdp_reshard_kind kind,
                                                           tpfsdp_bool recurse, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) {
    if (kind != TPFSDP_RESHARD_ALWAYS && kind != TPFSDP_RESHARD_NEVER)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "kind is ", kind, "; it is TPFSDP_RESHARD_ALWAYS or TPFSDP_RESHARD_NEVER");
    set_reshard_after_forward(m, static_cast<ReshardKind>(kind), as_bool(recurse, "recurse"));
  });
}

tpfsdp_status tpfsdp_fsdp_module_set_reshard_after_backward(tpfsdp_module *module, tpfsdp_bool enabled,
                                                            tpfsdp_bool recurse, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) {
    set_reshard_after_backward(m, as_bool(enabled, "enabled"), as_bool(recurse, "recurse"));
  });
}

tpfsdp_status tpfsdp_fsdp_module_set_unshard_in_backward(tpfsdp_module *module, tpfsdp_bool enabled,
                                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) { set_unshard_in_backward(m, as_bool(enabled, "enabled")); });
}

tpfsdp_status tpfsdp_fsdp_module_set_reduce_scatter_unused_params(tpfsdp_module *module, tpfsdp_bool enabled,
                                                                  tpfsdp_bool recurse,
                                                                  tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return change(module, error, [=](Module &m) {
    set_reduce_scatter_unused_params(m, as_bool(enabled, "enabled"), as_bool(recurse, "recurse"));
  });
}

tpfsdp_status tpfsdp_fsdp_module_set_modules_to_forward_prefetch(tpfsdp_module *module, tpfsdp_module *const *modules,
                                                                 int64_t module_count,
                                                                 tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return set_list(module, modules, module_count, error, set_forward_prefetch);
}

tpfsdp_status tpfsdp_fsdp_module_set_modules_to_backward_prefetch(tpfsdp_module *module, tpfsdp_module *const *modules,
                                                                  int64_t module_count,
                                                                  tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return set_list(module, modules, module_count, error, set_backward_prefetch);
}

}  // extern "C"
