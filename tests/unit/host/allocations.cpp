// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <cstdlib>
#include <new>
#include <utility>

#include "services.hpp"

// The compiler sees one half of a pair at a time.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {

thread_local int64_t made = 0;
thread_local int64_t left = -1;  // before the one that fails; negative: none does

}  // namespace

void *operator new(size_t bytes) {
  ++made;
  void *data = host_test::allocation_fails() ? nullptr : std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void *data) noexcept { std::free(data); }
void operator delete(void *data, size_t) noexcept { std::free(data); }

namespace host_test {

int64_t allocations() { return made; }

bool allocation_fails() { return !keeps_books() && left >= 0 && left-- == 0; }

void fail_allocation_after(int64_t successes) { left = successes; }

bool stop_failing() { return std::exchange(left, -1) >= 0; }

}  // namespace host_test
