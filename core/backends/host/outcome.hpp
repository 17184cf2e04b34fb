// SPDX-License-Identifier: Apache-2.0
// How a step of the engine ended, with all that an error message needs. Free of allocation while nothing fails.
#ifndef TPFSDP_BACKENDS_HOST_OUTCOME_HPP
#define TPFSDP_BACKENDS_HOST_OUTCOME_HPP

#include <cstdint>
#include <string>
#include <utility>

#include <tpfsdp/backend.h>

namespace tpfsdp::host {

struct [[nodiscard]] Outcome {
  tpfsdp_status status = TPFSDP_OK;
  int32_t rank = -1;      ///< at fault, -1: unknown
  int64_t sequence = -1;  ///< at which it came, -1: none
  std::string text{};

  bool ok() const { return status == TPFSDP_OK; }
  bool failed() const { return status < 0; }
  /// What sticks to the comm: every later call repeats it.
  bool sticky() const { return (status <= -400 && status > -500) || status <= -600; }

  static Outcome pending() { return {TPFSDP_PENDING}; }
  static Outcome error(tpfsdp_status status, int32_t rank, uint64_t sequence, std::string text) {
    return {status, rank, static_cast<int64_t>(sequence), std::move(text)};
  }
  static Outcome error(tpfsdp_status status, std::string text) { return {status, -1, -1, std::move(text)}; }
};

}  // namespace tpfsdp::host

#endif
