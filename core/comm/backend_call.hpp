// SPDX-License-Identifier: Apache-2.0
// One call into a transport: what it may ask us meanwhile, and the error that it builds. Lives on the stack of the
// call; costs nothing while nothing fails.
#pragma once

#include "base/error.hpp"

#include <string>

namespace tpfsdp {
class Rank;
}

// Declared in backend.h, opaque to transports.
struct tpfsdp_backend_call {
  explicit tpfsdp_backend_call(tpfsdp::Rank &r) : rank(r) {}

  tpfsdp::Rank &rank;
  int64_t waited_ns = 0;  // of the wait that was counted last
  // What set_error said.
  int32_t failed_rank = -1;
  int32_t backend_code = -1;
  int64_t sequence = -1;
  std::string message{};
};

namespace tpfsdp {

const tpfsdp_backend_services &backend_services();

// What a call that gave `status` failed with; operation, unit and group are the caller's to fill in.
ErrorDetail failure_of(const tpfsdp_backend_call &call, Status status);

}  // namespace tpfsdp
