// SPDX-License-Identifier: Apache-2.0
#include "staging.hpp"

#include <algorithm>
#include <cstring>

#include "comm.hpp"
#include "complete.hpp"
#include "post_op.hpp"
#include "region.hpp"
#include "run.hpp"

namespace tpfsdp::host {

namespace {

constexpr int64_t SLOT_BYTES = 512 << 10;
/// No window starts inside a byte, nor two ranks' parts in a cache line.
constexpr int64_t GRANULE = 64;

struct Range {
  int64_t begin, end;
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
  Range cut(const Range &other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
};

std::byte *byte_of(void *data, int64_t offset) { return static_cast<std::byte *>(data) + offset; }
const std::byte *byte_of(const void *data, int64_t offset) { return static_cast<const std::byte *>(data) + offset; }

/// How an operation is cut. Every rank comes to the same numbers.
class Windows {
 public:
  Windows(const Comm &comm, const tpfsdp_backend_op &op) : comm_(comm), op_(op) {
    int64_t parts = 1;  // that share a slot
    total_ = op.element_count;
    if (op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER) total_ = longest_part();
    if (op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE) parts = 2;
    if (op.kind == TPFSDP_BACKEND_KIND_REDUCE_SCATTER) {
      parts = comm.world_size;
      const auto [begin, end] = slice_of(comm, op.element_count, 0);
      total_ = end - begin;
    }
    const int64_t granule_bytes = std::max(bytes(op.dtype, GRANULE), bytes(op.output_dtype, GRANULE));
    length_ = std::max<int64_t>(1, SLOT_BYTES / parts / granule_bytes) * GRANULE;
    slot_bytes_ = length_ / GRANULE * granule_bytes * parts;
  }

  int64_t count() const {
#if defined(TPFSDP_MUTANT_LAST_WINDOW_DROPPED)
    return std::max<int64_t>(1, total_ / length_);
#else
    return std::max<int64_t>(1, (total_ + length_ - 1) / length_);
#endif
  }
  int64_t length() const { return length_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  Range window(int64_t number) const { return {number * length_, std::min(total_, (number + 1) * length_)}; }
  /// Of the input of a reduce-scatter: the same stretch of what becomes each rank's slice.
  Range stretch(int64_t number, int32_t rank) const {
    const auto [begin, end] = slice_of(comm_, op_.element_count, rank);
    return Range{begin + number * length_, begin + (number + 1) * length_}.cut({begin, end});
  }
  int64_t bytes(tpfsdp_dtype dtype, int64_t elements) const {
    return dtype > 0 ? comm_.services.dtype_bytes(dtype, elements) : 0;
  }

 private:
  int64_t longest_part() const {
    int64_t longest = 0;
    for (int64_t i = 0; i < op_.piece_count; ++i)
      longest = std::max(longest, op_.pieces[i].source_offset + op_.pieces[i].count);
    return longest;
  }

  const Comm &comm_;
  const tpfsdp_backend_op &op_;
  int64_t total_;
  int64_t length_;
  int64_t slot_bytes_;
};

/// The slot that comes next, with nobody reading it.
Outcome free_slot(Comm &comm, tpfsdp_backend_call *call, int64_t bytes, bool may_wait, Staging::Slot **out) {
  Staging::Slot &slot = comm.staging.slots[comm.staging.next];
  Outcome end;
  // What ended long ago has told how.
  if (slot.used > comm.done) end = complete(comm, call, slot.used, may_wait);
  if (!end.ok()) return end;
#if !defined(TPFSDP_MUTANT_STAGING_NOT_AWAITED)
  if (slot.region) {
    end = await(comm, {Target::DONE, slot.region->memory.exposed, true, call, may_wait});
    if (!end.ok()) return end;
  }
#endif
  if (!slot.region || slot.region->memory.bytes < static_cast<size_t>(bytes)) {
    slot.region.reset();
    void *data = nullptr;
    Region *region = nullptr;
    end = create_region(comm, bytes, &data, &region);
    if (!end.ok()) return end;
    slot.region.reset(region);
  }
  *out = &slot;
  return {};
}

/// Copies what peers will read of window `number` into the slot, and says what is posted.
Posting stage(const Comm &comm, const tpfsdp_backend_op &op, const Windows &windows, int64_t number,
              Staging::Slot &slot) {
  const Range window = windows.window(number);
  std::byte *data = slot.region->memory.data;
  Posting posting{op, window.count(), data, &slot.region->memory, 0};
  const auto bytes = [&](int64_t elements) { return windows.bytes(op.dtype, elements); };
  const auto copy = [&](int64_t offset, const Range &range) {
    if (range.count() > 0)
      comm.services.copy(data + offset, byte_of(op.input, bytes(range.begin)), bytes(range.count()));
  };
  slot.pieces.clear();
  switch (op.kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER: {
      Range own{0, 0};
      for (int64_t i = 0; i < op.piece_count; ++i) {
        const tpfsdp_backend_piece &piece = op.pieces[i];
        const Range whole{piece.source_offset, piece.source_offset + piece.count};
        if (piece.rank == comm.rank) own.end = std::max(own.end, whole.end);
        const Range part = whole.cut(window);
        void *target = byte_of(piece.target, bytes(part.begin - whole.begin));
        const bool in_place = piece.rank == comm.rank && target == byte_of(op.input, bytes(part.begin));
        if (part.count() > 0 && !in_place)
          slot.pieces.push_back({piece.rank, 0, part.begin - window.begin, part.count(), target});
      }
      const Range shown = own.cut(window);
      copy(0, shown);
      posting.elements = shown.count();
      break;
    }
    case TPFSDP_BACKEND_KIND_BROADCAST: {
      const bool root = op.source == comm.rank;
      const bool in_place = root && op.output == op.input;
      if (root) copy(0, window);
      if (!root) posting.source = nullptr;
      posting.op.output = in_place || op.output == nullptr ? nullptr : byte_of(op.output, bytes(window.begin));
      break;
    }
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER:
      for (int32_t rank = 0; rank < comm.world_size; ++rank) {
        const Range stretch = windows.stretch(number, rank);
        const int64_t offset = rank * windows.length();
        copy(bytes(offset), stretch);
        for (int64_t i = 0; i < op.piece_count; ++i) {
          const tpfsdp_backend_piece &piece = op.pieces[i];
          const Range whole{piece.source_offset, piece.source_offset + piece.count};
          const Range part = whole.cut(stretch);
          if (part.count() > 0)
            slot.pieces.push_back({piece.rank, piece.accumulate, offset + part.begin - stretch.begin, part.count(),
                                   byte_of(piece.target, windows.bytes(op.output_dtype, part.begin - whole.begin))});
        }
      }
      break;
    default:
      copy(0, window);
      posting.op.output = data + windows.slot_bytes() / 2;
      break;
  }
  posting.op.pieces = slot.pieces.data();
  posting.op.piece_count = static_cast<int64_t>(slot.pieces.size());
  return posting;
}

/// Posts the window that comes next.
Outcome post_window(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, const Windows &windows,
                    bool may_wait, uint64_t *out_sequence) {
  Staging &staging = comm.staging;
  Staging::Slot *slot = &staging.slots[staging.next];
  Posting posting{};
  if (comm.half_reduced == 0) {
    Outcome end = make_room(comm, call, may_wait);
    if (end.ok()) end = free_slot(comm, call, windows.slot_bytes(), may_wait, &slot);
    if (!end.ok()) return end;
    posting = stage(comm, op, windows, staging.window, *slot);
  } else {
    // Staged already, and its first half posted.
    const Range window = windows.window(staging.window);
    posting = {op, window.count(), slot->region->memory.data, &slot->region->memory, 0};
    posting.op.output = slot->region->memory.data + windows.slot_bytes() / 2;
  }
  posting.window = static_cast<int32_t>(staging.window);
  if (op.kind == TPFSDP_BACKEND_KIND_ALL_REDUCE) {
    const int64_t offset = windows.bytes(op.output_dtype, windows.window(staging.window).begin);
    Outcome end = post_halves(comm, call, posting, byte_of(op.output, offset), may_wait, out_sequence);
    if (!end.ok()) return end;
  } else {
    *out_sequence = post_op(comm, posting);
  }
  slot->used = *out_sequence;
  staging.next = 1 - staging.next;
  return {};
}

/// A window is complete before the next is posted: so all ranks end an operation that fails at the same one, and
/// nothing of it is under way then.
Outcome complete_window(Comm &comm, tpfsdp_backend_call *call, bool may_wait) {
  Staging &staging = comm.staging;
  Outcome end = complete(comm, call, staging.half_done, may_wait);
  if (end.ok()) {
    ++staging.window;
    staging.half_done = 0;
  } else if (comm.done >= staging.half_done) {
    staging.window = 0;
    staging.half_done = 0;
  }  // else it is the failure of a collective before this one, or none: asked again it goes on
  return end;
}

}  // namespace

void Staging::DestroyRegion::operator()(Region *region) const noexcept { destroy(region); }

bool is_staged(const Comm &comm, const tpfsdp_backend_op &op) {
  if (comm.provider.reads_caller_memory() || op.input_region != nullptr || op.kind == TPFSDP_BACKEND_KIND_BARRIER)
    return false;
  int64_t elements = op.element_count;
  if (op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER) {
    elements = 0;
    for (int64_t i = 0; i < op.piece_count; ++i)
      elements = std::max(elements, op.pieces[i].source_offset + op.pieces[i].count);
  }
  return comm.services.dtype_bytes(op.dtype, elements) > static_cast<int64_t>(INLINE_BYTES);
}

Outcome submit_staged(Comm &comm, tpfsdp_backend_call *call, const tpfsdp_backend_op &op, bool may_wait,
                      uint64_t *out_sequence) {
  const Windows windows(comm, op);
  Staging &staging = comm.staging;
  for (;;) {
    if (staging.half_done != 0) {
      Outcome end = complete_window(comm, call, may_wait);
      if (!end.ok()) return end;
    }
    uint64_t sequence = 0;
    Outcome end = post_window(comm, call, op, windows, may_wait, &sequence);
    if (!end.ok()) {
      const bool goes_on = end.status == TPFSDP_PENDING || end.status == TPFSDP_ERR_CANCELLED;
      if (!goes_on && comm.half_reduced == 0) staging.window = 0;
      return end;
    }
    if (staging.window + 1 < windows.count()) {
      staging.half_done = sequence;
      continue;
    }
    staging.window = 0;
    *out_sequence = sequence;
    return {};
  }
}

}  // namespace tpfsdp::host
