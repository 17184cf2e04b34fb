// SPDX-License-Identifier: Apache-2.0
// The one call this library is for: what parameters it takes, and how a module becomes sharded, all or nothing.
#pragma once

#include "fsdp/state.hpp"

namespace tpfsdp {

struct ShardOptions {
  ReshardKind reshard = ReshardKind::kAuto;
  int32_t reshard_size = 0;
  InitMode init = InitMode::kVerify;
  UnshardMode unshard_mode = UnshardMode::kAuto;
  Ownership ownership;
  MixedPrecision precision;
  HostMemory host_memory;
  std::vector<const Param *> ignored;
};

// mesh null: the context's default group. On failure, of `read_options` too, no module has changed, and the peers of
// the mesh are told.
void fully_shard(const std::vector<Ref<Module>> &modules, Ref<Mesh> mesh,
                 const std::function<ShardOptions()> &read_options);

// Direct parameters, each once, of the modules that a call on `roots` manages: all below, post-order, without the
// subtrees that an earlier call took.
std::vector<Ref<Param>> managed_params(const std::vector<Ref<Module>> &roots,
                                       const std::vector<const Param *> &ignored);

}  // namespace tpfsdp
