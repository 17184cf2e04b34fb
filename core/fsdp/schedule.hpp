// SPDX-License-Identifier: Apache-2.0
// In which order units are wanted: recorded by forward, read backwards by backward, which gathers one ahead; or as the
// program's own lists say.
#pragma once

#include "fsdp/param_group.hpp"
#include "fsdp/slot_plan.hpp"

namespace tpfsdp {

void record_post_forward(Root &root, ParamGroup &unit);
// Starts the gathers that the unit's list asks for, or, without a list, that of the unit whose forward ended before
// this one's; nothing if none did.
Status prefetch_in_backward(Root &root, ParamGroup &unit, bool may_wait);
void forget_order(Root &root);

// The unit whose forward ended last is gathered ahead while this one's backward runs: where the plan thought them
// apart, this one gets a place of its own, before its forward shows it to the host.
void part_from_last(const Root &root, ParamGroup &unit);

using PrefetchList = std::vector<std::weak_ptr<ModuleState>>;
// Starts the gathers of a list, in order, as part of `pass`.
Status prefetch_list(Root &root, const PrefetchList &list, TrainingState pass, bool may_wait);
// Positions in root.units of what the lists make full together: what is gathered ahead stays until its turn, or, where
// that is over, until the end. `post_order`: of root.units.
UnitPairs prefetched_together(const Root &root, const std::vector<int32_t> &post_order);

}  // namespace tpfsdp
