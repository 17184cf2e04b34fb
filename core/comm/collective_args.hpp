// SPDX-License-Identifier: Apache-2.0
// What a collective on the host's own memory may be given, and what follows from it. Pure functions; each refuses by
// name, with both values.
#pragma once

#include "comm/group.hpp"
#include "tensor/shape.hpp"

namespace tpfsdp {

struct GatherPlan {
  tpfsdp_dtype dtype = 0;  // what moves: the views', or bytes for types smaller than one
  int64_t element_count = 0;
  uint64_t counts_hash = 0;
  std::vector<tpfsdp_backend_piece> pieces;
};

GatherPlan plan_all_gather(const Group &group, const tpfsdp_view &input, const tpfsdp_view &output,
                           const std::vector<int64_t> &counts);
GatherPlan plan_broadcast(const Group &group, const tpfsdp_view &data, int32_t source);

// Elements of this rank's part.
int64_t check_reduce_scatter(const Group &group, const tpfsdp_view &input, const tpfsdp_view &output,
                             tpfsdp_reduce_op op);
// Elements.
int64_t check_all_reduce(const Group &group, const tpfsdp_view &input, const tpfsdp_view &output, tpfsdp_reduce_op op);

// What an all-reduce brings to this rank: small ones come whole from every peer; of large ones each rank reduces its
// even share and gets the others'. A transport may cut the shares otherwise; the sum over all ranks is the same.
int64_t all_reduce_wire_bytes(const Group &group, const tpfsdp_view &input);

}  // namespace tpfsdp
