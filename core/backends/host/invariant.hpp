// SPDX-License-Identifier: Apache-2.0
// The protocol's invariants, on in debug builds. A violated one sticks to the comm as INTERNAL with its name, and is
// counted; it never aborts the host's process.
#ifndef TPFSDP_BACKENDS_HOST_INVARIANT_HPP
#define TPFSDP_BACKENDS_HOST_INVARIANT_HPP

#include <string>
#include <type_traits>

#include "alarm.hpp"
#include "comm.hpp"

namespace tpfsdp::host {

/// Reports that `name` does not hold. detail: what differs, for the message.
Outcome violated(Comm &comm, const char *name, const std::string &detail = {});
Outcome violated(Alarm &alarm, uint64_t sequence, const char *name, const std::string &detail = {});

/// holds: a bool, or a function of none if it costs something. Returns it; true where invariants are off.
template <class Holds>
bool invariant([[maybe_unused]] Comm &comm, [[maybe_unused]] const Holds &holds, [[maybe_unused]] const char *name) {
#if !defined(NDEBUG)
  bool is_so = false;
  if constexpr (std::is_invocable_v<Holds>)
    is_so = holds();
  else
    is_so = holds;
  if (!is_so) static_cast<void>(violated(comm, name));
  return is_so;
#else
  return true;
#endif
}

}  // namespace tpfsdp::host

#endif
