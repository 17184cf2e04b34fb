// SPDX-License-Identifier: Apache-2.0
// The agreement at the end of backward: when every peer's step has reached this rank's, all ranks have finished the
// step without failure, so that all apply the optimizer or none does. `done` alone does not say so: a rank can fail
// after its last collective.
#ifndef TPFSDP_BACKENDS_HOST_WINDOW_HPP
#define TPFSDP_BACKENDS_HOST_WINDOW_HPP

#include "comm.hpp"

namespace tpfsdp::host {

/// All collectives of this rank are complete, and none of them failed.
void publish_step(Comm &comm);
Outcome wait_step(Comm &comm, tpfsdp_backend_call *call, bool may_wait);

}  // namespace tpfsdp::host

#endif
