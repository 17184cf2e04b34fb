// SPDX-License-Identifier: Apache-2.0
// Debug switches of the environment, read once: TPFSDP_DEBUG=poison,readonly.
#pragma once

namespace tpfsdp {

struct DebugSwitches {
  bool poison = false;     // a released slot is filled with signalling NaN
  bool read_only = false;  // shards cannot be written outside a write window
};

const DebugSwitches &debug_switches() noexcept;

}  // namespace tpfsdp
