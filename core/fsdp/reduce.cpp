// SPDX-License-Identifier: Apache-2.0
#include "fsdp/reduce.hpp"

#include "base/hash.hpp"
#include "device/kernels.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/gradients.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

#include <algorithm>
#include <utility>

namespace tpfsdp {
namespace {

// In the next reduction: committed in this backward, or added up before it.
bool takes_part(const ShardedParam &p) { return p.committed || p.accumulated; }

void mark_reducing(ParamGroup &unit) {
  for (ShardedParam &p : unit.params) {
    p.is_reducing = takes_part(p);
    p.committed = p.accumulated = false;
  }
}

const char *names_of_committed(ParamGroup &unit, bool all) {
  if (all) return unit.reduce_detail;
  std::string names;
  for (const ShardedParam &p : unit.params) {
    if (takes_part(p)) append_text(names, cat(names.empty() ? "" : ",", p.param->full_name()));
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
  GradSlot *source = nullptr;
  int64_t elements = 0;
  int64_t wire_bytes = 0;
  int64_t bytes = 0;
  tpfsdp_dtype dtype = 0;  // of the source
  tpfsdp_dtype reduce_dtype = 0;
  tpfsdp_dtype output_dtype = 0;
  bool all_trainable = true;
};
Part collect(ParamGroup &unit) {
  Part part;
  part.source = unit.held_grad_slot ? unit.held_grad_slot : &unit.accumulator;
  const bool from_sum = part.source == &unit.accumulator;
  unit.reduce_pieces.clear();
  unit.reduce_counts.clear();
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ShardedParam &p = unit.params[i];
    if (!takes_part(p)) {
      part.all_trainable = part.all_trainable && !p.param->requires_grad();
      continue;
    }
    const ParamLayout &at = unit.layout.params[i];
    const ElementRange owned = unit.layout.owned(i, unit.group->rank());
    const tpfsdp_dtype dtype = from_sum ? at.reduce_dtype : at.full_dtype;
    TPFSDP_CHECK(part.dtype == 0 || part.dtype == dtype);
    part.dtype = dtype;
    part.reduce_dtype = at.reduce_dtype;
    part.output_dtype = at.dtype;
    part.elements += at.elements();
    part.bytes += dtype_bytes(dtype, at.elements());
    part.wire_bytes += dtype_bytes(dtype, owned.count()) * (unit.group->size() - 1);
    unit.reduce_counts.push_back(i);
    unit.reduce_counts.push_back(static_cast<uint64_t>(at.elements()));
    const int64_t offset = (from_sum ? at.sum_offset : at.grad_offset) / dtype_bytes(dtype, 1);
    unit.reduce_pieces.push_back(
        {0, p.param->has(Face::kGrad) ? 1 : 0, offset + owned.begin, owned.count(), p.grad_shard});
  }
  return part;
}

void reduce_alone(ParamGroup &unit, const Part &part) {
  const std::byte *base = part.source->memory.data();
  for (const tpfsdp_backend_piece &piece : unit.reduce_pieces) {
    const void *input = base + dtype_bytes(part.dtype, piece.source_offset);
    reduce(TPFSDP_REDUCE_SUM, &input, 1, part.dtype, part.reduce_dtype, piece.target, part.output_dtype, piece.count,
           1.0, piece.accumulate != 0);
  }
}

// A callback may write its shard.
bool may_write_shards(const ParamGroup &unit) {
  return std::any_of(unit.params.begin(), unit.params.end(),
                     [](const ShardedParam &p) { return bool(p.grad_reduced); });
}

void show_gradients(ParamGroup &unit) {
  unit.is_reducing = false;
  // Who posts a reduction has resharded before, unless a pin or a switch keeps the unit full: then this waits, or
  // fails.
  if (unit.has_mapped_shards() && may_write_shards(unit)) unit.mapped.wait_released(true);
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
  mark_reducing(unit);
  show_gradients(unit);
}

Status finish_own_reduction(ParamGroup &unit, bool may_wait) {
  if (!unit.is_reducing) return TPFSDP_OK;
  if (unit.group->complete(unit.reduce_sequence, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  finish_reductions(unit.root(), *unit.group, unit.reduce_sequence);
  return TPFSDP_OK;
}

Status issue_reduction(ParamGroup &unit, bool may_wait) {
  Root &root = unit.root();
  if (std::none_of(unit.params.begin(), unit.params.end(), takes_part)) {
    let_go_of_grad_slot(unit);
    return TPFSDP_OK;
  }
  // A second backward of the unit: its shards are added to, so the first ends now.
  if (finish_own_reduction(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  const Part part = collect(unit);
  if (!unit.is_posting_reduction) record_reduction(unit, part.all_trainable);
  unit.is_posting_reduction = true;
  if (unit.group->size() > 1) {
    tpfsdp_backend_op op{};
    op.struct_size = sizeof op;
    op.kind = TPFSDP_BACKEND_KIND_REDUCE_SCATTER;
    op.op = TPFSDP_REDUCE_AVG;
    op.dtype = part.dtype;
    op.reduce_dtype = part.reduce_dtype;
    op.output_dtype = part.output_dtype;
    op.source = -1;
    op.unit = unit.number;
    op.divisor = unit.group->size();
    op.input = part.source->memory.data();
    op.input_region = part.source->memory.backend_region();
    op.element_count = part.elements;
    op.counts_hash = hash_bytes(unit.reduce_counts.data(), unit.reduce_counts.size() * sizeof(uint64_t));
    op.counts_length = static_cast<int64_t>(unit.reduce_counts.size());
    op.pieces = unit.reduce_pieces.data();
    op.piece_count = static_cast<int64_t>(unit.reduce_pieces.size());
    if (unit.group->submit(op, part.wire_bytes, may_wait, &unit.reduce_sequence) == TPFSDP_PENDING)
      return TPFSDP_PENDING;
    unit.reduce_generation = unit.group->generation();
    part.source->last_reduce = unit.reduce_sequence;
    root.reductions.push_back(&unit);
  } else {
    reduce_alone(unit, part);
  }
  unit.is_posting_reduction = false;
  unit.is_reducing = true;
  root.recorder().counters.reduced_bytes += part.bytes;
  mark_reducing(unit);
  let_go_of_grad_slot(unit);
  if (unit.group->size() == 1) show_gradients(unit);
  return TPFSDP_OK;
}

}  // namespace

Status finish_writes(ParamGroup &unit, bool may_wait) {
  return unit.is_reducing && may_write_shards(unit) ? finish_own_reduction(unit, may_wait) : TPFSDP_OK;
}

Status end_gradients(ParamGroup &unit, bool may_wait) {
  if (!unit.state.switches.reduces) return accumulate(unit, may_wait);
  // Before a reduction is posted: a call that comes again has done this.
  if (!unit.is_posting_reduction) {
    if (commit_unused(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    if (unit.has_accumulated() && accumulate(unit, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  if (!unit.grad_slot) {
    show_empty_gradients(unit);
    return TPFSDP_OK;
  }
  return issue_reduction(unit, may_wait);
}

void finish_reductions(Root &root, const Group &group, int64_t sequence) {
  std::vector<ParamGroup *> &pending = root.reductions;
  for (size_t i = 0; i < pending.size();) {
    ParamGroup &unit = *pending[i];
    if (unit.group.get() != &group || unit.reduce_sequence > sequence) {
      ++i;
      continue;
    }
    refuse_given_up(unit, group, unit.reduce_generation, "reduction");
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    show_gradients(unit);
  }
}

}  // namespace tpfsdp
