// SPDX-License-Identifier: Apache-2.0
#include "post_op.hpp"

#include <algorithm>

#include "complete.hpp"
#include "post.hpp"
#include "record.hpp"
#include "region.hpp"
#include "release.hpp"

namespace tpfsdp::host {

namespace {

/// Elements of this rank's input that peers may read; -1: cannot be told.
int64_t shown_elements(const Comm &comm, const Posting &posting) {
  const tpfsdp_backend_op &op = posting.op;
  switch (op.kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER: {
      if (posting.staged != nullptr) return posting.elements;
      int64_t elements = -1;
      for (int64_t i = 0; i < op.piece_count; ++i)
        if (op.pieces[i].rank == comm.rank)
          elements = std::max(elements, op.pieces[i].source_offset + op.pieces[i].count);
      return op.input == nullptr ? 0 : std::max<int64_t>(0, elements);
    }
    case TPFSDP_BACKEND_KIND_BROADCAST: return op.source == comm.rank ? posting.elements : 0;
    case TPFSDP_BACKEND_KIND_BARRIER:
    case TPFSDP_BACKEND_KIND_SHARED_GATHER:
    case TPFSDP_BACKEND_KIND_MAPPED_GATHER: return 0;
    // In a region parts may start at alignment bounds, so the count does not tell where the input ends.
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER:
      return op.input_region == nullptr && posting.staged == nullptr ? op.element_count : -1;
    default: return posting.elements;
  }
}

/// How far peers may read from the source: to the end of its region, or of what the caller says it has.
uint64_t room_for_peers(const Comm &comm, const Posting &posting, const Memory *region, int64_t bytes) {
  if (region != nullptr && (posting.staged == nullptr || bytes < 0))
    return static_cast<uint64_t>(region->data + region->bytes - static_cast<const std::byte *>(posting.source));
  if (bytes >= 0) return static_cast<uint64_t>(bytes);
  const tpfsdp_backend_op &op = posting.op;
  return op.input_region != nullptr ? 0 : static_cast<uint64_t>(comm.services.dtype_bytes(op.dtype, op.element_count));
}

}  // namespace

Posting whole_of(const tpfsdp_backend_op &op) { return {op, op.element_count, op.input}; }

bool is_in_halves(const Comm &comm, const tpfsdp_backend_op &op) {
  return op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE &&
         comm.services.dtype_bytes(op.dtype, op.element_count) > static_cast<int64_t>(INLINE_BYTES);
}

uint64_t post_op(Comm &comm, const Posting &posting) {
  const tpfsdp_backend_op &op = posting.op;
  Record::Body body = body_of(op, posting.phase, posting.window, comm.epoch);
  alignas(8) std::byte data[INLINE_BYTES]{};
  const int64_t elements = shown_elements(comm, posting);
  const tpfsdp_dtype dtype = posting.phase == 2 ? op.output_dtype : op.dtype;
  const int64_t bytes = elements <= 0 ? elements : comm.services.dtype_bytes(dtype, elements);
  const bool travels =
      posting.phase == 0 && !is_verdict_only(op.kind) && bytes >= 0 && bytes <= static_cast<int64_t>(INLINE_BYTES);
  const bool shows = !travels && posting.source != nullptr && !is_verdict_only(op.kind);
  Memory *region = !shows ? nullptr : posting.staged ? posting.staged : memory_of(op.input_region, posting.source);
  if (travels) {
    put_inline(&body, data, op, posting.source, static_cast<size_t>(bytes));
  } else if (shows) {
#if defined(TPFSDP_MUTANT_SOURCE_IS_SLOT)
    const void *source = posting.source;
    for (int64_t i = 0; op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER && i < op.piece_count; ++i)
      if (op.pieces[i].rank == comm.rank) source = op.pieces[i].target;
#else
    const void *source = posting.source;
#endif
    show(&body, data, op, comm.segment->place_of(region, source), room_for_peers(comm, posting, region, bytes));
  } else {
    show(&body, data, op, {0, 0}, 0);
  }
  const uint64_t sequence = comm.posted + 1;
  Operation &operation = comm.operation(sequence);
  operation.op = op;
  operation.op.input = posting.source;
  operation.elements = posting.elements;
  operation.common = common_of(op);
  if (operation.common) note_use(*operation.common, sequence, op.unit);
  if (shows) {
    if (region != nullptr) region->exposed = sequence;
    if (region == nullptr) {
      body.flags |= FLAG_CALLER_MEMORY;
      comm.caller_exposed = sequence;
    }
  }
  post(comm, body, data);
  // Staged memory is this engine's own: nobody waits for its readers before he goes on.
  if (shows && posting.staged == nullptr) operation.exposed_upto = sequence;
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

Outcome post_halves(Comm &comm, tpfsdp_backend_call *call, Posting posting, void *output, bool may_wait,
                    uint64_t *out_sequence) {
  if (comm.half_reduced == 0) {
    Outcome end = make_room(comm, call, may_wait);
    if (!end.ok()) return end;
    posting.phase = 1;
    comm.half_reduced = post_op(comm, posting);
  }
  Outcome end = complete(comm, call, comm.half_reduced, may_wait);
  // A first half that is over everywhere is not gone on with; one that is not, is.
  if (!end.ok()) {
    if (comm.done >= comm.half_reduced) comm.half_reduced = 0;
    return end;
  }
  comm.half_reduced = 0;
  posting.phase = 2;
  posting.source = posting.op.output;
  posting.op.output = output;
  *out_sequence = post_op(comm, posting);
  return {};
}

}  // namespace tpfsdp::host
