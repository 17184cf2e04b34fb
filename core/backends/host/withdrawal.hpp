// SPDX-License-Identifier: Apache-2.0
// Taking the caller's own memory back from readers. A rank that fails after it has shown peers memory that is no
// region's must not return while one of them reads it or may begin to. note: withdrawal
#ifndef TPFSDP_BACKENDS_HOST_WITHDRAWAL_HPP
#define TPFSDP_BACKENDS_HOST_WITHDRAWAL_HPP

#include "comm.hpp"

namespace tpfsdp::host {

/// Takes back what is still shown, and waits for peers that are in the middle of reading it, not for any other.
void withdraw(Comm &comm) noexcept;
/// Before reading sequence: OK, or REMOTE naming a rank that took its memory back. This rank says `moving` before.
Outcome check_withdrawn(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);

}  // namespace tpfsdp::host

#endif
