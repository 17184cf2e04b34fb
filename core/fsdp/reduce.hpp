// SPDX-License-Identifier: Apache-2.0
// Full gradients: where the host writes them, when they count, and their way to averaged shards.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// A place for the unit's full gradients, which no peer reads any more; OK at once when it has one.
Status take_grad_slot(ParamGroup &unit, bool may_wait);

// The host's ways to hand a gradient over; throw STATE at the wrong moment.
std::byte *get_grad_buffer(ParamGroup &unit, size_t index, bool accumulate);
void commit_gradient(ParamGroup &unit, size_t index);
void add_gradient(ParamGroup &unit, size_t index, const tpfsdp_view &gradient);

// Starts the reduction of what is committed; nothing if nothing is.
Status issue_reduction(ParamGroup &unit, bool may_wait);
// Shows the gradient shards of all reductions of the group up to a sequence that is complete.
void finish_reductions(Root &root, const Group &group, int64_t sequence);

void set_gradient(ShardedParam &sharded, const tpfsdp_view *gradient);
void zero_gradient(ShardedParam &sharded, bool to_none);

}  // namespace tpfsdp
