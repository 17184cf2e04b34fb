// SPDX-License-Identifier: Apache-2.0
#include "fsdp/reduce.hpp"

#include "base/hash.hpp"
#include "device/kernels.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

#include <algorithm>
#include <utility>

namespace tpfsdp {
namespace {

GradSlot &free_grad_slot(ParamGroup &unit) {
  if (!unit.grad_slot->holder || unit.grad_slot->holder == &unit) return *unit.grad_slot;
  // Two units that the plan thought apart are between pre-backward and their reduction together: this one gets its own.
  Root &root = unit.root();
  GradSlot &slot = root.grad_slots.emplace_back();
  slot.memory = Region(*unit.group, unit.layout.grad_bytes, &root.account);
  ++root.recorder().counters.spare_slots;
  ++root.recorder().counters.allocations;
  unit.grad_slot = &slot;
  return slot;
}

ShardedParam &writable(ParamGroup &unit, size_t index) {
  ShardedParam &p = unit.params[index];
  if (unit.layout.params[index].grad_offset < 0)
    fail(TPFSDP_ERR_STATE, "parameter ", p.param->full_name(), " is frozen and takes no gradient");
  // A unit without bytes has no slot; its moments are the same.
  const bool is_open = unit.held_grad_slot || (!unit.grad_slot && (unit.did_pre_backward || unit.scopes > 0));
  if (!is_open)
    fail(TPFSDP_ERR_STATE, "parameter ", p.param->full_name(),
         " takes a gradient between pre_backward and post_backward of unit ", unit.name,
         ", or inside a scope on it; the unit is outside both");
  return p;
}

// Segment mode: the unit has no pre-backward.
void take_grad_slot_of_scope(ParamGroup &unit) {
  if (unit.held_grad_slot || unit.scopes == 0) return;
  unit.root().step([&] { return take_grad_slot(unit, true); });
}

std::byte *buffer_of(const ParamGroup &unit, size_t index) {
  if (!unit.held_grad_slot) return nullptr;
  return unit.held_grad_slot->memory.data() + unit.layout.params[index].grad_offset;
}

void refuse_while_reducing(const ShardedParam &sharded) {
  if (sharded.is_reducing)
    fail(TPFSDP_ERR_STATE, "the gradient of ", sharded.param->full_name(),
         " is being reduced: call end_backward on the root first");
}

int64_t full_elements(const ParamGroup &unit, size_t index) {
  return unit.layout.params[index].rows * unit.layout.params[index].row_elements;
}

std::byte *second_buffer_of(ParamGroup &unit, size_t index) {
  if (!unit.second_gradient.data()) {
    unit.second_gradient = Buffer(unit.layout.grad_bytes, &unit.root().account);
    ++unit.root().recorder().counters.allocations;
  }
  return unit.second_gradient.data() + unit.layout.params[index].grad_offset;
}

void count_copy(ParamGroup &unit, int64_t size_bytes) {
  Counters &counters = unit.root().recorder().counters;
  ++counters.copies;
  counters.copied_bytes += size_bytes;
}

const char *names_of_committed(ParamGroup &unit, bool all) {
  if (all) return unit.reduce_detail;
  std::string names;
  for (const ShardedParam &p : unit.params) {
    if (p.committed) append_text(names, cat(names.empty() ? "" : ",", p.param->full_name()));
  }
  return unit.root().recorder().intern(names);
}

void record_reduction(ParamGroup &unit, bool all) {
  Recorder &recorder = unit.root().recorder();
  if (!recorder.is_on()) return;
  Event event;
  event.kind = EventKind::kReduce;
  event.training_state = static_cast<int32_t>(unit.training_state);
  event.unit = unit.event_name;
  event.detail = names_of_committed(unit, all);
  recorder.record(event);
}

// What takes part: fills the pieces and what ranks must agree on.
struct Part {
  int64_t elements = 0;
  int64_t wire_bytes = 0;
  int64_t bytes = 0;
  tpfsdp_dtype dtype = 0;
  bool all_trainable = true;
};
Part collect(ParamGroup &unit) {
  Part part;
  unit.reduce_pieces.clear();
  unit.reduce_counts.clear();
  for (size_t i = 0; i < unit.params.size(); ++i) {
    ShardedParam &p = unit.params[i];
    if (!p.committed) {
      part.all_trainable = part.all_trainable && !p.param->requires_grad();
      continue;
    }
    const ParamLayout &at = unit.layout.params[i];
    const RowRange rows = rows_of_rank(at.rows, unit.group->size(), unit.group->rank());
    const int64_t element = dtype_bytes(p.param->dtype(), 1);
    TPFSDP_CHECK(part.dtype == 0 || part.dtype == p.param->dtype());
    part.dtype = p.param->dtype();
    part.elements += full_elements(unit, i);
    part.bytes += at.full_bytes();
    part.wire_bytes += rows.count() * at.row_bytes * (unit.group->size() - 1);
    unit.reduce_counts.push_back(i);
    unit.reduce_counts.push_back(static_cast<uint64_t>(full_elements(unit, i)));
    unit.reduce_pieces.push_back({0, p.param->has(Face::kGrad) ? 1 : 0,
                                  (at.grad_offset + rows.begin * at.row_bytes) / element,
                                  rows.count() * at.row_elements, p.grad_shard});
  }
  return part;
}

void reduce_alone(ParamGroup &unit, const Part &part) {
  const std::byte *base = unit.held_grad_slot->memory.data();
  for (const tpfsdp_backend_piece &piece : unit.reduce_pieces) {
    const void *input = base + dtype_bytes(part.dtype, piece.source_offset);
    reduce(TPFSDP_REDUCE_SUM, &input, 1, part.dtype, part.dtype, piece.target, part.dtype, piece.count, 1.0,
           piece.accumulate != 0);
  }
}

void show_gradients(ParamGroup &unit) {
  unit.is_reducing = false;
  for (ShardedParam &p : unit.params) {
    if (!p.is_reducing) continue;
    p.is_reducing = false;
    p.param->show(Face::kGrad, p.grad_shard, p.local_shape);
    if (!p.grad_reduced) continue;
    const ShardWrite write(unit);
    const Status status = p.grad_reduced();
    if (status < 0) {
      ErrorDetail detail;
      detail.status = TPFSDP_ERR_CALLBACK;
      detail.backend_code = status;
      detail.unit = unit.name;
      detail.message = cat("the grad-reduced callback of ", p.param->full_name(), " failed with status ", status);
      throw Failure(std::move(detail));
    }
  }
}

// Of a unit whose gradients have no bytes: nothing to reduce, but there they are.
void show_empty_gradients(ParamGroup &unit) {
  for (ShardedParam &p : unit.params) p.is_reducing = std::exchange(p.committed, false);
  show_gradients(unit);
}

}  // namespace

Status take_grad_slot(ParamGroup &unit, bool may_wait) {
  if (unit.held_grad_slot || !unit.grad_slot) return TPFSDP_OK;
  GradSlot &slot = free_grad_slot(unit);
  if (slot.last_reduce > 0 && unit.group->size() > 1) {
#if !defined(TPFSDP_MUTANT_OWN_REDUCE_NOT_COMPLETED_FIRST)
    // Own reductions first: peers wait for them as this rank waits for theirs.
    if (unit.group->complete(slot.last_reduce, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    finish_reductions(unit.root(), *unit.group, slot.last_reduce);
#endif
#if !defined(TPFSDP_MUTANT_GRAD_SLOT_NOT_AWAITED)
    if (unit.group->wait_read(slot.last_reduce, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
#endif
  }
  slot.last_reduce = 0;
  slot.holder = &unit;
  unit.held_grad_slot = &slot;
  for (ShardedParam &p : unit.params) p.committed = p.buffer_given = p.second_given = false;
  return TPFSDP_OK;
}

std::byte *get_grad_buffer(ParamGroup &unit, size_t index, bool accumulate) {
  take_grad_slot_of_scope(unit);
  ShardedParam &p = writable(unit, index);
  if (p.committed && !accumulate) {
    p.second_given = true;
    return second_buffer_of(unit, index);
  }
  std::byte *buffer = buffer_of(unit, index);
  if (!p.committed && accumulate) zero_bytes(buffer, unit.layout.params[index].full_bytes());
  p.buffer_given = true;
  p.second_given = false;
  return buffer;
}

void commit_gradient(ParamGroup &unit, size_t index) {
  ShardedParam &p = writable(unit, index);
  if (p.second_given) {
    add(buffer_of(unit, index), p.param->dtype(), second_buffer_of(unit, index), p.param->dtype(),
        full_elements(unit, index));
    count_copy(unit, unit.layout.params[index].full_bytes());
  } else if (!p.buffer_given) {
    fail(TPFSDP_ERR_STATE, "parameter ", p.param->full_name(),
         " has no gradient buffer to commit: call get_grad_buffer first");
  }
  p.second_given = p.buffer_given = false;
  p.committed = true;
}

void add_gradient(ParamGroup &unit, size_t index, const tpfsdp_view &gradient) {
  take_grad_slot_of_scope(unit);
  ShardedParam &p = writable(unit, index);
  check_in_host_memory(gradient, p.param->full_name(), false);
  if (!has_shape(gradient, p.param->shape()))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the gradient of ", p.param->full_name(), " has shape ",
         shape_text(shape_of(gradient)), ", the parameter ", shape_text(p.param->shape()));
  if (!is_floating(gradient.dtype))
    fail(TPFSDP_ERR_UNSUPPORTED, "the gradient of ", p.param->full_name(), " has dtype ", dtype_name(gradient.dtype),
         "; f64, f32, f16 or bf16 is needed");
  std::byte *buffer = buffer_of(unit, index);
  if (p.committed) {
    add(buffer, p.param->dtype(), gradient.data, gradient.dtype, full_elements(unit, index));
  } else {
    cast(buffer, p.param->dtype(), gradient.data, gradient.dtype, full_elements(unit, index));
  }
  count_copy(unit, unit.layout.params[index].full_bytes());
  p.committed = true;
}

Status issue_reduction(ParamGroup &unit, bool may_wait) {
  if (!unit.held_grad_slot) {
    if (!unit.grad_slot) show_empty_gradients(unit);
    return TPFSDP_OK;
  }
  Root &root = unit.root();
  const bool has_any = std::any_of(unit.params.begin(), unit.params.end(), [](const auto &p) { return p.committed; });
  if (has_any && unit.is_reducing) {  // a second backward of the unit: its shards are added to, so the first ends now
    if (unit.group->complete(unit.reduce_sequence, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    finish_reductions(root, *unit.group, unit.reduce_sequence);
  }
  if (has_any) {
    const Part part = collect(unit);
    if (!unit.is_posting_reduction) record_reduction(unit, part.all_trainable);
    unit.is_posting_reduction = true;
    if (unit.group->size() > 1) {
      tpfsdp_backend_op op{};
      op.struct_size = sizeof op;
      op.kind = TPFSDP_BACKEND_KIND_REDUCE_SCATTER;
      op.op = TPFSDP_REDUCE_AVG;
      op.dtype = op.reduce_dtype = op.output_dtype = part.dtype;
      op.source = -1;
      op.unit = unit.number;
      op.divisor = unit.group->size();
      op.input = unit.held_grad_slot->memory.data();
      op.input_region = unit.held_grad_slot->memory.backend_region();
      op.element_count = part.elements;
      op.counts_hash = hash_bytes(unit.reduce_counts.data(), unit.reduce_counts.size() * sizeof(uint64_t));
      op.counts_length = static_cast<int64_t>(unit.reduce_counts.size());
      op.pieces = unit.reduce_pieces.data();
      op.piece_count = static_cast<int64_t>(unit.reduce_pieces.size());
      if (unit.group->submit(op, part.wire_bytes, may_wait, &unit.reduce_sequence) == TPFSDP_PENDING)
        return TPFSDP_PENDING;
      unit.reduce_generation = unit.group->generation();
      unit.held_grad_slot->last_reduce = unit.reduce_sequence;
      root.reductions.push_back(&unit);
    } else {
      reduce_alone(unit, part);
    }
    unit.is_posting_reduction = false;
    unit.is_reducing = true;
    root.recorder().counters.reduced_bytes += part.bytes;
    for (ShardedParam &p : unit.params) {
      p.is_reducing = p.committed;
      p.committed = false;
    }
  }
  unit.held_grad_slot->holder = nullptr;
  unit.held_grad_slot = nullptr;
  if (has_any && unit.group->size() == 1) show_gradients(unit);
  return TPFSDP_OK;
}

void finish_reductions(Root &root, const Group &group, int64_t sequence) {
  std::vector<ParamGroup *> &pending = root.reductions;
  for (size_t i = 0; i < pending.size();) {
    ParamGroup &unit = *pending[i];
    if (unit.group.get() != &group || unit.reduce_sequence > sequence) {
      ++i;
      continue;
    }
    refuse_given_up(unit, unit.reduce_generation, "reduction");
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    show_gradients(unit);
  }
}

void set_gradient(ShardedParam &sharded, const tpfsdp_view *gradient) {
  Param &param = *sharded.param;
  refuse_while_reducing(sharded);
  if (!gradient) {
    param.hide(Face::kGrad);
    return;
  }
  if (!param.requires_grad())
    fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(), " is frozen and takes no gradient");
  if (sharded.local_elements() > 0 && !sharded.grad_shard)
    fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(),
         " has no memory for a gradient yet: call tpfsdp_root_prepare first");
  check_in_host_memory(*gradient, param.full_name(), false);
  if (!is_floating(gradient->dtype))
    fail(TPFSDP_ERR_UNSUPPORTED, "the gradient of ", param.full_name(), " (", dtype_name(param.dtype()), ") has dtype ",
         dtype_name(gradient->dtype), "; f64, f32, f16 or bf16 is needed");
  if (!has_shape(*gradient, sharded.local_shape))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the gradient shard of ", param.full_name(), " has shape ",
         shape_text(shape_of(*gradient)), ", the local shard ", shape_text(sharded.local_shape));
  cast(sharded.grad_shard, param.dtype(), gradient->data, gradient->dtype, sharded.local_elements());
  param.show(Face::kGrad, sharded.grad_shard, sharded.local_shape);
}

void zero_gradient(ShardedParam &sharded, bool to_none) {
  Param &param = *sharded.param;
  refuse_while_reducing(sharded);
  if (!param.has(Face::kGrad)) return;
  if (to_none) {
    param.hide(Face::kGrad);
  } else {
    zero_bytes(sharded.grad_shard, dtype_bytes(param.dtype(), sharded.local_elements()));
  }
}

}  // namespace tpfsdp
