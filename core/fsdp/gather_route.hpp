// SPDX-License-Identifier: Apache-2.0
// Where a gather reads from: the static list of its pieces and the group that runs it. Over shards every rank of the
// unit's group holds rows of each parameter; over parts each of a few ranks holds one slice of the full buffer.
#pragma once

#include "comm/group.hpp"
#include "fsdp/shard_layout.hpp"

#include <vector>

namespace tpfsdp {

struct GatherRoute {
  Ref<Group> group;
  tpfsdp_dtype dtype = 0;
  std::vector<tpfsdp_backend_piece> pieces;
  struct Target {
    size_t param = 0;
    int64_t offset = 0;  // bytes into its full values
  };
  std::vector<Target> targets;  // of each piece
  uint64_t counts_hash = 0;
  int64_t elements = 0;
  int64_t wire_bytes = 0;

  // Points the pieces at full values, which may be null.
  template <class Params>
  void aim(const Params &params) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::byte *full = params[targets[i].param].full;
      pieces[i].target = full ? full + targets[i].offset : nullptr;
    }
  }
};

GatherRoute route_over_shards(const Ref<Group> &group, const ShardLayout &layout);

// Of the full buffer, rank r of `rank_count` keeps [r * part_bytes, (r + 1) * part_bytes), cut at its end.
int64_t part_bytes(const ShardLayout &layout, int32_t rank_count);
GatherRoute route_over_parts(const Ref<Group> &group, const ShardLayout &layout);

// What of a part lies in which parameter.
struct PartPiece {
  size_t param = 0;
  int64_t param_offset = 0;  // bytes
  int64_t part_offset = 0;
  int64_t size_bytes = 0;
};
std::vector<PartPiece> pieces_of_part(const ShardLayout &layout, int32_t rank_count, int32_t rank);

}  // namespace tpfsdp
