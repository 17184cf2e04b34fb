// SPDX-License-Identifier: Apache-2.0
// Full gradients until their reduction: where the host writes them, when they count, and where they add up without
// sync.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// A place for the unit's full gradients, which no peer reads any more; OK at once when it has one.
Status take_grad_slot(ParamGroup &unit, bool may_wait);
void let_go_of_grad_slot(ParamGroup &unit) noexcept;

// The host's ways to hand a gradient over; throw STATE at the wrong moment.
std::byte *get_grad_buffer(ParamGroup &unit, size_t index, bool accumulate);
void commit_gradient(ParamGroup &unit, size_t index);
void add_gradient(ParamGroup &unit, size_t index, const tpfsdp_view &gradient);

// Adds what this backward brought to what earlier ones left.
Status accumulate(ParamGroup &unit, bool may_wait);
// Where the switch says so, trainable parameters without a gradient count as zero; one of a unit that never was full
// has nothing to say.
Status commit_unused(ParamGroup &unit, bool may_wait);

// The gradient shard: what the reduction leaves, or the host puts there.
void set_gradient(ShardedParam &sharded, const tpfsdp_view *gradient);
void zero_gradient(ShardedParam &sharded, bool to_none);

// Gives back what is between pre-backward and reduction, and forgets every gradient.
void drop_gradients(ParamGroup &unit) noexcept;

}  // namespace tpfsdp
