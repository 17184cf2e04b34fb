// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gather.hpp"

#include "base/debug.hpp"
#include "device/kernels.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

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

tpfsdp_backend_op gather_op(ParamGroup &unit, const GatherRoute &route, const Region &source) {
  tpfsdp_backend_op op{};
  op.struct_size = sizeof op;
  op.dtype = route.dtype;
  op.source = -1;
  op.unit = unit.number;
  if (CommonRegion *common = common_of(unit)) {
    op.kind = unit.mapped ? TPFSDP_BACKEND_KIND_MAPPED_GATHER : TPFSDP_BACKEND_KIND_SHARED_GATHER;
    op.input_region = common->backend_region();
  } else {
    op.kind = TPFSDP_BACKEND_KIND_ALL_GATHER;
    op.input = source.data();
    op.input_region = source.backend_region();
  }
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
  if (common_of(unit)) return;  // filled, or mapped
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ParamLayout &at = unit.layout.params[i];
    if (at.elements() > 0) cast(unit.params[i].full, at.full_dtype, unit.params[i].shard, at.dtype, at.elements());
  }
}

}  // namespace

bool has_fresh_values(const ParamGroup &unit) {
  // In an open window shards may have been written already.
  return unit.is_full() && unit.gathered_version == unit.version && unit.root().window == Window::kClosed;
}

Status issue_gather(ParamGroup &unit, bool may_wait, bool for_prefetch) {
#if !defined(TPFSDP_MUTANT_GATHER_FROM_BEFORE_A_WINDOW_TAKEN)
  // Posted before a write window: what it brings is old.
  const bool is_overtaken = unit.is_gathering && !for_prefetch && unit.gathered_version != unit.version;
  if (is_overtaken && wait_gather(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
#endif
  // A unit that only a pin of this rank holds full is gathered again, into the same place: its peers do it, too.
  if (unit.is_gathering || (has_fresh_values(unit) && !unit.has_deferred_reshard)) {
    if (!for_prefetch) unit.is_prefetch = false;
    return TPFSDP_OK;
  }
  Root &root = unit.root();
  if (root.window == Window::kExplicit)
    fail(TPFSDP_ERR_STATE, "unit ", unit.name,
         " cannot be gathered inside a write window: call tpfsdp_shards_end_write first");
  if (finish_writes(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  if (const Acquired acquired = acquire_full_memory(unit, may_wait, for_prefetch); acquired != Acquired::kYes)
    return acquired == Acquired::kPending ? TPFSDP_PENDING : TPFSDP_OK;
  close_window(root);
  // Once, and before the collective that it starts: what is PENDING comes again.
  if (!unit.is_posting) {
    record(unit, EventKind::kUnshard);
    unit.is_filled = has_fresh_part(unit) || (unit.group->size() == 1 && !common_of(unit));  // then shards do
  }
  unit.is_posting = true;
  if (!unit.is_filled && fill_own_part(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  unit.is_filled = true;
  if (unit.group->size() == 1) {
    gather_alone(unit);
  } else {
    const bool among_parts = has_fresh_part(unit);
    const GatherRoute &route = among_parts ? unit.part->route : unit.shards_route;
    const Region &own = unit.layout.is_cast ? unit.cast_shards : unit.shards;
    const tpfsdp_backend_op op = gather_op(unit, route, among_parts ? unit.part->memory : own);
    const int64_t wire_bytes = op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER ? route.wire_bytes : 0;
    if (route.group->submit(op, wire_bytes, may_wait, &unit.gather_sequence) == TPFSDP_PENDING) return TPFSDP_PENDING;
    unit.gather_route = &route;
    if (&route == &unit.shards_route) unit.last_shards_gather = unit.gather_sequence;
    unit.gather_generation = route.group->generation();
  }
  unit.is_posting = false;
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
  Param::Showing how{.is_anew = static_cast<bool>(unit.host_memory), .is_read_only = common_of(unit) != nullptr};
  for (size_t i = 0; i < unit.params.size(); ++i) {
    how.dtype = unit.layout.params[i].full_dtype;
    unit.params[i].param->show(Face::kFull, unit.params[i].full, unit.params[i].param->shape(), how);
  }
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
  if (debug_switches().poison && !unit.host_memory && !common_of(unit)) poison(unit);
  drop_full_parameters(unit);
  record(unit, EventKind::kReshard);
}

void drop_full_parameters(ParamGroup &unit) noexcept {
  release_full_memory(unit);
  for (const ShardedParam &p : unit.params) {
    if (p.param->unit == &unit) p.param->hide(Face::kFull);
  }
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
