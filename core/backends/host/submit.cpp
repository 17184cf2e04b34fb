// SPDX-License-Identifier: Apache-2.0
#include "submit.hpp"

#include <algorithm>
#include <string>

#include "complete.hpp"
#include "failure.hpp"
#include "post.hpp"
#include "record.hpp"
#include "region.hpp"
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

Outcome check(const Comm &comm, const tpfsdp_backend_op &op) {
  if (op.struct_size < sizeof op) return Outcome::error(TPFSDP_ERR_ABI, "an operation of an older library");
  if (op.kind < TPFSDP_BACKEND_KIND_ALL_GATHER || op.kind > TPFSDP_BACKEND_KIND_BARRIER)
    return refuse(comm, op, "kind " + std::to_string(op.kind));
  if (op.element_count < 0 || op.counts_length < 0) return refuse(comm, op, "a negative count");
  if (op.element_count > MOST_ELEMENTS)
    return refuse(comm, op, std::to_string(op.element_count) + " elements are more than there can be");
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

/// Elements of this rank's input that peers may read; -1: cannot be told.
int64_t shown_elements(const Comm &comm, const tpfsdp_backend_op &op) {
  switch (op.kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER: {
      int64_t elements = -1;
      for (int64_t i = 0; i < op.piece_count; ++i)
        if (op.pieces[i].rank == comm.rank)
          elements = std::max(elements, op.pieces[i].source_offset + op.pieces[i].count);
      return op.input == nullptr ? 0 : elements;
    }
    case TPFSDP_BACKEND_KIND_BROADCAST: return op.source == comm.rank ? op.element_count : 0;
    case TPFSDP_BACKEND_KIND_BARRIER: return 0;
    // In a region parts may start at alignment bounds, so the count does not tell where the input ends.
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER: return op.input_region == nullptr ? op.element_count : -1;
    default: return op.element_count;
  }
}

/// How far peers may read from `source`: to the end of its region, or of what the caller says it has.
uint64_t room_for_peers(const Comm &comm, const tpfsdp_backend_op &op, const Memory *region, const void *source,
                        int64_t bytes) {
  if (region != nullptr)
    return static_cast<uint64_t>(region->data + region->bytes - static_cast<const std::byte *>(source));
  if (bytes >= 0) return static_cast<uint64_t>(bytes);
  return op.input_region != nullptr ? 0 : static_cast<uint64_t>(comm.services.dtype_bytes(op.dtype, op.element_count));
}

/// Posts one sequence of op whose data is `source`.
uint64_t post_op(Comm &comm, const tpfsdp_backend_op &op, uint8_t phase, const void *source) {
  Record::Body body = body_of(op, phase, comm.epoch);
  alignas(8) std::byte data[INLINE_BYTES]{};
  const int64_t elements = shown_elements(comm, op);
  const tpfsdp_dtype dtype = phase == 2 ? op.output_dtype : op.dtype;
  const int64_t bytes = elements <= 0 ? elements : comm.services.dtype_bytes(dtype, elements);
  const bool travels =
      phase == 0 && op.kind != TPFSDP_BACKEND_KIND_BARRIER && bytes >= 0 && bytes <= static_cast<int64_t>(INLINE_BYTES);
  const bool shows = !travels && source != nullptr;
  Memory *region = shows ? memory_of(op.input_region, source) : nullptr;
  if (travels) {
    put_inline(&body, data, op, source, static_cast<size_t>(bytes));
  } else if (shows) {
    const auto [where, place] = comm.segment->place_of(region, source);
    show(&body, data, op, where, place, room_for_peers(comm, op, region, source, bytes));
  } else {
    show(&body, data, op, 0, 0, 0);
  }
  const uint64_t sequence = comm.posted + 1;
  Operation &operation = comm.operation(sequence);
  operation.op = op;
  operation.op.input = source;
  if (shows) {
    if (region != nullptr) region->exposed = sequence;
    if (region == nullptr) {
      body.flags |= FLAG_CALLER_MEMORY;
      comm.caller_exposed = sequence;
    }
  }
  post(comm, body, data);
  if (shows) operation.exposed_upto = sequence;
  return sequence;
}

/// At most IN_FLIGHT sequences of which this rank has not seen all records.
Outcome make_room(Comm &comm, tpfsdp_backend_call *call, bool may_wait) {
  if (comm.posted - comm.done >= IN_FLIGHT) {
    Outcome end = complete(comm, call, comm.done + 1, may_wait);
    if (!end.ok()) return end;
  }
  if (comm.posted - comm.read < IN_FLIGHT) return {};
  catch_up(comm);
  while (comm.posted - comm.read >= IN_FLIGHT) {
    Outcome end = await(comm, {Target::RECORD, comm.read + 1, false, call, may_wait});
    if (!end.ok()) return end;
    ++comm.read;
  }
  return {};
}

/// Above INLINE_BYTES: slice r is reduced by rank r in the first sequence, and gathered from there in the second.
Outcome submit_all_reduce(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
                          uint64_t *out_sequence) {
  if (comm.half_reduced == 0) {
    Outcome end = make_room(comm, call, may_wait);
    if (!end.ok()) return end;
    comm.half_reduced = post_op(comm, op, 1, op.input);
  }
  Outcome end = complete(comm, call, comm.half_reduced, may_wait);
  // A first half that is over everywhere is not gone on with; one that is not, is.
  if (!end.ok()) {
    if (comm.done >= comm.half_reduced) comm.half_reduced = 0;
    return end;
  }
  comm.half_reduced = 0;
  *out_sequence = post_op(comm, op, 2, op.output);
  return {};
}

}  // namespace

Outcome submit(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
               uint64_t *out_sequence) {
  Outcome end = sticky(comm, Look::ACQUIRE);
  if (!end.ok()) return end;
  end = check(comm, op);
  if (!end.ok()) return end;
  if (last_post_unread(comm, Post::RESET) || last_post_unread(comm, Post::CLOSE) || comm.closed)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, comm.posted,
                          describe(comm, call, comm.posted) + " has not ended; wait for it first");
  if (comm.half_reduced != 0 && op.kind != TPFSDP_BACKEND_KIND_ALL_REDUCE)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, comm.half_reduced,
                          describe(comm, call, comm.half_reduced) + " is half done; submit it again, or give it up");
  const bool large = op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE &&
                     comm.services.dtype_bytes(op.dtype, op.element_count) > static_cast<int64_t>(INLINE_BYTES);
  if (large) return submit_all_reduce(comm, call, op, may_wait, out_sequence);
  end = make_room(comm, call, may_wait);
  if (!end.ok()) return end;
  *out_sequence = post_op(comm, op, 0, op.input);
  return {};
}

}  // namespace tpfsdp::host
