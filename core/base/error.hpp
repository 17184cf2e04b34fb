// SPDX-License-Identifier: Apache-2.0
// Failures inside the core: one exception type that carries all that tpfsdp_error_info can tell. It is caught once, by
// the guard of capi; steady-state paths never throw.
#pragma once

#include <tpfsdp/backend.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace tpfsdp {

using Status = tpfsdp_status;

struct ErrorDetail {
  Status status = TPFSDP_ERR_INTERNAL;
  std::string message;
  int32_t rank = -1;
  int32_t backend_code = -1;
  int64_t sequence = -1;
  std::string operation;
  std::string unit;
  std::string group;
  std::string backend;
  const void *origin = nullptr;  // the group it came from, to compare only: names need not be unique
  std::shared_ptr<const ErrorDetail> cause;
};

class Failure : public std::exception {
 public:
  explicit Failure(ErrorDetail detail) : detail_(std::make_shared<const ErrorDetail>(std::move(detail))) {}
  explicit Failure(std::shared_ptr<const ErrorDetail> detail) : detail_(std::move(detail)) {}

  const char *what() const noexcept override { return detail_->message.c_str(); }
  Status status() const { return detail_->status; }
  const std::shared_ptr<const ErrorDetail> &detail() const { return detail_; }

 private:
  std::shared_ptr<const ErrorDetail> detail_;
};

// The classes of the table in error.h: a status is an error of its group for ever, or it is not.
constexpr bool is_sticky(Status status) { return (status <= -401 && status > -500) || status == TPFSDP_ERR_INTERNAL; }

inline void append_text(std::string &out, std::string_view part) { out.append(part); }
template <class Number>
  requires std::is_arithmetic_v<Number>
void append_text(std::string &out, Number part) {
  if constexpr (std::is_same_v<Number, char>) {
    out.push_back(part);
  } else {
    out.append(std::to_string(part));
  }
}

// cat("rank ", 3, " of ", 4): error texts and names, never on a steady-state path.
template <class... Parts>
std::string cat(const Parts &...parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

template <class... Parts>
[[noreturn]] void fail(Status status, const Parts &...parts) {
  ErrorDetail detail;
  detail.status = status;
  detail.message = cat(parts...);
  throw Failure(std::move(detail));
}

// An invariant of ours: its failure is a defect to report, never an abort of the host program.
#define TPFSDP_CHECK(condition)                                                                                       \
  do {                                                                                                                \
    if (!(condition)) {                                                                                               \
      ::tpfsdp::fail(TPFSDP_ERR_INTERNAL, "internal invariant does not hold: ", #condition, " (", __FILE_NAME__, ":", \
                     __LINE__, "); please report it");                                                                \
    }                                                                                                                 \
  } while (false)

}  // namespace tpfsdp
