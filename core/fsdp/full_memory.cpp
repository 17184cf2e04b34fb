// SPDX-License-Identifier: Apache-2.0
#include "fsdp/full_memory.hpp"

#include "base/debug.hpp"
#include "device/kernels.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"

#include <cstring>

namespace tpfsdp {
namespace {

void acquire_host_memory(ParamGroup &unit) {
  for (size_t i = 0; i < unit.params.size(); ++i) {
    ShardedParam &p = unit.params[i];
    const int64_t size_bytes = unit.layout.params[i].full_bytes();
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
  unit.set_destination(nullptr);
}

[[noreturn]] void refuse_other_place(const ParamGroup &unit, const std::string &why) {
  fail(TPFSDP_ERR_STATE, "unit ", unit.name, " cannot come back to where its forward saw it: ", why,
       "; close its scope or reshard it first");
}

// Always of this rank: making common memory is a collective.
Slot &add_slot(ParamGroup &unit) {
  Root &root = unit.root();
  Slot &slot = root.slots.emplace_back();
  slot.number = static_cast<int32_t>(root.slots.size()) - 1;
  slot.size_bytes = unit.layout.full_bytes;
  slot.memory = Buffer(slot.size_bytes, &root.account);
  ++root.recorder().counters.spare_slots;
  ++root.recorder().counters.allocations;
  return slot;
}

Acquired acquire_slot(ParamGroup &unit, bool may_wait, bool for_prefetch) {
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
      return Acquired::kNotForPrefetch;
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
  unit.set_destination(slot->readable());
  return Acquired::kYes;
}

}  // namespace

std::byte *Slot::readable() const {
  // Views of it are read-only; the pieces that are aimed there are those of gathers that copy.
  return group ? const_cast<std::byte *>(common.readable()) : memory.data();
}

Acquired acquire_full_memory(ParamGroup &unit, bool may_wait, bool for_prefetch) {
  if (unit.has_destination) return Acquired::kYes;
  if (unit.host_memory) {
    acquire_host_memory(unit);
  } else if (unit.mapped) {
    unit.set_destination(const_cast<std::byte *>(unit.mapped.readable()));
  } else if (unit.slot) {
    const Acquired acquired = acquire_slot(unit, may_wait, for_prefetch);
    if (acquired != Acquired::kYes) return acquired;
  }
  unit.has_destination = true;
  return Acquired::kYes;
}

namespace {

// Writes this rank's shards in the dtype of full values, each to where `target` says.
template <class Target>
void write_own_parts(ParamGroup &unit, Target &&target) {
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ShardedParam &p = unit.params[i];
    const ParamLayout &at = unit.layout.params[i];
    const int64_t count = unit.layout.owned(i, unit.group->rank()).count();
    if (count == 0) continue;
    cast(target(i), at.full_dtype, p.shard, at.dtype, count);
    unit.root().recorder().counters.filled_bytes += dtype_bytes(at.full_dtype, count);
  }
}

Status fill_common(ParamGroup &unit, CommonRegion &common, bool may_wait) {
  if (unit.is_full()) {
#if !defined(TPFSDP_MUTANT_PIN_IGNORED_IN_COMMON_MEMORY)
    if (const int32_t pins = unit.pins.load(); pins > 0)
      fail(TPFSDP_ERR_STATE, "unit ", unit.name, " cannot be gathered again: ", pins,
           " pin(s) of this rank hold the one copy that all ranks of the host use (mode ", mode_name(unit.mode.mode),
           "); release the views of its full parameters");
#endif
    common.release();  // nobody of this rank computes on what is about to be gathered anew
  }
#if defined(TPFSDP_MUTANT_COMMON_FILL_NOT_AWAITED)
  static_cast<void>(may_wait);
#else
  if (common.wait_released(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
#endif
  if (debug_switches().poison && !unit.mapped) poison(unit);
  write_own_parts(unit, [&](size_t i) { return unit.own_part(common.data(), i); });
  return TPFSDP_OK;
}

Status fill_cast_shards(ParamGroup &unit, bool may_wait) {
  if (!unit.cast_shards.data()) unit.make_cast_shards();  // of a spare slot
  // Peers may read what an earlier gather exposed.
  if (unit.last_shards_gather > 0 && unit.group->wait_read(unit.last_shards_gather, may_wait) == TPFSDP_PENDING)
    return TPFSDP_PENDING;
  write_own_parts(unit, [&](size_t i) { return unit.cast_shards.data() + unit.cast_places.offsets[i]; });
  return TPFSDP_OK;
}

}  // namespace

Status fill_own_part(ParamGroup &unit, bool may_wait) {
  CommonRegion *const common = common_of(unit);
  const bool is_slot = common && !unit.mapped;  // others have been there since
#if defined(TPFSDP_MUTANT_STALE_CAST_IS_GATHERED)
  if (!is_slot && (!unit.layout.is_cast || unit.cast_version >= 0)) return TPFSDP_OK;
#else
  if (!is_slot && (!unit.layout.is_cast || unit.cast_version == unit.version)) return TPFSDP_OK;
#endif
  const Status status = common ? fill_common(unit, *common, may_wait) : fill_cast_shards(unit, may_wait);
  if (status == TPFSDP_OK && !is_slot) unit.cast_version = unit.version;
  return status;
}

void release_full_memory(ParamGroup &unit) noexcept {
  for (size_t i = 0; i < unit.params.size(); ++i) {
    ShardedParam &p = unit.params[i];
    if (unit.host_memory && p.full) {
      const int64_t size_bytes = unit.layout.params[i].full_bytes();
      void *data = p.full;
      // A failure to take memory back is the host's to know; nothing here depends on it.
      unit.host_memory(false, *p.param, size_bytes, &data);
      unit.root().host_bytes -= size_bytes;
    }
    p.full = nullptr;
  }
#if !defined(TPFSDP_MUTANT_COMMON_MEMORY_NOT_RELEASED_AT_RESHARD)
  if (unit.has_destination) {
    if (CommonRegion *common = common_of(unit)) common->release();
  }
#endif
  if (unit.held_slot) unit.held_slot->holder = nullptr;
  unit.held_slot = nullptr;
  unit.has_destination = false;
}

void give_own_slot(ParamGroup &unit) { unit.slot = &add_slot(unit); }

void settle_place(ParamGroup &unit) {
  if (!unit.held_slot || unit.held_slot == unit.slot) return;
  if (!unit.post_forward_positions.empty()) refuse_other_place(unit, "it is full elsewhere");
  unit.slot = unit.held_slot;
}

CommonRegion *common_of(ParamGroup &unit) {
  if (unit.mapped) return &unit.mapped;
  return unit.held_slot && unit.held_slot->group ? &unit.held_slot->common : nullptr;
}

void poison(ParamGroup &unit) {
  // In common memory others may compute on the rest.
  const CommonRegion *common = common_of(unit);
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ParamLayout &at = unit.layout.params[i];
    // As bf16, f16, f32 each element is a NaN, the first two and the third signalling; f64 has its own.
    const uint64_t pattern = at.full_dtype == TPFSDP_DTYPE_F64 ? 0x7ff4dead7ff4deadULL : 0x7fbf7fbf7fbf7fbfULL;
    std::byte *const to = common ? unit.own_part(common->data(), i) : unit.params[i].full;
    const int64_t own = unit.layout.owned(i, unit.group->rank()).count();
    const int64_t size_bytes = common ? dtype_bytes(at.full_dtype, own) : at.full_bytes();
    for (int64_t b = 0; b < size_bytes; b += 8)
      std::memcpy(to + b, &pattern, static_cast<size_t>(std::min<int64_t>(8, size_bytes - b)));
  }
}

}  // namespace tpfsdp
