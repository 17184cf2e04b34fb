// SPDX-License-Identifier: Apache-2.0
// Who owns which rows, and where everything lies. A pure function of shapes and world size, the same on every rank.
//
// ROWS: of S rows over W ranks, rank r owns [r * c, min((r + 1) * c, S)) with c = ceil(S / W), so shards may be uneven
// and empty. PARAM_MAJOR: the full buffer holds whole tensors back to back; a rank's rows lie in their place, so a
// gather is a list of copies and nothing has to be rearranged. Tensors, shards and gradients start at alignment_for()
// bounds.
#pragma once

#include "tensor/shape.hpp"

namespace tpfsdp {

struct ParamSpec {
  Shape shape;  // at least one dimension
  tpfsdp_dtype dtype = 0;
  bool trainable = true;
};

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

RowRange rows_of_rank(int64_t rows, int32_t world_size, int32_t rank);

struct ParamLayout {
  int64_t rows = 0;
  int64_t row_elements = 0;
  int64_t row_bytes = 0;
  int64_t full_offset = 0;  // bytes in the full buffer
  int64_t grad_offset = 0;  // bytes in the gradient buffer; -1: frozen
  int64_t full_bytes() const { return rows * row_bytes; }
};

struct ShardPlaces {
  std::vector<int64_t> offsets;  // bytes in that rank's shard buffer, per parameter
  int64_t size_bytes = 0;
};

struct ShardLayout {
  std::vector<ParamLayout> params;
  int32_t world_size = 1;
  int64_t full_bytes = 0;         // alignment included
  int64_t grad_bytes = 0;         // of trainable parameters, alignment included
  int64_t logical_bytes = 0;      // without alignment
  tpfsdp_dtype gather_dtype = 0;  // the one of all parameters, or u8 for bytes of several

  // Throws UNSUPPORTED for rows that are not whole bytes, INVALID_ARGUMENT for sizes that do not fit in 64 bits.
  ShardLayout(const std::vector<ParamSpec> &specs, int32_t world_size);

  ShardPlaces shard_places(int32_t rank) const;
  ShardPlaces grad_shard_places(int32_t rank) const;  // offsets -1 for frozen parameters
};

}  // namespace tpfsdp
