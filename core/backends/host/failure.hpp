// SPDX-License-Identifier: Apache-2.0
// How ranks tell each other that something failed. A local failure is posted as the next sequence of the failing rank
// and the comm stays usable; a sticky cause goes into the comm's abort word, where the first one wins.
#ifndef TPFSDP_BACKENDS_HOST_FAILURE_HPP
#define TPFSDP_BACKENDS_HOST_FAILURE_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// Makes `cause` the sticky error of all ranks, unless there is one; returns the one that rules. Any thread.
Outcome raise(Comm &comm, Outcome cause);
/// The sticky error, OK: none.
Outcome sticky(const Comm &comm, Look look);

/// An ERR or RESET of a peer that this rank has not met yet, at any sequence that it has open or will post next.
Outcome peer_error(Comm &comm, tpfsdp_backend_call *call, Look look);
/// What `rank` posted as the failure of `sequence`, as REMOTE.
Outcome remote(const Comm &comm, tpfsdp_backend_call *call, int32_t rank, uint64_t sequence);

/// Posts ERR as the next sequence. Nothing while an earlier failure or a reset of this rank is unread.
void post_failure(Comm &comm, tpfsdp_status status, const char *message);
/// Everything in flight is over for this rank: it reads none of it, and peers may finish it.
void give_up(Comm &comm);

}  // namespace tpfsdp::host

#endif
