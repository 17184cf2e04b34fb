// SPDX-License-Identifier: Apache-2.0
// The global operator new of a test program (allocation.cpp; cmake/TpfsdpTests.cmake lists whose), which counts and can
// be told to fail: per thread, so that others are not hit.
#pragma once

#include <cstdint>

namespace tpfsdp::allocation {

void fail_after(int64_t successes);  // the one after so many fails, once
void never_fail();
void pause(bool is_paused);  // what comes meanwhile neither fails nor counts as a success
bool has_failed();
int64_t made();    // allocations of this program since its start
int64_t living();  // those that were not freed

}  // namespace tpfsdp::allocation
