// SPDX-License-Identifier: Apache-2.0
// What it takes to raise a sticky error on a comm. Regions hold it as well as the comm, for they may outlive it.
#ifndef TPFSDP_BACKENDS_HOST_ALARM_HPP
#define TPFSDP_BACKENDS_HOST_ALARM_HPP

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "layout.hpp"
#include "words.hpp"

namespace tpfsdp::host {

/// One rank's. The pages it points to are kept by whoever holds it.
struct Alarm {
  const Layout layout;
  const int32_t rank;
  const int32_t world_size;
  const std::string name;  ///< of the comm
  Words words;
  std::mutex mutex{};                   ///< comm_abort comes from any thread
  bool raised = false;                  ///< this rank has written its abort text
  std::atomic<uint64_t> violations{0};  ///< of invariants, for tests
};

}  // namespace tpfsdp::host

#endif
