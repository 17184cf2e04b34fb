// SPDX-License-Identifier: Apache-2.0
#include "region.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace tpfsdp::host {

namespace {

/// Sequences up to the result are read by no peer any more.
uint64_t passed_by_all(const Segment &segment, int32_t rank, int32_t world_size) {
  const Layout layout(segment.pages(), world_size);
  uint64_t passed = std::numeric_limits<uint64_t>::max();
  for (int32_t peer = 0; peer < world_size; ++peer)
    if (peer != rank) passed = std::min(passed, layout.lane(peer).done.load(std::memory_order_acquire));
  return passed;
}

}  // namespace

Outcome create_region(Comm &comm, int64_t size_bytes, void **out_data, Region **out_region) {
  if (size_bytes < 0)
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "a region of " + std::to_string(size_bytes) + " bytes");
  comm.segment->sweep(comm.rank, passed_by_all(*comm.segment, comm.rank, comm.world_size));
  auto region = std::make_unique<Region>(Region{comm.segment, comm.rank, comm.world_size, {}});
  Outcome end = comm.segment->allocate(static_cast<size_t>(size_bytes), &region->memory);
  if (!end.ok()) return end;
  region->memory.owner = comm.rank;
  *out_data = region->memory.data;
  *out_region = region.release();
  return {};
}

Outcome protect(const Region &region, bool read_only) { return region.segment->protect(region.memory, read_only); }

void destroy(Region *region) noexcept {
  const std::unique_ptr<Region> owned(region);
  const uint64_t passed = passed_by_all(*region->segment, region->rank, region->world_size);
#if defined(TPFSDP_MUTANT_REGION_FREED_ON_ABORT)
  if (Layout(region->segment->pages(), region->world_size).front().abort.load() != 0)
    return region->segment->free(region->memory);
#endif
  if (region->memory.exposed <= passed) region->segment->free(region->memory);
  else region->segment->keep(region->memory);
  region->segment->sweep(region->rank, passed);
}

Memory *memory_of(tpfsdp_backend_region *region, const void *data) {
  if (region == nullptr) return nullptr;
  Memory &memory = reinterpret_cast<Region *>(region)->memory;
  const auto *byte = static_cast<const std::byte *>(data);
  return byte >= memory.data && byte < memory.data + memory.bytes ? &memory : nullptr;
}

}  // namespace tpfsdp::host
