// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gather_route.hpp"

#include "base/hash.hpp"
#include "memory/buffer.hpp"
#include "tensor/dtype.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

// Cuts are at bounds that no element of any dtype crosses.
constexpr int64_t kPartGranule = 64;

// Counts are in elements of the gather's dtype, bytes for mixed dtypes.
class Builder {
 public:
  Builder(const Ref<Group> &group, const ShardLayout &layout) : unit_bytes_(dtype_bytes(layout.gather_dtype, 1)) {
    route.group = group;
    route.dtype = layout.gather_dtype;
  }
  void add(int32_t source, int64_t source_offset, GatherRoute::Target target, int64_t size_bytes) {
    const int64_t count = size_bytes / unit_bytes_;
    counts_.push_back(static_cast<uint64_t>(count));
    route.elements += count;
    if (source != route.group->rank()) route.wire_bytes += size_bytes;
    route.pieces.push_back({source, 0, source_offset / unit_bytes_, count, nullptr});
    route.targets.push_back(target);
  }
  GatherRoute take() {
    route.counts_hash = hash_bytes(counts_.data(), counts_.size() * sizeof(uint64_t));
    return std::move(route);
  }

  GatherRoute route;

 private:
  int64_t unit_bytes_;
  std::vector<uint64_t> counts_;
};

}  // namespace

GatherRoute route_over_shards(const Ref<Group> &group, const ShardLayout &layout) {
  Builder builder(group, layout);
  for (int32_t rank = 0; rank < group->size(); ++rank) {
    const ShardPlaces places = layout.cast_shard_places(rank);
    for (size_t i = 0; i < layout.params.size(); ++i) {
      const tpfsdp_dtype dtype = layout.params[i].full_dtype;
      const ElementRange owned = layout.owned(i, rank);
      builder.add(rank, places.offsets[i], {i, dtype_bytes(dtype, owned.begin)}, dtype_bytes(dtype, owned.count()));
    }
  }
  return builder.take();
}

int64_t part_bytes(const ShardLayout &layout, int32_t rank_count) {
  return align_up((layout.full_bytes + rank_count - 1) / rank_count, kPartGranule);
}

std::vector<PartPiece> pieces_of_part(const ShardLayout &layout, int32_t rank_count, int32_t rank) {
  const int64_t size = part_bytes(layout, rank_count), begin = rank * size, end = begin + size;
  std::vector<PartPiece> pieces;
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamLayout &at = layout.params[i];
    const int64_t from = std::max(begin, at.full_offset), to = std::min(end, at.full_offset + at.full_bytes());
    if (from < to) pieces.push_back({i, from - at.full_offset, from - begin, to - from});
  }
  return pieces;
}

GatherRoute route_over_parts(const Ref<Group> &group, const ShardLayout &layout) {
  Builder builder(group, layout);
  for (int32_t rank = 0; rank < group->size(); ++rank) {
    for (const PartPiece &piece : pieces_of_part(layout, group->size(), rank))
      builder.add(rank, piece.part_offset, {piece.param, piece.param_offset}, piece.size_bytes);
  }
  return builder.take();
}

}  // namespace tpfsdp
