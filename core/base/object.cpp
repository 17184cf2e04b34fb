// SPDX-License-Identifier: Apache-2.0
#include "base/object.hpp"

#include "base/handle_table.hpp"

namespace tpfsdp {

Object::~Object() {
  if (const uint64_t handle = handle_.load(std::memory_order_relaxed)) HandleTable::retire(handle);
}

bool Object::try_ref() noexcept {
  int32_t count = references_.load(std::memory_order_relaxed);
  do {
    if (count == 0) return false;
  } while (!references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return true;
}

void Object::run_deferred() noexcept {
  for (int32_t owed = deferred_count(); owed > 0; --owed) outside_unref();
}

}  // namespace tpfsdp
