// SPDX-License-Identifier: Apache-2.0
// Collectives on memory that peers cannot read: processes see each other's regions, not the caller's own memory. Such
// data goes through two small regions in turns, one window of it a sequence, so that what it costs is bounded however
// much there is.
#ifndef TPFSDP_BACKENDS_HOST_STAGING_HPP
#define TPFSDP_BACKENDS_HOST_STAGING_HPP

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <tpfsdp/backend.h>

#include "outcome.hpp"

namespace tpfsdp::host {

struct Comm;
struct Region;

struct Staging {
  struct DestroyRegion {
    void operator()(Region *region) const noexcept;
  };
  struct Slot {
    std::unique_ptr<Region, DestroyRegion> region;  ///< made when it is first needed
    uint64_t used = 0;                              ///< last sequence that goes through it
    std::vector<tpfsdp_backend_piece> pieces;       ///< of that
  };
  std::array<Slot, 2> slots;
  size_t next = 0;
  int64_t window = 0;      ///< of the operation under way that comes next, or is posted
  uint64_t half_done = 0;  ///< its sequence, if it is posted and is not the last
};

bool is_staged(const Comm &comm, const tpfsdp_backend_op &op);
/// Posts all windows of op; those before the last are complete then. As submit.
Outcome submit_staged(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
                      uint64_t *out_sequence);

}  // namespace tpfsdp::host

#endif
