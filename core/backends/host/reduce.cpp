// SPDX-License-Identifier: Apache-2.0
// Reductions: always over ranks 0 to the last, so that every rank and every run gets the same bits.
#include <algorithm>
#include <string>

#include "run.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

/// Elements of every rank's input that become one rank's.
struct Stretch {
  int64_t piece;  ///< its number, -1: not one of several
  int64_t first;
  int64_t count;
  void *target;
  bool accumulate;
};

/// target = or += the reduction.
Outcome reduce(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, const Stretch &stretch, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  const auto bytes_of = comm.services.dtype_bytes;
  // A multiple of 64 elements, so that no chunk starts inside a byte.
  const int64_t chunk = std::max<int64_t>(64, CHUNK_BYTES / std::max<int64_t>(1, bytes_of(op.dtype, 64)) * 64);
  for (int64_t at = 0; at < stretch.count; at += chunk) {
    const int64_t count = std::min(chunk, stretch.count - at);
    for (int32_t rank = 0; rank < comm.world_size; ++rank) {
      const Part part{rank, bytes_of(op.dtype, stretch.first + at), bytes_of(op.dtype, count)};
      const std::byte *source = source_of(comm, sequence, part);
      if (source == nullptr) return outside(comm, call, sequence, part, stretch.piece);
      const auto slot = static_cast<size_t>(rank);
#if defined(TPFSDP_MUTANT_RANK_ORDER_REVERSED)
      comm.inputs[comm.inputs.size() - 1 - slot] = source;
#else
      comm.inputs[slot] = source;
#endif
    }
    const tpfsdp_status status =
        comm.services.reduce(op.op, comm.inputs.data(), comm.world_size, op.dtype, op.reduce_dtype,
                             static_cast<std::byte *>(stretch.target) + bytes_of(op.output_dtype, at), op.output_dtype,
                             count, op.divisor, stretch.accumulate ? 1 : 0);
    if (status < 0)
      return Outcome::error(status, comm.rank, sequence,
                            std::string("reducing ") + name_of_dtype(op.dtype) + " in " +
                                name_of_dtype(op.reduce_dtype) + " to " + name_of_dtype(op.output_dtype) +
                                " failed with " + name_of_status(status) + " in " + describe(comm, call, sequence));
    if (moving != nullptr) moving->chunk();
  }
  return {};
}

}  // namespace

Outcome reduce_scatter(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  for (int64_t i = 0; i < op.piece_count; ++i) {
    const tpfsdp_backend_piece &piece = op.pieces[i];
    const Stretch stretch{i, piece.source_offset, piece.count, piece.target, piece.accumulate != 0};
    Outcome end = reduce(comm, call, sequence, stretch, moving);
    if (!end.ok()) return end;
  }
  return {};
}

Outcome all_reduce(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  std::pair<int64_t, int64_t> slice{0, comm.operation(sequence).elements};
  if (comm.operation(sequence).phase == 1) slice = slice_of(comm, slice.second, comm.rank);
  std::byte *target = static_cast<std::byte *>(op.output) + comm.services.dtype_bytes(op.output_dtype, slice.first);
  return reduce(comm, call, sequence, {-1, slice.first, slice.second - slice.first, target, false}, moving);
}

}  // namespace tpfsdp::host
