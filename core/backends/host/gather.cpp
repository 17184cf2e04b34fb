// SPDX-License-Identifier: Apache-2.0
// Copies: all-gather by pieces, broadcast, and the second half of an all-reduce.
#include <algorithm>

#include "invariant.hpp"
#include "progress.hpp"
#include "run.hpp"

namespace tpfsdp::host {

namespace {

void copy(const Comm &comm, std::byte *target, const std::byte *source, int64_t bytes, Moving *moving) {
  if (target == source) return;
  for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
    comm.services.copy(target + at, source + at, std::min(CHUNK_BYTES, bytes - at));
    if (moving != nullptr) moving->chunk();
  }
}

}  // namespace

Outcome gather(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  const auto bytes_of = comm.services.dtype_bytes;
  for (int64_t i = 0; i < op.piece_count; ++i) {
    const tpfsdp_backend_piece &piece = op.pieces[i];
    if (piece.count == 0) continue;
    const int64_t begin = bytes_of(op.dtype, piece.source_offset);
    const int64_t bytes = bytes_of(op.dtype, piece.count);
    // The own part may lie in place already, also if it travels in the record.
    if (piece.rank == comm.rank && piece.target == static_cast<const std::byte *>(op.input) + begin) continue;
    const Part part{piece.rank, begin, bytes};
    const std::byte *source = source_of(comm, sequence, part);
    if (source == nullptr) return outside(comm, call, sequence, part, i);
    copy(comm, static_cast<std::byte *>(piece.target), source, bytes, moving);
  }
  return {};
}

Outcome broadcast(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  const int64_t elements = comm.operation(sequence).elements;
  const bool in_place = op.source == comm.rank && op.output == op.input;
  if (op.output == nullptr || elements == 0 || in_place) return {};
  const Part part{op.source, 0, comm.services.dtype_bytes(op.dtype, elements)};
  const std::byte *source = source_of(comm, sequence, part);
  if (source == nullptr) return outside(comm, call, sequence, part, -1);
  copy(comm, static_cast<std::byte *>(op.output), source, part.bytes, moving);
  return {};
}

Outcome gather_slices(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  // The output may be the input, which peers read in the first sequence.
  invariant(
      comm, [&] { return done_by_all(comm.layout, comm.rank, comm.world_size) >= sequence - 1; }, "SOURCE_STABLE");
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const auto [begin, end] = slice_of(comm, comm.operation(sequence).elements, rank);
    if (begin == end) continue;
    const int64_t offset = comm.services.dtype_bytes(op.output_dtype, begin);
    const Part part{rank, offset, comm.services.dtype_bytes(op.output_dtype, end - begin)};
    const std::byte *source = source_of(comm, sequence, part);
    if (source == nullptr) return outside(comm, call, sequence, part, -1);
    copy(comm, static_cast<std::byte *>(op.output) + offset, source, part.bytes, moving);
  }
  return {};
}

}  // namespace tpfsdp::host
