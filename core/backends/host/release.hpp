// SPDX-License-Identifier: Apache-2.0
// Common regions in use. After a gather in one was agreed on, each rank uses the memory until it says that it does not:
// its release word is then the sequence of that gather. Who is about to write waits until the words of all peers have
// passed the last one. Words are sequences, never counts: counts of ranks drift apart at the first failure.
#ifndef TPFSDP_BACKENDS_HOST_RELEASE_HPP
#define TPFSDP_BACKENDS_HOST_RELEASE_HPP

#include <cstdint>

#include "comm.hpp"
#include "common.hpp"

namespace tpfsdp::host {

/// A gather in it is posted as `sequence`.
void note_use(Common &common, uint64_t sequence, int32_t unit);
/// The verdict of `sequence` is OK.
void note_agreed(Comm &comm, uint64_t sequence);
/// This rank uses the memory no more. Never waits.
void release(Common &common);
/// OK when no peer uses it. Completes this rank's own gathers of it first.
Outcome wait_released(Comm &comm, tpfsdp_backend_call *call, Common &common, bool may_wait);

/// A reset begins: what this rank does not use it does not hold, whatever it posted there.
void release_unused(Comm &comm, uint64_t sequence);
/// All ranks have reset at `sequence`: what was posted before is nobody's, and what is in use is waited for.
void start_afresh(Comm &comm, uint64_t sequence);

/// A shared gather is about to be posted, so that this rank has written its part.
void check_slot_free(Comm &comm, const Common &common);

}  // namespace tpfsdp::host

#endif
