// SPDX-License-Identifier: Apache-2.0
// The transports that can be had, and which of them a rank takes.
#pragma once

#include "base/error.hpp"

#include <string>

namespace tpfsdp {

struct BackendChoice {
  const tpfsdp_backend_table *table = nullptr;
  std::string report;  // each candidate: where it was looked for, and why it was taken or refused
};

// The one called `name`, or with "" the best by score that has all capabilities of `needed` (bits of
// tpfsdp_backend_capability). Throws BACKEND_UNAVAILABLE with the report when there is none.
BackendChoice choose_backend(const std::string &name, uint64_t needed);

// One candidate after the hand-shake; for tests of bad plugins, too. `refusal` is empty when it can be used.
struct BackendCandidate {
  std::string where;  // "built in"
  tpfsdp_backend_table table{};
  int32_t score = 0;
  std::string reason;  // what its probe said
  std::string refusal;
};
void load_backend(tpfsdp_backend_entry entry, BackendCandidate *candidate);

}  // namespace tpfsdp
