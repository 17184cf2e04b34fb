// SPDX-License-Identifier: Apache-2.0
// What became of a sequence: a pure function of the records of all ranks, so that all reach the same verdict.
#ifndef TPFSDP_BACKENDS_HOST_VERDICT_HPP
#define TPFSDP_BACKENDS_HOST_VERDICT_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// For a sequence of which every record is there and this rank's own is an OP or CLOSE. A sticky verdict is not raised
/// here.
Outcome verdict(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);
/// The verdict of a RESET of this rank: OK when all ranks reset, PENDING when it must be posted again.
Outcome reset_verdict(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);

}  // namespace tpfsdp::host

#endif
