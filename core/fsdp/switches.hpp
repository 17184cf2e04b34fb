// SPDX-License-Identifier: Apache-2.0
// What a program may change about sharded modules once they are: each setter holds until the next. With `recurse` for
// every sharded module below as well.
#pragma once

#include "fsdp/state.hpp"

namespace tpfsdp {

void set_requires_gradient_sync(Module &module, bool enabled, bool recurse);
void set_reduce_scatter_unused_params(Module &module, bool enabled, bool recurse);
void set_reshard_after_backward(Module &module, bool enabled, bool recurse);
void set_unshard_in_backward(Module &module, bool enabled);
// kAlways or kNever. Memory is planned anew for the next step that begins with nothing under way.
void set_reshard_after_forward(Module &module, ReshardKind kind, bool recurse);
void set_forward_prefetch(Module &module, const std::vector<Ref<Module>> &targets);
void set_backward_prefetch(Module &module, const std::vector<Ref<Module>> &targets);

// Of the whole tree.
void set_is_last_backward(Module &module, bool enabled);
// Of the root; throws STATE inside a backward.
void set_manual_backward_finalization(Module &module, bool enabled);

}  // namespace tpfsdp
