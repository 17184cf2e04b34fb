// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>
#include <string>

#include "failure.hpp"
#include "invariant.hpp"
#include "record.hpp"
#include "text.hpp"
#include "withdrawal.hpp"

namespace tpfsdp::host {

namespace {

/// Slices start where no two elements share a byte, nor two ranks a cache line.
constexpr int64_t SLICE_ELEMENTS = 64;

/// How the data of a sequence reaches its readers.
struct Ways {
  bool shown = false;          ///< some of it lies outside the records
  bool caller_memory = false;  ///< some of that may be taken back
};

Ways ways(const Comm &comm, uint64_t sequence) {
  Ways result;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const uint8_t flags = comm.layout.record(rank, sequence).body.flags;
    result.shown = result.shown || (flags & FLAG_INLINE) == 0;
    result.caller_memory = result.caller_memory || (rank != comm.rank && (flags & FLAG_CALLER_MEMORY) != 0);
  }
  return result;
}

Outcome move(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving) {
  const Operation &operation = comm.operation(sequence);
  switch (operation.op.kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER: return gather(comm, call, sequence, moving);
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER: return reduce_scatter(comm, call, sequence, moving);
    case TPFSDP_BACKEND_KIND_BROADCAST: return broadcast(comm, call, sequence, moving);
    case TPFSDP_BACKEND_KIND_ALL_REDUCE:
      return operation.phase == 2 ? gather_slices(comm, call, sequence, moving)
                                  : all_reduce(comm, call, sequence, moving);
    default: return {};
  }
}

}  // namespace

Moving::Moving(Comm &comm, uint64_t sequence, bool caller_memory) : comm_(comm), caller_memory_(caller_memory) {
  if (caller_memory_)
    comm_.words.mark_before_look(comm_.lane().moving, sequence, Point::MOVE_BEGIN);
  else
    comm_.words.mark(comm_.lane().moving, sequence, Point::MOVE_BEGIN);
}

Moving::~Moving() {
  if (caller_memory_)
    comm_.words.publish(comm_.lane().moving, 0, Point::MOVE_END);
  else
    comm_.words.mark(comm_.lane().moving, 0, Point::MOVE_END);
}

void Moving::chunk() {
  Word &word = comm_.lane().chunk;
  comm_.words.mark(word, word.load(std::memory_order_relaxed) + 1, Point::MOVE_BEGIN);
}

const std::byte *source_of(const Comm &comm, uint64_t sequence, const Part &part) {
  const Record &record = comm.layout.record(part.rank, sequence);
  const auto shown = static_cast<int64_t>(shown_bytes(record));
  if (part.offset < 0 || part.bytes < 0 || part.offset > shown || part.bytes > shown - part.offset) return nullptr;
  if ((record.body.flags & FLAG_INLINE) != 0) return record.data + part.offset;
  const std::byte *start =
      part.rank == comm.rank
          ? static_cast<const std::byte *>(comm.operation(sequence).op.input)
          : comm.segment->find(part.rank, {record.body.region, record.body.place}, static_cast<uint64_t>(shown));
  return start == nullptr ? nullptr : start + part.offset;
}

Outcome outside(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, const Part &part, int64_t piece) {
  if (part.rank != comm.rank && !comm.segment->is_reachable(part.rank))
    return Outcome::error(TPFSDP_ERR_BACKEND, comm.rank, sequence,
                          "rank " + std::to_string(comm.rank) +
                              " closed the descriptors of this library's shared memory, and cannot read rank " +
                              std::to_string(part.rank) + " in " + describe(comm, call, sequence) +
                              "; leave descriptors alone that the program did not open, and restart the group");
  return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, comm.rank, sequence,
                        (piece < 0 ? std::string() : "piece " + std::to_string(piece) + " of ") +
                            describe(comm, call, sequence) + " on rank " + std::to_string(comm.rank) + " wants " +
                            std::to_string(part.bytes) + " bytes from byte " + std::to_string(part.offset) +
                            " of what rank " + std::to_string(part.rank) + " gives, which are " +
                            std::to_string(shown_bytes(comm.layout.record(part.rank, sequence))) +
                            "; that piece was not read. Correct the pieces, reset on every rank, then go on");
}

std::pair<int64_t, int64_t> slice_of(const Comm &comm, int64_t element_count, int32_t rank) {
  const int64_t even = (element_count + comm.world_size - 1) / comm.world_size;
  const int64_t size = (even + SLICE_ELEMENTS - 1) / SLICE_ELEMENTS * SLICE_ELEMENTS;
  return {std::min(element_count, size * rank), std::min(element_count, size * (rank + 1))};
}

Outcome run(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool *out_consumed) {
  const Operation &operation = comm.operation(sequence);
  *out_consumed = true;
  if (!invariant(comm, comm.decided == sequence, "VERDICT_BEFORE_BYTES")) {
    *out_consumed = false;
    return sticky(comm, Look::LAST);
  }
  if (operation.post != Post::OP || is_verdict_only(operation.op.kind)) return {};
  if (operation.op.kind == KIND_COMMON_REGION) {
    Outcome end = operation.phase == 1 ? map_offered(comm, call, sequence) : Outcome{};
    *out_consumed = end.ok();
    return end;
  }
  const Ways how = ways(comm, sequence);
  if (!how.shown) {
    Outcome end = move(comm, call, sequence, nullptr);
    *out_consumed = end.ok();
    return end;
  }
  Moving moving(comm, sequence, how.caller_memory);
  if (how.caller_memory) {
    // Over for this rank: the memory will not come back, and done tells its owner that nobody reads it.
    Outcome end = check_withdrawn(comm, call, sequence);
    if (!end.ok()) return end;
  }
  Outcome end = move(comm, call, sequence, &moving);
  *out_consumed = end.ok();
  return end;
}

}  // namespace tpfsdp::host
