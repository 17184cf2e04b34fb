// SPDX-License-Identifier: Apache-2.0
// From an operation of the library to a post: checks all that can fail here, decides where the data lies, posts.
#ifndef TPFSDP_BACKENDS_HOST_SUBMIT_HPP
#define TPFSDP_BACKENDS_HOST_SUBMIT_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// What must end before an operation of `kind` is posted.
Outcome refuse_unended(Comm &comm, tpfsdp_backend_call *call, tpfsdp_backend_kind kind);
/// Posts op. Waits only for room, and between the two sequences of a large all-reduce; asked again after PENDING or
/// CANCELLED with the same op it goes on from there.
Outcome submit(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
               uint64_t *out_sequence);

}  // namespace tpfsdp::host

#endif
