// SPDX-License-Identifier: Apache-2.0
// What differs between ranks that are threads and ranks that are processes. The engine knows no more of either.
#ifndef TPFSDP_BACKENDS_HOST_PROVIDER_HPP
#define TPFSDP_BACKENDS_HOST_PROVIDER_HPP

#include <cstdint>
#include <memory>

#include <tpfsdp/backend.h>

#include "outcome.hpp"
#include "segment.hpp"

namespace tpfsdp::host {

/// How ranks meet: what a new comm is, and the call whose store they use.
struct Meeting {
  const tpfsdp_backend_services &services;
  tpfsdp_backend_call *call;
  const tpfsdp_backend_comm_options &options;
  int64_t began_ns;
  int64_t deadline_ns;
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual const char *name() const = 0;
  virtual uint64_t capabilities() const = 0;
  virtual int32_t probe(char *reason, int64_t reason_bytes) const = 0;
  /// A futex of one process is cheaper than one of several.
  virtual bool private_futex() const = 0;
  /// Peers can read any memory of this rank; else only that of regions, and the engine copies the rest into one.
  virtual bool reads_caller_memory() const = 0;
  /// Rank 0 makes the pages, the others find them.
  virtual Outcome meet(const Meeting &meeting, std::shared_ptr<Segment> *out) const = 0;
  /// All have met: what only served to find each other goes.
  virtual void met(const Meeting &meeting, const Segment &segment) const noexcept = 0;
};

const Provider &threads_provider();
const Provider &shm_provider();

}  // namespace tpfsdp::host

#endif
