// SPDX-License-Identifier: Apache-2.0
// Memory that peers may read in place. It is freed when none of them can read it any more, also after abort: memory
// whose readers are not known to be done goes to the segment, which the last rank frees.
#ifndef TPFSDP_BACKENDS_HOST_REGION_HPP
#define TPFSDP_BACKENDS_HOST_REGION_HPP

#include <cstdint>
#include <memory>

#include "comm.hpp"
#include "common.hpp"

namespace tpfsdp::host {

/// Outlives its comm, if the owner wants so.
struct Region {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Alarm> alarm;
  int32_t rank;
  int32_t world_size;
  Memory memory;                   ///< this rank's own, or
  std::shared_ptr<Common> common;  ///< every rank's
};

Outcome create_region(Comm &comm, int64_t size_bytes, void **out_data, Region **out_region);
/// Writable: the owner is about to write, so that nobody may be reading.
Outcome protect(const Region &region, bool read_only);
void destroy(Region *region) noexcept;
/// Frees the memory now: every peer has passed its exposure.
void drop(const Region &region) noexcept;
/// What an all-gather in memory of all ranks uses; null: the operation is none.
const std::shared_ptr<Common> &common_of(const tpfsdp_backend_op &op);
/// By which all ranks call it, 0: none.
uint64_t common_number(const tpfsdp_backend_op &op);
/// The region's memory if data lies in it, else null: the caller's own.
Memory *memory_of(tpfsdp_backend_region *region, const void *data);

}  // namespace tpfsdp::host

#endif
