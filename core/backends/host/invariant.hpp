// SPDX-License-Identifier: Apache-2.0
// The protocol's invariants, on in debug builds. A violated one sticks to the comm as INTERNAL with its name, and is
// counted; it never aborts the host's process.
#ifndef TPFSDP_BACKENDS_HOST_INVARIANT_HPP
#define TPFSDP_BACKENDS_HOST_INVARIANT_HPP

#include "comm.hpp"

namespace tpfsdp::host {

/// Reports that `name` does not hold.
Outcome violated(Comm &comm, const char *name);

#if defined(NDEBUG)
inline void invariant(Comm &, bool, const char *) {}
#else
inline void invariant(Comm &comm, bool holds, const char *name) {
  if (!holds) static_cast<void>(violated(comm, name));
}
#endif

}  // namespace tpfsdp::host

#endif
