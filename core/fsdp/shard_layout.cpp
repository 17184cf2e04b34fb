// SPDX-License-Identifier: Apache-2.0
#include "fsdp/shard_layout.hpp"

#include "memory/buffer.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

int64_t append(int64_t &end, int64_t size_bytes) {
  const int64_t offset = align_up(end, alignment_for(size_bytes));
  if (__builtin_add_overflow(offset, size_bytes, &end))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the parameters of a unit have more bytes than fit in int64_t");
  return offset;
}

ShardPlaces places(const ShardLayout &layout, int32_t rank, bool of_gradients) {
  ShardPlaces out;
  out.offsets.reserve(layout.params.size());
  for (const ParamLayout &param : layout.params) {
    if (of_gradients && param.grad_offset < 0) {
      out.offsets.push_back(-1);
      continue;
    }
    out.offsets.push_back(
        append(out.size_bytes, rows_of_rank(param.rows, layout.world_size, rank).count() * param.row_bytes));
  }
  return out;
}

}  // namespace

RowRange rows_of_rank(int64_t rows, int32_t world_size, int32_t rank) {
  const int64_t chunk = rows / world_size + (rows % world_size != 0 ? 1 : 0);
#if defined(TPFSDP_MUTANT_DROP_TAIL_ROWS)
  rows -= rows % world_size;
#endif
  const auto start = [&](int64_t of) {
    return chunk > 0 && of >= rows / chunk + 1 ? rows : std::min(of * chunk, rows);
  };
  return {start(rank), start(rank + 1)};
}

ShardLayout::ShardLayout(const std::vector<ParamSpec> &specs, int32_t ranks) : world_size(ranks) {
  params.reserve(specs.size());
  for (const ParamSpec &spec : specs) {
    dtype_bytes(spec.dtype, element_count(spec.shape));  // refuses what does not fit
    ParamLayout param;
    param.rows = spec.shape.front();
    const bool is_empty = std::find(spec.shape.begin(), spec.shape.end(), 0) != spec.shape.end();
    param.row_elements = is_empty ? 0 : element_count(Shape(spec.shape.begin() + 1, spec.shape.end()));
    if (param.row_elements % 8 * dtype_bits(spec.dtype) % 8 != 0)
      fail(TPFSDP_ERR_UNSUPPORTED, "rows of ", param.row_elements, " ", dtype_name(spec.dtype),
           " elements are not whole bytes and cannot be cut");
    param.row_bytes = dtype_bytes(spec.dtype, param.row_elements);
    param.full_offset = append(full_bytes, param.full_bytes());
    param.grad_offset = spec.trainable ? append(grad_bytes, param.full_bytes()) : -1;
    logical_bytes += param.full_bytes();
    params.push_back(param);
    if (gather_dtype == 0) gather_dtype = spec.dtype;
    if (gather_dtype != spec.dtype || dtype_bits(spec.dtype) < 8) gather_dtype = TPFSDP_DTYPE_U8;
  }
}

ShardPlaces ShardLayout::shard_places(int32_t rank) const { return places(*this, rank, false); }

ShardPlaces ShardLayout::grad_shard_places(int32_t rank) const { return places(*this, rank, true); }

}  // namespace tpfsdp
