// SPDX-License-Identifier: Apache-2.0
// Where the full parameters of a unit lie while it is full: the host's own memory, a slot of the plan, of this rank or
// common to all, or where the shards of all ranks are mapped.
#pragma once

#include "comm/region.hpp"
#include "module/param.hpp"

#include <functional>

namespace tpfsdp {

class ParamGroup;

// Memory for full parameters in the host's own allocations: acquire sets *data, release takes it back.
using HostMemory = std::function<Status(bool acquire, Param &param, int64_t size_bytes, void **data)>;

// A place for full parameters, shared by units that are never full together.
struct Slot {
  Ref<Group> group;     // null: of this rank alone
  Buffer memory;        // of this rank; or
  CommonRegion common;  // of all ranks of `group`, which it needs until it ends
  int64_t size_bytes = 0;
  int32_t number = 0;
  ParamGroup *holder = nullptr;

  std::byte *readable() const;
  int64_t held_bytes() const { return group ? common.part_bytes() : memory.size_bytes(); }  // in the account
};

enum class Acquired { kYes, kPending, kNotForPrefetch };

// A place for what is gathered next; kNotForPrefetch: it would cost memory outside the plan.
Acquired acquire_full_memory(ParamGroup &unit, bool may_wait, bool for_prefetch);
// Writes what the next gather needs of this rank beside its shards: its part of a common slot once no rank uses what
// lies there, or a copy in the dtype of full values where the last one is older than the shards. OK or PENDING.
Status fill_own_part(ParamGroup &unit, bool may_wait);
// Gives the place back: the host's memory to the host, common memory to the peers that wait for its release.
void release_full_memory(ParamGroup &unit) noexcept;

// A place of its own, which the plan did not foresee; it keeps it until the next plan. Counted.
void give_own_slot(ParamGroup &unit);
// A forward or backward of a unit that is full: where it is full is its place from now on. Throws STATE where an
// earlier forward of this step saw it elsewhere.
void settle_place(ParamGroup &unit);

// The common memory that the unit's next gather is in; null: it copies.
CommonRegion *common_of(ParamGroup &unit);
// Debug: full values that nobody may read any more become signalling NaNs.
void poison(ParamGroup &unit);

}  // namespace tpfsdp
