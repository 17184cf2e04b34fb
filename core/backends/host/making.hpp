// SPDX-License-Identifier: Apache-2.0
// Making a common region is a collective of two sequences: rank 0 allocates and shows the memory in the first, which
// the others map while they complete it; in the second all say that they have. A rank that cannot fails in place of its
// next sequence, as always, and then nobody has the region.
#ifndef TPFSDP_BACKENDS_HOST_MAKING_HPP
#define TPFSDP_BACKENDS_HOST_MAKING_HPP

#include <cstdint>
#include <memory>

#include <tpfsdp/backend.h>

#include "outcome.hpp"

namespace tpfsdp::host {

struct Comm;
struct Common;
struct Region;

/// The one that is being made.
struct Making {
  struct DeleteRegion {
    void operator()(Region *region) const noexcept;
  };
  std::shared_ptr<Common> common;                ///< null: none
  std::unique_ptr<Region, DeleteRegion> region;  ///< what the caller gets, so that nothing can fail in the end
  int64_t size_bytes = 0;
  uint64_t offered = 0;  ///< its first sequence
  uint64_t mapped = 0;   ///< its second, 0: not posted
};

/// Asked again after PENDING or CANCELLED for the same size it goes on from there.
Outcome make_common(Comm &comm, tpfsdp_backend_call *call, int64_t size_bytes, bool may_wait, Region **out_region);
/// Completing the first sequence: maps what rank 0 shows.
Outcome map_offered(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);
/// There will be no such region.
void abandon_making(Comm &comm) noexcept;

}  // namespace tpfsdp::host

#endif
