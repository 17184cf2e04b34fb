// SPDX-License-Identifier: Apache-2.0
#include "submit.hpp"

#include <string>

#include "failure.hpp"
#include "post.hpp"
#include "post_op.hpp"
#include "record.hpp"
#include "region.hpp"
#include "release.hpp"
#include "staging.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

/// Of more, the bytes could not be counted.
constexpr int64_t MOST_ELEMENTS = int64_t{1} << 56;

Outcome refuse(const Comm &comm, const tpfsdp_backend_op &op, const std::string &why) {
  return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, comm.rank, comm.posted + 1,
                        std::string(name_of_kind(op.kind)) + " on comm '" + comm.name + "': " + why);
}

/// Bytes from the input to the end of its region; -1: it does not lie there.
int64_t room_in_region(const tpfsdp_backend_op &op) {
  const Memory &memory = reinterpret_cast<const Region *>(op.input_region)->memory;
  const auto *input = static_cast<const std::byte *>(op.input);
  const std::byte *end = memory.data + memory.bytes;
  return input < memory.data || input > end ? -1 : end - input;
}

/// A peer's pieces are checked against what this rank shows when they are read (run.hpp); its own, here.
Outcome check_pieces(const Comm &comm, const tpfsdp_backend_op &op) {
  const bool gather = op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER;
  if (op.piece_count < 0 || (op.piece_count > 0 && op.pieces == nullptr)) return refuse(comm, op, "no pieces");
  for (int64_t i = 0; i < op.piece_count; ++i) {
    const tpfsdp_backend_piece &piece = op.pieces[i];
    if (gather && piece.rank == comm.rank && piece.count > 0 && op.input == nullptr)
      return refuse(comm, op, "no input");
    // The caller's own memory has no gaps; in a region parts may start at alignment bounds.
    bool fits = piece.count >= 0 && piece.source_offset >= 0 && piece.count <= MOST_ELEMENTS &&
                piece.source_offset <= MOST_ELEMENTS;
    if (op.input_region == nullptr)
      fits = fits && piece.count <= op.element_count && piece.source_offset <= op.element_count - piece.count;
    else if (fits && piece.count > 0 && (!gather || piece.rank == comm.rank))
      fits =
          comm.services.dtype_bytes(op.dtype, piece.source_offset) + comm.services.dtype_bytes(op.dtype, piece.count) <=
          room_in_region(op);
    if (!fits || (piece.count > 0 && piece.target == nullptr) ||
        (gather && (piece.rank < 0 || piece.rank >= comm.world_size)))
      return refuse(comm, op, "piece " + std::to_string(i) + " lies outside");
  }
  return {};
}

Outcome check_common(const Comm &comm, const tpfsdp_backend_op &op) {
  const auto *region = reinterpret_cast<const Region *>(op.input_region);
  if (region == nullptr || !region->common) return refuse(comm, op, "no common region");
  if (region->segment != comm.segment) return refuse(comm, op, "the region is another comm's");
  const int64_t bytes = comm.services.dtype_bytes(op.dtype, op.element_count);
  if (bytes > static_cast<int64_t>(region->common->bytes))
    return refuse(
        comm, op,
        std::to_string(bytes) + " bytes are more than its region has, " + std::to_string(region->common->bytes));
  return {};
}

Outcome check(const Comm &comm, const tpfsdp_backend_op &op) {
  if (op.struct_size < sizeof op) return Outcome::error(TPFSDP_ERR_ABI, "an operation of an older library");
  if (op.kind < TPFSDP_BACKEND_KIND_ALL_GATHER || op.kind > TPFSDP_BACKEND_KIND_MAPPED_GATHER)
    return refuse(comm, op, "kind " + std::to_string(op.kind));
  if (op.element_count < 0 || op.counts_length < 0) return refuse(comm, op, "a negative count");
  if (op.element_count > MOST_ELEMENTS)
    return refuse(comm, op, std::to_string(op.element_count) + " elements are more than there can be");
  if (is_in_common(op.kind)) return check_common(comm, op);
  if (op.input_region != nullptr && reinterpret_cast<const Region *>(op.input_region)->common)
    return refuse(comm, op, "a common region takes shared and mapped gathers only");
  const bool reduces = op.kind == TPFSDP_BACKEND_KIND_REDUCE_SCATTER || op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE;
  if (reduces && (op.op < TPFSDP_REDUCE_SUM || op.op > TPFSDP_REDUCE_MAX)) return refuse(comm, op, "no reduction");
  const bool root = op.kind != TPFSDP_BACKEND_KIND_BROADCAST || op.source == comm.rank;
  if (op.kind == TPFSDP_BACKEND_KIND_BROADCAST && (op.source < 0 || op.source >= comm.world_size))
    return refuse(comm, op, "source " + std::to_string(op.source) + " is no rank");
  const bool whole = op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE || op.kind == TPFSDP_BACKEND_KIND_BROADCAST;
  const bool needs_input = whole || op.kind == TPFSDP_BACKEND_KIND_REDUCE_SCATTER;
  if (needs_input && root && op.element_count > 0 && op.input == nullptr) return refuse(comm, op, "no input");
  if (whole && op.output == nullptr && op.element_count > 0 && !(op.kind == TPFSDP_BACKEND_KIND_BROADCAST && root))
    return refuse(comm, op, "no output");
  if (op.input_region != nullptr && op.input != nullptr) {
    const int64_t room = room_in_region(op);
    if (room < 0) return refuse(comm, op, "the input does not lie in its region");
    if (whole && root && comm.services.dtype_bytes(op.dtype, op.element_count) > room)
      return refuse(comm, op, "the input reaches beyond its region");
  }
  return whole || op.kind == TPFSDP_BACKEND_KIND_BARRIER ? Outcome{} : check_pieces(comm, op);
}

}  // namespace

Outcome refuse_unended(Comm &comm, tpfsdp_backend_call *call, tpfsdp_backend_kind kind) {
  if (last_post_unread(comm, Post::RESET) || last_post_unread(comm, Post::CLOSE) || comm.closed)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, comm.posted,
                          describe(comm, call, comm.posted) + " has not ended; wait for it first");
  if (const uint64_t half = comm.half_reduced != 0 ? comm.half_reduced : comm.staging.half_done; half != 0)
    if (comm.operation(half).op.kind != kind)
      return Outcome::error(TPFSDP_ERR_STATE, comm.rank, half,
                            describe(comm, call, half) + " is half done; submit it again, or give it up");
  if (comm.making.common && kind != KIND_COMMON_REGION)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, comm.making.offered,
                          describe(comm, call, comm.making.offered) + " is half made; ask for it again, or give it up");
  return {};
}

Outcome submit(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
               uint64_t *out_sequence) {
  Outcome end = sticky(comm, Look::ACQUIRE);
  if (end.ok()) end = check(comm, op);
  if (!end.ok()) return end;
  end = refuse_unended(comm, call, op.kind);
  if (!end.ok()) return end;
  if (is_staged(comm, op)) return submit_staged(comm, call, op, may_wait, out_sequence);
  if (is_in_halves(comm, op)) return post_halves(comm, call, whole_of(op), op.output, may_wait, out_sequence);
  end = make_room(comm, call, may_wait);
  if (!end.ok()) return end;
  if (op.kind == TPFSDP_BACKEND_KIND_SHARED_GATHER) check_slot_free(comm, *common_of(op));
  *out_sequence = post_op(comm, whole_of(op));
  return end;
}

}  // namespace tpfsdp::host
