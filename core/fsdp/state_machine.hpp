// SPDX-License-Identifier: Apache-2.0
// A module in a step: what happens before and after its forward and its backward, and at the end of each backward.
// Every function may be called again after PENDING and goes on from there.
#pragma once

#include "fsdp/state.hpp"

namespace tpfsdp {

Status pre_forward(Module &module, bool may_wait);
void post_forward(Module &module);
Status pre_backward(Module &module, bool may_wait);
Status post_backward(Module &module, bool may_wait);
Status end_backward(Module &root, bool may_wait);
// The end of the step, where end_backward leaves it to this; before the first forward nothing.
Status finalize_backward(Module &root, bool may_wait);

}  // namespace tpfsdp
