// SPDX-License-Identifier: Apache-2.0
#include "fsdp/root.hpp"
#include "fsdp/scope.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/fsdp_module.h>

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

}  // extern "C"
