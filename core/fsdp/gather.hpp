// SPDX-License-Identifier: Apache-2.0
// From shards to full parameters and back: issue (acquire a destination, post), wait (complete, show), reshard (hide,
// give the destination back), and the pins that hold a unit full.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// Full, and no write window has been open since: an unshard would bring nothing new.
bool has_fresh_values(const ParamGroup &unit);

// Starts the gather of a unit that is neither full nor under way. `for_prefetch`: does nothing where that would cost
// memory outside the plan.
Status issue_gather(ParamGroup &unit, bool may_wait, bool for_prefetch);
// The unit is full when this is OK.
Status wait_gather(ParamGroup &unit, bool may_wait);
Status unshard(ParamGroup &unit, bool may_wait);
// Ends a gather that was asked for ahead and that nobody needs after all.
Status drop_prefetch(ParamGroup &unit, bool may_wait);

// Frees the full parameters, now or at the last unpin. Never waits.
void reshard(ParamGroup &unit);
// The same without asking: gives the destination back and hides the faces.
void drop_full_parameters(ParamGroup &unit) noexcept;

// A group may serve several trees, and programs: a failure of one gives up what all have under way there.
void refuse_given_up(const ParamGroup &unit, const Group &group, int64_t generation, const char *what);

void pin(ParamGroup &unit);
// From any thread.
void unpin(ParamGroup &unit);
void take_pins_back(ParamGroup &unit, int32_t count) noexcept;

}  // namespace tpfsdp
