// SPDX-License-Identifier: Apache-2.0
// Waiting for a word of every peer: spin, yield, sleep. An unsatisfied wait also looks for a peer's error, abort,
// death, the two clocks and the host's interrupt; having seen one it looks at the awaited word once more, and a
// satisfied wait wins over all of them. The 100 ms slices of sleep serve the interrupt and liveness, never correctness.
#ifndef TPFSDP_BACKENDS_HOST_WAIT_HPP
#define TPFSDP_BACKENDS_HOST_WAIT_HPP

#include <cstddef>
#include <cstdint>

#include <tpfsdp/backend.h>

#include "outcome.hpp"
#include "words.hpp"

namespace tpfsdp::host {

struct Comm;
struct Common;

/// The word that is awaited of every peer.
enum class Target {
  NOTHING,
  JOINED,  ///< life
  RECORD,  ///< the post of a sequence
  DONE,    ///< done has reached a sequence
  STEP,    ///< step has reached a sequence
  RELEASE  ///< the use of a common region has ended up to a sequence
};
/// Those that are a comm's.
inline constexpr size_t TARGETS = 5;

struct Awaiting {
  Target target = Target::NOTHING;
  uint64_t sequence = 0;
  bool watch_errors = false;  ///< a peer's ERR or RESET ends the wait; not when records decide by themselves
  tpfsdp_backend_call *call = nullptr;
  bool may_wait = false;     ///< else PENDING
  Common *common = nullptr;  ///< of RELEASE
};

/// The clocks of one wait; they run on through PENDING.
struct Patience {
  Target target = Target::NOTHING;
  uint64_t sequence = 0;
  int32_t cursor = 0;  ///< peers below it are satisfied
  int64_t began_ns = 0;
  int64_t slow_ns = 0;      ///< last look at liveness and clocks
  int64_t asked_ns = 0;     ///< last question for an interrupt
  int64_t arrival_ns = 0;   ///< how long the cursor's peer was awaited while it moved nothing
  int64_t next_log_ns = 0;  ///< since began_ns
  uint64_t moving = 0;      ///< what the cursor's peer moved then
  uint64_t chunk = 0;
  int64_t moved_ns = 0;  ///< when that changed
  int32_t stopped = -1;  ///< a peer that was seen stopped
  int64_t stopped_ns = 0;
};

/// OK when the word of every peer is there; else what ended the wait.
Outcome await(Comm &comm, const Awaiting &awaiting);
Patience &patience_of(Comm &comm, const Awaiting &awaiting);
bool there(const Comm &comm, const Awaiting &awaiting, int32_t peer, Look look);

}  // namespace tpfsdp::host

#endif
