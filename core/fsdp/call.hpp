// SPDX-License-Identifier: Apache-2.0
// Call mode: the library calls the host. Steps of the state machine run inside the rank's gate; the host's methods and
// hooks run between them, outside, so that they may call the library. Nothing here is called inside the gate.
#pragma once

#include "fsdp/state.hpp"

namespace tpfsdp {

// Around a method "forward", or one that was registered as such. The outermost call tells the peers of a failure.
void call_forward(Module &module, const std::string &method, void *payload);
// Around "backward"; the outermost call ends the backward of every tree that took part.
void call_backward(Module &module, void *payload);
// As call_forward for a forward method, else the method alone.
void call_method(Module &module, const std::string &method, void *payload);

// Of the manual calls. Throws CALLBACK.
void run_hooks(Module &module, HookKind kind);
// Instead of post_forward when the host's forward failed: the hooks that want to know, then as there.
void fail_forward(Module &module);

// The module's method is framed by pre_forward and post_forward from now on; throws NOT_FOUND without such a method.
void register_forward_method(Module &module, const std::string &method);

}  // namespace tpfsdp
