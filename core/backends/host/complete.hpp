// SPDX-License-Identifier: Apache-2.0
// Completing sequences in posting order: all records, the verdict, the bytes, done.
#ifndef TPFSDP_BACKENDS_HOST_COMPLETE_HPP
#define TPFSDP_BACKENDS_HOST_COMPLETE_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// Completes up to sequence. The first error ends it. A local one (CANCELLED, a failing copy or reduction) leaves its
/// sequence open: post the failure and give up, or call again.
Outcome complete(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool may_wait);
/// OK when no peer reads any more what this rank showed up to sequence. Completes its own part first.
Outcome wait_read(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool may_wait);

}  // namespace tpfsdp::host

#endif
