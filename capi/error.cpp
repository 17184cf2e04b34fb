// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/error.h>

namespace tpfsdp::capi {
namespace {

// The hundreds of a status; 0 for what is no error.
tpfsdp_error_class class_of(Status status) {
  if (status >= 0) return TPFSDP_ERROR_CLASS_UNSPECIFIED;
  const int32_t hundreds = -(status / 100);
  return hundreds >= TPFSDP_ERROR_CLASS_PROGRAM && hundreds <= TPFSDP_ERROR_CLASS_REPORT ? hundreds
                                                                                         : TPFSDP_ERROR_CLASS_UNKNOWN;
}

}  // namespace

Error::Error(std::shared_ptr<const ErrorDetail> detail) : detail_(std::move(detail)) {
  if (!detail_->cause) return;
  cause_ = make<Error>(detail_->cause);
  cause_handle_ = borrowed<void>(cause_.get());
}

}  // namespace tpfsdp::capi

using namespace tpfsdp::capi;
using tpfsdp::Kind;

extern "C" {

const char *tpfsdp_error_message(const tpfsdp_error *error) TPFSDP_NOEXCEPT {
  const auto held = tpfsdp::HandleTable::find_and_hold(error, Kind::kError);
  return held ? static_cast<const Error &>(*held).detail().message.c_str() : "";
}

tpfsdp_status tpfsdp_error_get_info(const tpfsdp_error *error, tpfsdp_error_info *out_info) TPFSDP_NOEXCEPT {
  return guard(nullptr, [&] {
    const auto held = hold<Error>(error, "error");
    const tpfsdp::ErrorDetail &detail = held->detail();
    tpfsdp_error_info info{};
    info.status = detail.status;
    info.error_class = class_of(detail.status);
    info.rank = detail.rank;
    info.backend_code = detail.backend_code;
    info.is_sticky = tpfsdp::is_sticky(detail.status) ? 1 : 0;
    info.sequence = detail.sequence;
    info.message = detail.message.c_str();
    info.operation = detail.operation.c_str();
    info.unit = detail.unit.c_str();
    info.group = detail.group.c_str();
    info.backend = detail.backend.c_str();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_error *tpfsdp_error_get_cause(const tpfsdp_error *error) TPFSDP_NOEXCEPT {
  const auto held = tpfsdp::HandleTable::find_and_hold(error, Kind::kError);
  return held ? static_cast<tpfsdp_error *>(static_cast<const Error &>(*held).cause_handle()) : nullptr;
}

tpfsdp_error_class tpfsdp_error_status_class(tpfsdp_status status) TPFSDP_NOEXCEPT { return class_of(status); }

const char *tpfsdp_error_status_name(tpfsdp_status status) TPFSDP_NOEXCEPT {
  switch (status) {
    case TPFSDP_OK: return "OK";
    case TPFSDP_PENDING: return "PENDING";
    case TPFSDP_ERR_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case TPFSDP_ERR_INVALID_HANDLE: return "INVALID_HANDLE";
    case TPFSDP_ERR_NOT_FOUND: return "NOT_FOUND";
    case TPFSDP_ERR_STATE: return "STATE";
    case TPFSDP_ERR_BUSY: return "BUSY";
    case TPFSDP_ERR_ABI: return "ABI";
    case TPFSDP_ERR_UNSUPPORTED: return "UNSUPPORTED";
    case TPFSDP_ERR_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case TPFSDP_ERR_IO: return "IO";
    case TPFSDP_ERR_CORRUPT: return "CORRUPT";
    case TPFSDP_ERR_NON_FINITE: return "NON_FINITE";
    case TPFSDP_ERR_CALLBACK: return "CALLBACK";
    case TPFSDP_ERR_REMOTE: return "REMOTE";
    case TPFSDP_ERR_MISMATCH: return "MISMATCH";
    case TPFSDP_ERR_CANCELLED: return "CANCELLED";
    case TPFSDP_ERR_TIMEOUT: return "TIMEOUT";
    case TPFSDP_ERR_PEER_LOST: return "PEER_LOST";
    case TPFSDP_ERR_ABORTED: return "ABORTED";
    case TPFSDP_ERR_BACKEND: return "BACKEND";
    case TPFSDP_ERR_BACKEND_UNAVAILABLE: return "BACKEND_UNAVAILABLE";
    case TPFSDP_ERR_FORKED: return "FORKED";
    case TPFSDP_ERR_INTERNAL: return "INTERNAL";
    default: return "UNKNOWN";
  }
}

}  // extern "C"
