// SPDX-License-Identifier: Apache-2.0
// In which order units are wanted: recorded by forward, read backwards by backward, which gathers one ahead.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

void record_post_forward(Root &root, ParamGroup &unit);
// Starts the gather of the unit whose forward came before this one's; nothing if none did.
Status prefetch_before(Root &root, ParamGroup &unit, bool may_wait);
void forget_order(Root &root);

}  // namespace tpfsdp
