// SPDX-License-Identifier: Apache-2.0
#include "fsdp/scope.hpp"
#include "guard.hpp"
#include "handle.hpp"

#include <tpfsdp/grad.h>

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_grad_reduce(tpfsdp_module *module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    reduce_below(entry.get<Module>(module, "module"));
  });
}

}  // extern "C"
