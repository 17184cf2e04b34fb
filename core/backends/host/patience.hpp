// SPDX-License-Identifier: Apache-2.0
// The slow path of a wait. The arrival clock runs while a word is missing and its rank moves no bytes; the progress
// clock runs only against a rank that says that it moves bytes and stands still. Death is found by liveness, never by
// a clock.
#ifndef TPFSDP_BACKENDS_HOST_PATIENCE_HPP
#define TPFSDP_BACKENDS_HOST_PATIENCE_HPP

#include <cstdint>

#include "outcome.hpp"
#include "wait.hpp"

namespace tpfsdp::host {

/// Starts the clocks, unless this wait was begun already and went on with PENDING.
void begin_patience(Comm &comm, const Awaiting &awaiting, int32_t peer);
/// Liveness, clocks, interrupt, log. PENDING: go on waiting; OK: the word came meanwhile.
Outcome slow_look(Comm &comm, const Awaiting &awaiting, int32_t peer);

}  // namespace tpfsdp::host

#endif
