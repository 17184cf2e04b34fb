// SPDX-License-Identifier: Apache-2.0
// What stays of full parameters between forward and backward with reshard_after_forward SIZE(k): each of k ranks keeps
// one slice of the full buffer, and backward gathers among them instead of over the whole mesh.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// Makes the groups of k ranks that units of the tree need and do not have yet. Collective; PENDING where it would wait.
Status make_post_forward_groups(Root &root, bool may_wait);
// Memory for the part of a unit, or none where it keeps none any more.
void lay_out_part(ParamGroup &unit);

// Copies this rank's part out of the full values, once per version. Never waits.
void keep_part(ParamGroup &unit);
void forget_part(ParamGroup &unit) noexcept;
// The next gather of the unit is among those who hold parts.
bool has_fresh_part(const ParamGroup &unit);

}  // namespace tpfsdp
