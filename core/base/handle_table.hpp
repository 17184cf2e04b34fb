// SPDX-License-Identifier: Apache-2.0
// Handles: 64-bit numbers dressed as pointers. Kind, library instance, generation and slot are in the value, so that a
// null, stale, foreign or wrong-kind handle is told from a good one by one load and one compare. Slots never go away.
#pragma once

#include "base/object.hpp"

namespace tpfsdp {

class HandleTable {
 public:
  // The object's one handle, made at its first call. `owned` 1 gives the caller a reference to release.
  static void *expose(Object *object, bool owned);

  // The object behind a handle that is alive and of this kind; null otherwise. No lock, no pin: safe while the caller
  // is inside the object's gate, which find_gate tells. Gates are type-stable, so enter first and look again.
  static Object *find(const void *handle, Kind kind) noexcept;
  static Gate *find_gate(const void *handle, Kind kind) noexcept;
  // The same for objects that any thread may use: with a reference that keeps it for the call.
  static Ref<Object> find_and_hold(const void *handle, Kind kind) noexcept;

  // Of a value that find refused: it was good in the process that this one was forked from.
  static bool is_from_before_fork(const void *handle) noexcept;

  static void *retain(void *handle) noexcept;
  static void release(void *handle) noexcept;

  // Called by the object's destructor.
  static void retire(uint64_t handle) noexcept;

  // To be called when an object joins a rank after its handle was made.
  static void set_gate(Object *object) noexcept;

  static int64_t live_count() noexcept;
};

}  // namespace tpfsdp
