// SPDX-License-Identifier: Apache-2.0
// Shutting down together is a collective like any other; aborting is not.
#ifndef TPFSDP_BACKENDS_HOST_CLOSE_HPP
#define TPFSDP_BACKENDS_HOST_CLOSE_HPP

#include "comm.hpp"

namespace tpfsdp::host {

/// Completes everything, then posts CLOSE and waits until every rank has. Asked again after CANCELLED it goes on.
Outcome shut_down(Comm &comm, tpfsdp_backend_call *call);
/// Sticky on every rank. Any thread.
void abort(Comm &comm, tpfsdp_status status, const char *reason);

}  // namespace tpfsdp::host

#endif
