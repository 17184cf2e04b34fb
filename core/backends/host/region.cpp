// SPDX-License-Identifier: Apache-2.0
#include "region.hpp"

#include <string>

#include "invariant.hpp"
#include "progress.hpp"
#include "record.hpp"
#include "release.hpp"

namespace tpfsdp::host {

namespace {

/// Sequences up to the result are read by no peer any more.
uint64_t passed_by_all(const Segment &segment, int32_t rank, int32_t world_size) {
  return done_by_all(Layout(segment.pages(), world_size), rank, world_size);
}

/// The last sequence at which peers may read the region.
uint64_t shown_at(const Region &region) { return region.common ? region.common->agreed : region.memory.exposed; }

/// False, and the error sticks to the comm, if a peer may still read the region.
bool check_unread([[maybe_unused]] const Region &region, [[maybe_unused]] const char *invariant) noexcept {
#if !defined(NDEBUG)
  const uint64_t passed =
      region.common ? region.common->released_by_all() : passed_by_all(*region.segment, region.rank, region.world_size);
  if (shown_at(region) <= passed) return true;
  try {
    static_cast<void>(violated(*region.alarm, shown_at(region), invariant));
  } catch (...) {  // no memory for a text
  }
  return false;
#else
  return true;
#endif
}

}  // namespace

Outcome create_region(Comm &comm, int64_t size_bytes, void **out_data, Region **out_region) {
  if (size_bytes < 0)
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "a region of " + std::to_string(size_bytes) + " bytes");
  comm.segment->sweep(comm.rank, passed_by_all(*comm.segment, comm.rank, comm.world_size));
  auto region = std::make_unique<Region>(Region{comm.segment, comm.alarm, comm.rank, comm.world_size, {}, nullptr});
  Outcome end = comm.segment->allocate(static_cast<size_t>(size_bytes), &region->memory);
  if (!end.ok()) return end;
  region->memory.owner = comm.rank;
  *out_data = region->memory.data;
  *out_region = region.release();
  return {};
}

Outcome protect(const Region &region, bool read_only) {
  if (!read_only && !check_unread(region, "SOURCE_STABLE"))
    return Outcome::error(TPFSDP_ERR_INTERNAL, region.rank, shown_at(region),
                          "invariant SOURCE_STABLE does not hold on rank " + std::to_string(region.rank) +
                              ": a region was to be written while peers may read it");
  if (!region.common) return region.segment->protect(region.memory, read_only);
  const Common &common = *region.common;
  // Threads have one address for all, and another rank may be in its window.
  if (common.readable() == common.data()) return {};
  Memory data = common.mapping.memory;
  data.bytes -= static_cast<size_t>(common.data() - data.data);
  data.data = common.data();
  return region.segment->protect(data, read_only);
}

void destroy(Region *region) noexcept {
  const std::unique_ptr<Region> owned(region);
  if (region->common) return leave(*region->common);
  const uint64_t passed = passed_by_all(*region->segment, region->rank, region->world_size);
#if defined(TPFSDP_MUTANT_REGION_FREED_ON_ABORT)
  if (Layout(region->segment->pages(), region->world_size).front().abort.load() != 0) return drop(*region);
#endif
  if (region->memory.exposed <= passed)
    drop(*region);
  else
    region->segment->keep(region->memory);
  region->segment->sweep(region->rank, passed);
}

void drop(const Region &region) noexcept {
  check_unread(region, "NOT_ON_REGION_FREE");
  region.segment->free(region.memory);
}

const std::shared_ptr<Common> &common_of(const tpfsdp_backend_op &op) {
  static const std::shared_ptr<Common> none;
  return is_in_common(op.kind) ? reinterpret_cast<const Region *>(op.input_region)->common : none;
}

uint64_t common_number(const tpfsdp_backend_op &op) {
  const std::shared_ptr<Common> &common = common_of(op);
  return common ? common->number : 0;
}

Memory *memory_of(tpfsdp_backend_region *region, const void *data) {
  if (region == nullptr) return nullptr;
  Memory &memory = reinterpret_cast<Region *>(region)->memory;
  const auto *byte = static_cast<const std::byte *>(data);
  return byte >= memory.data && byte <= memory.data + memory.bytes ? &memory : nullptr;
}

}  // namespace tpfsdp::host
