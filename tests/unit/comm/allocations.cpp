// SPDX-License-Identifier: Apache-2.0
#include "unit/comm/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

namespace tpfsdp {
int64_t allocations() { return count; }
}  // namespace tpfsdp

// Replaces that of the whole program.
void *operator new(size_t size) {
  ++count;
  if (void *data = std::malloc(size)) return data;
  throw std::bad_alloc();
}
void operator delete(void *data) noexcept { std::free(data); }
void operator delete(void *data, size_t) noexcept { std::free(data); }
