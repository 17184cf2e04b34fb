// SPDX-License-Identifier: Apache-2.0
// How many allocations this program has made, to show that a step makes none.
#pragma once

#include <cstdint>

namespace tpfsdp {
int64_t allocations();
}
