// SPDX-License-Identifier: Apache-2.0
// Who owns what, and where everything lies. A pure function of shapes and world size, the same on every rank.
//
// ROWS: of S rows over W ranks, rank r owns [r * c, min((r + 1) * c, S)) with c = ceil(S / W), so shards may be uneven
// and empty. CONTIGUOUS: all parameters in a row are one sequence of bytes, of which each rank owns a W-th, its ends at
// the nearest granules: elements, rows, or blocks of rows. PARAM_MAJOR: the full buffer holds whole tensors back to
// back; a rank's rows lie in their place, so a gather is a list of copies and nothing has to be rearranged. Tensors,
// shards and gradients start at alignment_for() bounds.
#pragma once

#include "tensor/dtype.hpp"
#include "tensor/shape.hpp"

namespace tpfsdp {

struct ParamSpec {
  Shape shape;             // at least one dimension
  tpfsdp_dtype dtype = 0;  // of shards and their gradients
  bool trainable = true;
  // 0: the same.
  tpfsdp_dtype full_dtype = 0;    // of full values, and of gradients before their reduction
  tpfsdp_dtype reduce_dtype = 0;  // of the reduction, and of gradients that add up before it
};

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

struct Ownership {
  bool is_contiguous = false;
  int64_t granule_rows = 1;  // of CONTIGUOUS; 0: single elements

  bool cuts_inside_rows() const { return is_contiguous && granule_rows == 0; }
};

// Of a parameter, in row-major order; an empty one is at its end.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

RowRange rows_of_rank(int64_t rows, int32_t world_size, int32_t rank);

struct ParamLayout {
  int64_t rows = 0;
  int64_t row_elements = 0;
  tpfsdp_dtype dtype = 0;
  tpfsdp_dtype full_dtype = 0;
  tpfsdp_dtype reduce_dtype = 0;
  int64_t full_offset = 0;  // bytes in the full buffer
  int64_t grad_offset = 0;  // bytes in the gradient buffer; -1: frozen
  int64_t sum_offset = 0;   // bytes in the buffer of gradients that add up; -1: frozen
  int64_t elements() const { return rows * row_elements; }
  int64_t value_bytes() const { return dtype_bytes(dtype, elements()); }  // as the host gave it
  int64_t full_bytes() const { return dtype_bytes(full_dtype, elements()); }
  int64_t sum_bytes() const { return dtype_bytes(reduce_dtype, elements()); }
  bool is_cast() const { return dtype != full_dtype; }
};

struct ShardPlaces {
  std::vector<int64_t> offsets;  // bytes in that rank's shard buffer, per parameter
  int64_t size_bytes = 0;
};

struct ShardLayout {
  std::vector<ParamLayout> params;
  int32_t world_size = 1;
  Ownership ownership;
  int64_t full_bytes = 0;         // alignment included
  int64_t grad_bytes = 0;         // of trainable parameters, alignment included
  int64_t sum_bytes = 0;          // the same, in the dtypes of their reductions
  int64_t logical_bytes = 0;      // without alignment
  tpfsdp_dtype gather_dtype = 0;  // the one of all full values, or u8 for bytes of several
  bool is_cast = false;           // of some with elements, full values have another dtype than shards

  // Throws UNSUPPORTED for granules that are not whole bytes, INVALID_ARGUMENT for sizes that do not fit in 64 bits.
  ShardLayout(const std::vector<ParamSpec> &specs, int32_t world_size, const Ownership &ownership = {});

  ElementRange owned(size_t param, int32_t rank) const;
  // The same in rows, where ranks own whole ones; without elements all rows are rank 0's with CONTIGUOUS.
  RowRange owned_rows(size_t param, int32_t rank) const;
  ShardPlaces shard_places(int32_t rank) const;
  ShardPlaces cast_shard_places(int32_t rank) const;  // of shards in the dtype of full values
  ShardPlaces grad_shard_places(int32_t rank) const;  // offsets -1 for frozen parameters

 private:
  // Where a rank's slice begins: so far into a parameter, after all of those before it.
  struct SliceEnd {
    size_t param = 0;
    int64_t element = 0;
  };
  void cut_slices();

  std::vector<SliceEnd> slice_ends_;  // of CONTIGUOUS, world_size + 1
};

}  // namespace tpfsdp
