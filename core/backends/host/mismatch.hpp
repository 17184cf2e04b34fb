// SPDX-License-Identifier: Apache-2.0
// The text for ranks that run different programs: who says what, and who is the odd one out, if one is.
#ifndef TPFSDP_BACKENDS_HOST_MISMATCH_HPP
#define TPFSDP_BACKENDS_HOST_MISMATCH_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

Outcome mismatch(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);

}  // namespace tpfsdp::host

#endif
