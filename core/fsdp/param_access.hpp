// SPDX-License-Identifier: Apache-2.0
// What may be asked of one parameter, sharded or not: its faces, its place in the whole, its gradient, its switches.
#pragma once

#include "fsdp/gradients.hpp"

namespace tpfsdp {

// Of a sharded parameter; throw STATE naming it otherwise.
ParamGroup &unit_of(const Param &param);
ShardedParam &sharded(const Param &param);

// Throw STATE where the full values are not there, NOT_FOUND where there is no gradient.
const tpfsdp_view &view_of_face(const Param &param, Face face);
// One of full values holds a pin on the unit for its life; one of a shard keeps the tree alive.
Ref<Tensor> tensor_of_face(Param &param, Face face);

struct ShardDescription {
  const int64_t *local_shape = nullptr;
  const int64_t *offsets = nullptr;  // null for a run of elements
  int32_t shard_dim = -1;
  int64_t flat_offset = -1;  // of such a run
  Object *mesh = nullptr;
};
ShardDescription describe_shard(const Param &param);

tpfsdp_view grad_buffer(Param &param, bool accumulate);

// Between steps, the same on all ranks: memory is planned anew at the next.
void set_requires_grad(Param &param, bool requires_grad);
void set_requires_grad(Module &module, bool requires_grad);
void set_tensor(Param &param, Ref<Tensor> tensor);
void zero_gradients(Module &module, bool to_none);

}  // namespace tpfsdp
