// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gather.hpp"

#include "base/debug.hpp"
#include "device/kernels.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

#include <cstring>

namespace tpfsdp {
namespace {

void record(ParamGroup &unit, EventKind kind) {
  Event event;
  event.kind = kind;
  event.training_state = static_cast<int32_t>(unit.training_state);
  event.sharded_state = static_cast<int32_t>(unit.sharded_state);
  event.unit = unit.event_name;
  unit.root().recorder().record(event);
}

void acquire_host_memory(ParamGroup &unit) {
  for (ShardedParam &p : unit.params) {
    const int64_t size_bytes = dtype_bytes(p.param->dtype(), element_count(p.param->shape()));
    if (size_bytes == 0) continue;
    void *data = nullptr;
    const Status status = unit.host_memory(true, *p.param, size_bytes, &data);
    if (status < 0 || !data) {
      drop_full_parameters(unit);
      ErrorDetail detail;
      detail.status = TPFSDP_ERR_CALLBACK;
      detail.backend_code = status;
      detail.unit = unit.name;
      detail.message = cat("the host's memory callback gave no ", size_bytes, " bytes for ", p.param->full_name(),
                           " (status ", status, ")");
      throw Failure(std::move(detail));
    }
    p.full = static_cast<std::byte *>(data);
    unit.root().host_bytes += size_bytes;
  }
  unit.has_destination = true;
  unit.set_destination(nullptr);
}

[[noreturn]] void refuse_other_place(const ParamGroup &unit, const std::string &why) {
  fail(TPFSDP_ERR_STATE, "unit ", unit.name, " cannot come back to where its forward saw it: ", why,
       "; close its scope or reshard it first");
}

Slot &add_slot(ParamGroup &unit) {
  Root &root = unit.root();
  Slot &slot = root.slots.emplace_back();
  slot.number = static_cast<int32_t>(root.slots.size()) - 1;
  slot.memory = Buffer(unit.layout.full_bytes, &root.account);
  ++root.recorder().counters.spare_slots;
  ++root.recorder().counters.allocations;
  return slot;
}

enum class Acquired { kYes, kPending, kNotForPrefetch };

Acquired acquire_slot(ParamGroup &unit, bool may_wait, bool for_prefetch) {
  if (unit.slot) {
    Slot *slot = unit.slot;
    if (ParamGroup *holder = slot->holder; holder && holder != &unit) {
      // A pin may exist on this rank only, so going on another way would part the ranks.
      if (holder->has_deferred_reshard)
        fail(TPFSDP_ERR_STATE, "unit ", unit.name, " cannot be gathered: its memory is held by ", holder->pins.load(),
             " pin(s) of unit ", holder->name, "; release the views of its full parameters");
      const bool is_in_step =
          unit.training_state == TrainingState::kForward || unit.training_state == TrainingState::kPreBackward;
      if (holder->is_prefetch && !for_prefetch) {
        if (drop_prefetch(*holder, may_wait) == TPFSDP_PENDING) return Acquired::kPending;
      } else if (for_prefetch) {
        return Acquired::kNotForPrefetch;  // it would cost memory outside the plan
      } else if (!is_in_step) {
        if (!unit.spare) unit.spare = &add_slot(unit);
        slot = unit.spare;
      } else if (!unit.post_forward_positions.empty()) {
        // A view that the host saved in forward must be right again in backward.
        refuse_other_place(unit, cat("unit ", holder->name, " is full there"));
      } else {
        give_own_slot(unit);
        slot = unit.slot;
      }
    }
    slot->holder = &unit;
    unit.held_slot = slot;
    unit.set_destination(slot->memory.data());
  }
  unit.has_destination = true;
  return Acquired::kYes;
}

void poison(ParamGroup &unit) {
  for (ShardedParam &p : unit.params) {
    // As bf16, f16, f32 each element is a NaN, the first two and the third signalling; f64 has its own.
    const uint64_t pattern = p.param->dtype() == TPFSDP_DTYPE_F64 ? 0x7ff4dead7ff4deadULL : 0x7fbf7fbf7fbf7fbfULL;
    const int64_t size_bytes = dtype_bytes(p.param->dtype(), element_count(p.param->shape()));
    for (int64_t i = 0; i < size_bytes; i += 8)
      std::memcpy(p.full + i, &pattern, static_cast<size_t>(std::min<int64_t>(8, size_bytes - i)));
  }
}

tpfsdp_backend_op gather_op(const ParamGroup &unit, const GatherRoute &route, const Region &source) {
  tpfsdp_backend_op op{};
  op.struct_size = sizeof op;
  op.kind = TPFSDP_BACKEND_KIND_ALL_GATHER;
  op.dtype = route.dtype;
  op.source = -1;
  op.unit = unit.number;
  op.input = source.data();
  op.input_region = source.backend_region();
  op.element_count = route.elements;
  op.counts_hash = route.counts_hash;
  op.counts_length = static_cast<int64_t>(route.pieces.size());
  op.pieces = route.pieces.data();
  op.piece_count = op.counts_length;
  return op;
}

Status complete_gather(ParamGroup &unit, bool may_wait) {
  if (unit.group->size() == 1) return TPFSDP_OK;
  refuse_given_up(unit, *unit.gather_route->group, unit.gather_generation, "gather");
  Group &group = *unit.gather_route->group;
  if (group.complete(unit.gather_sequence, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  finish_reductions(unit.root(), group, unit.gather_sequence);
  return TPFSDP_OK;
}

void gather_alone(ParamGroup &unit) {
  for (const ShardedParam &p : unit.params) {
    const int64_t size_bytes = dtype_bytes(p.param->dtype(), p.local_elements());
    if (size_bytes > 0) copy_bytes(p.full, p.shard, size_bytes);
  }
}

}  // namespace

bool has_fresh_values(const ParamGroup &unit) {
  // In an open window shards may have been written already.
  return unit.is_full() && unit.gathered_version == unit.version && unit.root().window == Window::kClosed;
}

void give_own_slot(ParamGroup &unit) { unit.slot = &add_slot(unit); }

void settle_place(ParamGroup &unit) {
  if (!unit.held_slot || unit.held_slot == unit.slot) return;
  if (!unit.post_forward_positions.empty()) refuse_other_place(unit, "it is full elsewhere");
  unit.slot = unit.held_slot;
}

Status issue_gather(ParamGroup &unit, bool may_wait, bool for_prefetch) {
  // A unit that only a pin of this rank holds full is gathered again, into the same place: its peers do it, too.
  if (unit.is_gathering || (has_fresh_values(unit) && !unit.has_deferred_reshard)) {
    if (!for_prefetch) unit.is_prefetch = false;
    return TPFSDP_OK;
  }
  Root &root = unit.root();
  if (root.window == Window::kExplicit)
    fail(TPFSDP_ERR_STATE, "unit ", unit.name,
         " cannot be gathered inside a write window: call tpfsdp_shards_end_write first");
  if (!unit.has_destination) {
    if (unit.host_memory) {
      acquire_host_memory(unit);
    } else if (const Acquired acquired = acquire_slot(unit, may_wait, for_prefetch); acquired != Acquired::kYes) {
      return acquired == Acquired::kPending ? TPFSDP_PENDING : TPFSDP_OK;
    }
  }
  close_window(root);
  if (unit.group->size() == 1) {
    record(unit, EventKind::kUnshard);
    gather_alone(unit);
  } else {
    // Recorded before the collective that it starts, and only once: a PENDING submit comes again.
    if (!unit.is_posting) record(unit, EventKind::kUnshard);
    unit.is_posting = true;
    const bool among_parts = has_fresh_part(unit);
    const GatherRoute &route = among_parts ? unit.part->route : unit.shards_route;
    const tpfsdp_backend_op op = gather_op(unit, route, among_parts ? unit.part->memory : unit.shards);
    if (route.group->submit(op, route.wire_bytes, may_wait, &unit.gather_sequence) == TPFSDP_PENDING)
      return TPFSDP_PENDING;
    unit.is_posting = false;
    unit.gather_route = &route;
    unit.gather_generation = route.group->generation();
  }
  unit.is_gathering = true;
  unit.is_prefetch = for_prefetch;
  unit.has_deferred_reshard = false;
  unit.gathered_version = unit.version;
  ++unit.unshards;
  root.recorder().counters.gathered_bytes += unit.layout.logical_bytes;
  return TPFSDP_OK;
}

Status wait_gather(ParamGroup &unit, bool may_wait) {
  if (!unit.is_gathering) return TPFSDP_OK;
  if (complete_gather(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  unit.is_gathering = false;
  unit.sharded_state = ShardedState::kUnsharded;
  for (ShardedParam &p : unit.params)
    p.param->show(Face::kFull, p.full, p.param->shape(), static_cast<bool>(unit.host_memory));
  record(unit, EventKind::kWaitUnshard);
  return TPFSDP_OK;
}

Status drop_prefetch(ParamGroup &unit, bool may_wait) {
  if (unit.is_gathering && complete_gather(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  drop_full_parameters(unit);
  return TPFSDP_OK;
}

Status unshard(ParamGroup &unit, bool may_wait) {
  const Status status = issue_gather(unit, may_wait, false);
  return status == TPFSDP_OK ? wait_gather(unit, may_wait) : status;
}

void reshard(ParamGroup &unit) {
  if (!unit.is_full()) return;
  unit.is_full_beside_scopes = false;
  if (unit.scopes > 0) return;
  if (unit.pins.load(std::memory_order_relaxed) > 0) {
    if (!unit.has_deferred_reshard) {
      unit.has_deferred_reshard = true;
      ++unit.deferred_reshards;
      ++unit.root().recorder().counters.deferred_reshards;
    }
    return;
  }
  if (debug_switches().poison && !unit.host_memory) poison(unit);
  drop_full_parameters(unit);
  record(unit, EventKind::kReshard);
}

void drop_full_parameters(ParamGroup &unit) noexcept {
  for (ShardedParam &p : unit.params) {
    if (unit.host_memory && p.full) {
      const int64_t size_bytes = dtype_bytes(p.param->dtype(), element_count(p.param->shape()));
      void *data = p.full;
      // A failure to take memory back is the host's to know; nothing here depends on it.
      unit.host_memory(false, *p.param, size_bytes, &data);
      unit.root().host_bytes -= size_bytes;
    }
    p.full = nullptr;
    if (p.param->unit == &unit) p.param->hide(Face::kFull);
  }
  if (unit.held_slot) unit.held_slot->holder = nullptr;
  unit.held_slot = nullptr;
  unit.has_destination = false;
  unit.is_gathering = false;
  unit.is_posting = false;
  unit.is_prefetch = false;
  unit.has_deferred_reshard = false;
  const bool is_in_parts = unit.part && unit.part->is_held;
  unit.sharded_state = is_in_parts ? ShardedState::kShardedPostForward : ShardedState::kSharded;
}

void refuse_given_up(const ParamGroup &unit, const Group &group, int64_t generation, const char *what) {
  if (generation != group.generation())
    fail(TPFSDP_ERR_CANCELLED, "the ", what, " of unit ", unit.name, " was given up when another failure on group ",
         group.name(), " was told or reset: call reset_iter_state on the root of every rank, then go on");
}

void pin(ParamGroup &unit) {
  if (!unit.is_full())
    fail(TPFSDP_ERR_STATE, "unit ", unit.name, " is not full and cannot be pinned: call pre_forward or unshard first");
  unit.pins.fetch_add(1, std::memory_order_relaxed);
}

void unpin(ParamGroup &unit) {
  int32_t owed = unit.owed_unpins.load(std::memory_order_relaxed);
  do {
    if (unit.pins.load(std::memory_order_relaxed) - owed <= 0)
      fail(TPFSDP_ERR_STATE, "unit ", unit.name, " is not pinned");
  } while (!unit.owed_unpins.compare_exchange_weak(owed, owed + 1, std::memory_order_acq_rel));
  unit.outside_ref();  // until the gate has run what is owed
  unit.gate()->defer(&unit);
}

void take_pins_back(ParamGroup &unit, int32_t count) noexcept {
  if (unit.pins.fetch_sub(count, std::memory_order_acq_rel) == count && unit.has_deferred_reshard) {
    unit.has_deferred_reshard = false;
    reshard(unit);
  }
}

}  // namespace tpfsdp
