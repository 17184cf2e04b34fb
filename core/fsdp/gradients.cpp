// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gradients.hpp"

#include "device/kernels.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"

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

GradSlot &accumulator_of(ParamGroup &unit) {
  if (!unit.accumulator.memory.data()) {
    Root &root = unit.root();
    unit.accumulator.memory = Region(*unit.group, unit.layout.sum_bytes, &root.account);
    ++root.recorder().counters.allocations;
  }
  return unit.accumulator;
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

// Gradients have the dtype that they add up in.
bool adds_up_as_it_comes(const ParamGroup &unit) {
  return std::all_of(unit.layout.params.begin(), unit.layout.params.end(),
                     [](const ParamLayout &at) { return at.grad_offset < 0 || at.full_dtype == at.reduce_dtype; });
}

// Peers may still read what an earlier reduction exposed.
Status wait_unread(ParamGroup &unit, GradSlot &slot, bool may_wait) {
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
  return TPFSDP_OK;
}

}  // namespace

void let_go_of_grad_slot(ParamGroup &unit) noexcept {
  if (unit.held_grad_slot) unit.held_grad_slot->holder = nullptr;
  unit.held_grad_slot = nullptr;
}

Status take_grad_slot(ParamGroup &unit, bool may_wait) {
  if (unit.held_grad_slot || !unit.grad_slot) return TPFSDP_OK;
  // The first gradients without sync are written where later ones are added to them.
  const bool in_place = !unit.state.switches.reduces && !unit.has_accumulated() && adds_up_as_it_comes(unit);
  GradSlot &slot = in_place ? accumulator_of(unit) : free_grad_slot(unit);
  if (wait_unread(unit, slot, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
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
    const tpfsdp_dtype dtype = unit.layout.params[index].full_dtype;
    add(buffer_of(unit, index), dtype, second_buffer_of(unit, index), dtype, unit.layout.params[index].elements());
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
  const ParamLayout &at = unit.layout.params[index];
  std::byte *buffer = buffer_of(unit, index);
  if (p.committed) {
    add(buffer, at.full_dtype, gradient.data, gradient.dtype, at.elements());
  } else {
    cast(buffer, at.full_dtype, gradient.data, gradient.dtype, at.elements());
  }
  count_copy(unit, at.full_bytes());
  p.committed = true;
}

Status accumulate(ParamGroup &unit, bool may_wait) {
  if (!unit.held_grad_slot) {
    if (!unit.grad_slot) {  // no bytes
      for (ShardedParam &p : unit.params) p.accumulated = std::exchange(p.committed, false) || p.accumulated;
    }
    return TPFSDP_OK;
  }
  GradSlot &sum = accumulator_of(unit);
  const bool in_place = unit.held_grad_slot == &sum;
  if (!in_place && wait_unread(unit, sum, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  for (size_t i = 0; i < unit.params.size(); ++i) {
    ShardedParam &p = unit.params[i];
    if (!std::exchange(p.committed, false)) continue;
    if (!in_place) {
      const ParamLayout &at = unit.layout.params[i];
      std::byte *to = sum.memory.data() + at.sum_offset;
#if defined(TPFSDP_MUTANT_ACCUMULATE_WITHOUT_SYNC_OVERWRITES)
      p.accumulated = false;
#endif
      if (p.accumulated) {
        add(to, at.reduce_dtype, buffer_of(unit, i), at.full_dtype, at.elements());
      } else {
        cast(to, at.reduce_dtype, buffer_of(unit, i), at.full_dtype, at.elements());
      }
      count_copy(unit, at.sum_bytes());
    }
    p.accumulated = true;
  }
  let_go_of_grad_slot(unit);
  return TPFSDP_OK;
}

Status commit_unused(ParamGroup &unit, bool may_wait) {
  if (!unit.state.switches.reduces_unused || unit.unshards == 0) return TPFSDP_OK;
  if (!unit.has_accumulated() && take_grad_slot(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  const bool adds_up = unit.has_accumulated();
  std::byte *base = adds_up               ? unit.accumulator.memory.data()
                    : unit.held_grad_slot ? unit.held_grad_slot->memory.data()
                                          : nullptr;
  for (size_t i = 0; i < unit.params.size(); ++i) {
    ShardedParam &p = unit.params[i];
    const ParamLayout &at = unit.layout.params[i];
    if (!p.param->requires_grad() || p.committed || p.accumulated) continue;
    if (base && adds_up) zero_bytes(base + at.sum_offset, at.sum_bytes());
    if (base && !adds_up) zero_bytes(base + at.grad_offset, at.full_bytes());
    (adds_up ? p.accumulated : p.committed) = true;
  }
  return TPFSDP_OK;
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

void drop_gradients(ParamGroup &unit) noexcept {
  let_go_of_grad_slot(unit);
  unit.accumulator.last_reduce = 0;
  unit.is_reducing = unit.is_posting_reduction = false;
  for (ShardedParam &p : unit.params) {
    p.buffer_given = p.second_given = p.committed = p.accumulated = p.is_reducing = false;
    p.param->hide(Face::kGrad);
  }
}

}  // namespace tpfsdp
