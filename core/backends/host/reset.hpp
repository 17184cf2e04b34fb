// SPDX-License-Identifier: Apache-2.0
// The end of a failed step: rounds of RESET until one sequence holds nothing else. The caller posts on all comms of the
// root before it waits on any: comm by comm, two ranks wait for each other for ever.
#ifndef TPFSDP_BACKENDS_HOST_RESET_HPP
#define TPFSDP_BACKENDS_HOST_RESET_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// Gives up what is in flight and posts RESET; nothing more while an earlier RESET of this rank is unread.
void post_reset(Comm &comm, int64_t windows_opened);
/// Reads one round. *out_all_reset 0: some rank had posted something else; post again.
Outcome wait_reset(Comm &comm, tpfsdp_backend_call *call, bool may_wait, bool *out_all_reset);

}  // namespace tpfsdp::host

#endif
