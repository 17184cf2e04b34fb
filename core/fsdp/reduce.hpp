// SPDX-License-Identifier: Apache-2.0
// From full gradients to averaged shards of them.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// The end of a backward of the unit, its gradients handed over: with sync their reduction starts, without they are
// added to what earlier backwards left. Nothing where there are none.
Status end_gradients(ParamGroup &unit, bool may_wait);
// Before shards of the unit are read: what its callbacks write after a reduction that is under way is in them.
Status finish_writes(ParamGroup &unit, bool may_wait);
// Shows the gradient shards of all reductions of the group up to a sequence that is complete.
void finish_reductions(Root &root, const Group &group, int64_t sequence);

}  // namespace tpfsdp
