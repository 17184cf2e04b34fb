// SPDX-License-Identifier: Apache-2.0
#include "fsdp/scope.hpp"

#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/scope.h>

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_scope_open(tpfsdp_module *const *modules, int64_t module_count,
                                const tpfsdp_scope_options *options, tpfsdp_scope **out_scope,
                                tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto read = read_options(options, "tpfsdp_scope_options");
    required(out_scope, "out_scope");
    Entry entry;
    std::vector<Ref<Module>> taken;
    if (as_count(module_count, modules, "module_count") == 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "a scope needs at least one module");
    for (int64_t i = 0; i < module_count; ++i) taken.emplace_back(&entry.get<Module>(modules[i], "modules[i]"));
    const auto scope = make<Scope>(std::move(taken), as_bool(read.recurse, true, "recurse"));
    *out_scope = owned<tpfsdp_scope>(scope.get());
  });
}

tpfsdp_status tpfsdp_scope_close(tpfsdp_scope *scope, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<Scope>(scope, "scope").close();
  });
}

}  // extern "C"
