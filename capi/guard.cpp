// SPDX-License-Identifier: Apache-2.0
#include "guard.hpp"

#include "error.hpp"
#include "handle.hpp"

#include <atomic>
#include <new>

namespace tpfsdp::capi {
namespace {

std::shared_ptr<const ErrorDetail> detail_of(Status status, std::string message) {
  auto detail = std::make_shared<ErrorDetail>();
  detail->status = status;
  detail->message = std::move(message);
  return detail;
}

// The error that is handed out when there is no memory left to make one: made when the library is loaded, kept for
// ever, handed out as often as needed. Its first, owned handle is never given back.
struct Spare {
  Error *error = nullptr;
  void *handle = nullptr;
};

Spare make_spare() noexcept {
  try {
    Spare spare;
    Ref<Error> made = make<Error>(
        detail_of(TPFSDP_ERR_OUT_OF_MEMORY, "out of memory: the library could not allocate what this call needs"));
    spare.error = made.get();
    spare.handle = HandleTable::expose(spare.error, true);
    return spare;
  } catch (...) {
    return {};
  }
}

const Spare spare = make_spare();

// Null only in a child of fork, whose handles must be new.
tpfsdp_error *spare_error() noexcept { return static_cast<tpfsdp_error *>(HandleTable::retain(spare.handle)); }

// The error object, or the spare one; tells which status it has.
Status hand_out(tpfsdp_error **error, const std::shared_ptr<const ErrorDetail> &detail) noexcept {
  try {
    *error = owned<tpfsdp_error>(make<Error>(detail).get());
    return detail->status;
  } catch (...) {
    *error = spare_error();
    return TPFSDP_ERR_OUT_OF_MEMORY;
  }
}

Status report_internal(tpfsdp_error **error, const char *what) noexcept {
  if (!error) return TPFSDP_ERR_INTERNAL;
  try {
    return hand_out(error, detail_of(TPFSDP_ERR_INTERNAL, cat("unexpected exception: ", what, "; please report it")));
  } catch (...) {
    *error = spare_error();
    return TPFSDP_ERR_OUT_OF_MEMORY;
  }
}

}  // namespace

Status report_exception(tpfsdp_error **error) noexcept {
  try {
    throw;
  } catch (const Failure &failure) {
    if (failure.status() >= 0) return report_internal(error, failure.what());
    return error ? hand_out(error, failure.detail()) : failure.status();
  } catch (const std::bad_alloc &) {
    if (error) *error = spare_error();
    return TPFSDP_ERR_OUT_OF_MEMORY;
  } catch (const std::exception &other) {
    return report_internal(error, other.what());
  } catch (...) {
    return report_internal(error, "of no standard type");
  }
}

}  // namespace tpfsdp::capi
