// SPDX-License-Identifier: Apache-2.0
// What differs between ranks that are threads and ranks that are processes. The engine knows no more of either.
#ifndef TPFSDP_BACKENDS_HOST_PROVIDER_HPP
#define TPFSDP_BACKENDS_HOST_PROVIDER_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <tpfsdp/backend.h>

#include "layout.hpp"
#include "outcome.hpp"

namespace tpfsdp::host {

/// A region's memory as its owner sees it.
struct Memory {
  std::byte *data = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;       ///< peers find it by this and an offset; 0: by address
  uint64_t exposed = 0;  ///< last sequence at which peers may read it
  int32_t owner = 0;
};

/// The memory of one comm, owned by all who share it: what a peer may read is freed by the last of them.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual std::byte *pages() const = 0;
  virtual Outcome allocate(size_t bytes, Memory *out) = 0;
  virtual Outcome protect(const Memory &memory, bool read_only) = 0;
  /// Frees memory that no peer can read any more.
  virtual void free(const Memory &memory) noexcept = 0;
  /// Keeps memory that a peer may still read; swept once all peers have passed its exposure, at the latest with the
  /// segment itself.
  virtual void keep(const Memory &memory) noexcept = 0;
  virtual void sweep(int32_t owner, uint64_t passed) noexcept = 0;
  /// What a record's place is in this rank's eyes.
  virtual std::pair<uint64_t, uint64_t> place_of(const Memory *memory, const void *data) const = 0;
  virtual const std::byte *find(int32_t rank, uint64_t region, uint64_t place) const = 0;
  /// True if the rank behind a lane that says `life` can still act. Asked on the slow path only.
  virtual bool alive(const Lane &lane, Life life) const = 0;
};

/// How ranks meet: what a new comm is, and the call whose store they use.
struct Meeting {
  const tpfsdp_backend_services &services;
  tpfsdp_backend_call *call;
  const tpfsdp_backend_comm_options &options;
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
  /// Rank 0 makes the pages, the others find them.
  virtual Outcome meet(const Meeting &meeting, std::shared_ptr<Segment> *out) const = 0;
  /// All have met: what only served to find each other goes.
  virtual void met(const Meeting &meeting, const Segment &segment) const noexcept = 0;
};

const Provider &threads_provider();

}  // namespace tpfsdp::host

#endif
