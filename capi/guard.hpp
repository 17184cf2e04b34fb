// SPDX-License-Identifier: Apache-2.0
// The edge between C and C++: every public function runs its body here. What is thrown becomes a status and, if asked
// for, an owned error object; nothing unwinds into the caller.
#pragma once

#include "base/error.hpp"

#include <tpfsdp/base.h>

#include <type_traits>

namespace tpfsdp::capi {

// Turns the exception in flight into a status and fills *error. Never throws.
Status report_exception(tpfsdp_error **error) noexcept;

template <class Body>
Status guard(tpfsdp_error **error, Body &&body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return TPFSDP_OK;
    } else {
      return body();
    }
  } catch (...) {
    return report_exception(error);
  }
}

// A pointer argument that may not be NULL.
template <class T>
T &required(T *pointer, const char *name) {
  if (!pointer) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is NULL");
  return *pointer;
}

inline bool as_bool(tpfsdp_bool value, const char *name) {
  if (value != 0 && value != 1) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", value, "; a tpfsdp_bool is 0 or 1");
  return value == 1;
}

inline bool as_bool(tpfsdp_toggle value, bool by_default, const char *name) {
  if (value < TPFSDP_TOGGLE_OFF || value > TPFSDP_TOGGLE_ON)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", value, "; a tpfsdp_toggle is -1, 0 or 1");
  return value == TPFSDP_TOGGLE_DEFAULT ? by_default : value == TPFSDP_TOGGLE_ON;
}

inline int64_t as_count(int64_t count, const void *array, const char *name) {
  if (count < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", count, "; a count is not negative");
  if (count > 0 && !array) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", count, ", but its array is NULL");
  return count;
}

}  // namespace tpfsdp::capi
