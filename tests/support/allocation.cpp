// SPDX-License-Identifier: Apache-2.0
#include "support/allocation.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tpfsdp::allocation {
namespace {

thread_local int64_t left = -1;  // negative: none fails
thread_local bool failed = false;
thread_local bool paused = false;
std::atomic<int64_t> count{0};
std::atomic<int64_t> alive{0};

void *allocate(std::size_t size, std::size_t alignment) {
  if (!paused && left == 0) {
    left = -1;
    failed = true;
    throw std::bad_alloc();
  }
  if (!paused && left > 0) --left;
  if (size > std::size_t{1} << 46) throw std::bad_alloc();  // a sanitizer's allocator would end the program
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void *data = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (!data) throw std::bad_alloc();
  count.fetch_add(1, std::memory_order_relaxed);
  alive.fetch_add(1, std::memory_order_relaxed);
  return data;
}

void deallocate(void *data) noexcept {
  if (data) alive.fetch_sub(1, std::memory_order_relaxed);
  std::free(data);
}

}  // namespace

void fail_after(int64_t successes) {
  failed = false;
  left = successes;
}
void never_fail() { left = -1; }
void pause(bool is_paused) { paused = is_paused; }
bool has_failed() { return failed; }
int64_t made() { return count.load(std::memory_order_relaxed); }
int64_t living() { return alive.load(std::memory_order_relaxed); }

}  // namespace tpfsdp::allocation

using tpfsdp::allocation::allocate;
using tpfsdp::allocation::deallocate;

void *operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void *operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void *data) noexcept { deallocate(data); }
void operator delete(void *data, std::size_t) noexcept { deallocate(data); }
void operator delete(void *data, std::align_val_t) noexcept { deallocate(data); }
void operator delete(void *data, std::size_t, std::align_val_t) noexcept { deallocate(data); }
