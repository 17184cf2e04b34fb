// SPDX-License-Identifier: Apache-2.0
// The global operator new of unit_host: it counts, per thread, and can be told to fail.
#ifndef TPFSDP_TESTS_UNIT_HOST_ALLOCATIONS_HPP
#define TPFSDP_TESTS_UNIT_HOST_ALLOCATIONS_HPP

#include <cstdint>

namespace host_test {

/// Of this thread since it began.
int64_t allocations();
/// Of this thread the one after so many fails, once.
void fail_allocation_after(int64_t successes);
/// True: it has not failed yet.
bool stop_failing();
/// For hooks(): memory of the services fails with the rest.
bool allocation_fails();

}  // namespace host_test

#endif
