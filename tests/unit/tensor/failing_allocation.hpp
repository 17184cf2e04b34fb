// SPDX-License-Identifier: Apache-2.0
// The global operator new of this test program, which can be told to fail. Per thread, so that others are not hit.
#pragma once

#include <cstdint>

namespace tpfsdp::allocation {

void fail_after(int64_t successes);  // the one after so many fails, once
void never_fail();
bool has_failed();
int64_t living();  // allocations of this program that were not freed

}  // namespace tpfsdp::allocation
