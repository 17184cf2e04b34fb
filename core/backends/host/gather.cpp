// SPDX-License-Identifier: Apache-2.0
// Copies: all-gather by pieces, broadcast, and the second half of an all-reduce.
#include <algorithm>
#include <string>

#include "run.hpp"
#include "text.hpp"

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

Outcome gather(Comm &comm, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  const auto bytes_of = comm.services.dtype_bytes;
  for (int64_t i = 0; i < op.piece_count; ++i) {
    const tpfsdp_backend_piece &piece = op.pieces[i];
    if (piece.count == 0) continue;
    const int64_t begin = bytes_of(op.dtype, piece.source_offset);
    const int64_t bytes = bytes_of(op.dtype, piece.count);
    const bool travels = (comm.layout.record(piece.rank, sequence).body.flags & FLAG_INLINE) != 0;
    // The own part may lie in place already, also if it travels in the record.
    if (piece.rank == comm.rank && piece.target == static_cast<const std::byte *>(op.input) + begin) continue;
    const std::byte *source = source_of(comm, piece.rank, sequence);
    if (source == nullptr || (travels && begin + bytes > static_cast<int64_t>(INLINE_BYTES)))
      return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, comm.rank, sequence,
                            "piece " + std::to_string(i) + " of the all-gather at sequence " +
                                std::to_string(sequence) + " on comm '" + comm.name + "' wants more than rank " +
                                std::to_string(piece.rank) + " gives");
    copy(comm, static_cast<std::byte *>(piece.target), source + begin, bytes, moving);
  }
  return {};
}

void broadcast(Comm &comm, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  const bool in_place = op.source == comm.rank && op.output == op.input;
  if (op.output == nullptr || op.element_count == 0 || in_place) return;
  copy(comm, static_cast<std::byte *>(op.output), source_of(comm, op.source, sequence),
       comm.services.dtype_bytes(op.dtype, op.element_count), moving);
}

void gather_slices(Comm &comm, uint64_t sequence, Moving *moving) {
  const tpfsdp_backend_op &op = comm.operation(sequence).op;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    if (rank == comm.rank) continue;
    const auto [begin, end] = slice_of(comm, op.element_count, rank);
    if (begin == end) continue;
    const int64_t offset = comm.services.dtype_bytes(op.output_dtype, begin);
    copy(comm, static_cast<std::byte *>(op.output) + offset, source_of(comm, rank, sequence) + offset,
         comm.services.dtype_bytes(op.output_dtype, end - begin), moving);
  }
}

}  // namespace tpfsdp::host
