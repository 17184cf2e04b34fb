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

enum class Kind { kValues, kCastValues, kGradients };

ShardPlaces places(const ShardLayout &layout, int32_t rank, Kind kind) {
  ShardPlaces out;
  out.offsets.reserve(layout.params.size());
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamLayout &param = layout.params[i];
    if (kind == Kind::kGradients && param.grad_offset < 0) {
      out.offsets.push_back(-1);
      continue;
    }
    const tpfsdp_dtype dtype = kind == Kind::kCastValues ? param.full_dtype : param.dtype;
    out.offsets.push_back(append(out.size_bytes, dtype_bytes(dtype, layout.owned(i, rank).count())));
  }
  return out;
}

void check_granule(const ParamLayout &param, int64_t granule_elements, const char *what) {
  if (granule_elements % 8 * dtype_bits(param.dtype) % 8 != 0)
    fail(TPFSDP_ERR_UNSUPPORTED, what, " of ", granule_elements, " ", dtype_name(param.dtype),
         " elements are not whole bytes and cannot be cut");
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

ShardLayout::ShardLayout(const std::vector<ParamSpec> &specs, int32_t ranks, const Ownership &who)
    : world_size(ranks), ownership(who) {
  params.reserve(specs.size());
  for (const ParamSpec &spec : specs) {
    ParamLayout param;
    param.rows = spec.shape.front();
    param.dtype = spec.dtype;
    param.full_dtype = spec.full_dtype != 0 ? spec.full_dtype : spec.dtype;
    param.reduce_dtype = spec.reduce_dtype != 0 ? spec.reduce_dtype : spec.dtype;
    for (const tpfsdp_dtype dtype : {param.dtype, param.full_dtype, param.reduce_dtype})
      dtype_bytes(dtype, element_count(spec.shape));  // refuses what does not fit
    const bool is_empty = std::find(spec.shape.begin(), spec.shape.end(), 0) != spec.shape.end();
    param.row_elements = is_empty ? 0 : element_count(Shape(spec.shape.begin() + 1, spec.shape.end()));
    if (ownership.cuts_inside_rows()) {
      check_granule(param, 1, "granules");
    } else {
      check_granule(param, param.row_elements, "rows");
    }
    param.full_offset = append(full_bytes, param.full_bytes());
    param.grad_offset = spec.trainable ? append(grad_bytes, param.full_bytes()) : -1;
    param.sum_offset = spec.trainable ? append(sum_bytes, param.sum_bytes()) : -1;
    logical_bytes += param.full_bytes();
    is_cast = is_cast || (param.is_cast() && param.elements() > 0);
    params.push_back(param);
    if (gather_dtype == 0) gather_dtype = param.full_dtype;
    if (gather_dtype != param.full_dtype || dtype_bits(param.full_dtype) < 8) gather_dtype = TPFSDP_DTYPE_U8;
  }
  if (ownership.is_contiguous) cut_slices();
}

void ShardLayout::cut_slices() {
  int64_t total = 0;
  for (const ParamLayout &param : params) total += param.value_bytes();
  size_t at = 0;
  int64_t before = 0;  // bytes of parameters before `at`
  for (int32_t rank = 0; rank <= world_size; ++rank) {
    const int64_t share = total / world_size, rest = total % world_size;
    const int64_t end = rank * share + std::min<int64_t>(rank, rest);
    while (at < params.size() && before + params[at].value_bytes() <= end) before += params[at++].value_bytes();
    if (at == params.size()) {
      slice_ends_.push_back({at, 0});
      continue;
    }
    // To the nearest end of a granule; the last granule may be short.
    const ParamLayout &param = params[at];
    const int64_t granule =
        ownership.granule_rows == 0 ? 1 : std::min(ownership.granule_rows, param.rows) * param.row_elements;
    const int64_t granule_bytes = dtype_bytes(param.dtype, granule), into = end - before;
    const int64_t down = into / granule_bytes, up = std::min((down + 1) * granule_bytes, param.value_bytes());
    const bool goes_up = up - into < into - down * granule_bytes;
    slice_ends_.push_back({at, std::min((goes_up ? down + 1 : down) * granule, param.elements())});
  }
}

ElementRange ShardLayout::owned(size_t param, int32_t rank) const {
  const ParamLayout &at = params[param];
  if (!ownership.is_contiguous) {
    const RowRange rows = rows_of_rank(at.rows, world_size, rank);
    return {rows.begin * at.row_elements, rows.end * at.row_elements};
  }
  const auto reached = [&](int32_t slice) {
    const SliceEnd &end = slice_ends_[static_cast<size_t>(slice)];
    return param < end.param ? at.elements() : param > end.param ? 0 : end.element;
  };
  const ElementRange range{reached(rank), reached(rank + 1)};
  return range.count() > 0 ? range : ElementRange{at.elements(), at.elements()};
}

RowRange ShardLayout::owned_rows(size_t param, int32_t rank) const {
  const ParamLayout &at = params[param];
  if (!ownership.is_contiguous) return rows_of_rank(at.rows, world_size, rank);
  if (at.row_elements == 0) return {rank == 0 ? 0 : at.rows, at.rows};
  const ElementRange elements = owned(param, rank);
  return {elements.begin / at.row_elements, elements.end / at.row_elements};
}

ShardPlaces ShardLayout::shard_places(int32_t rank) const { return places(*this, rank, Kind::kValues); }

ShardPlaces ShardLayout::cast_shard_places(int32_t rank) const { return places(*this, rank, Kind::kCastValues); }

ShardPlaces ShardLayout::grad_shard_places(int32_t rank) const { return places(*this, rank, Kind::kGradients); }

}  // namespace tpfsdp
