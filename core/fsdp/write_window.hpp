// SPDX-License-Identifier: Apache-2.0
// When shards may be written: peers read them in place, so only while no gather can read them. A window opens by itself
// when every rank has come to the end of a backward (all ranks apply the optimizer or none does), or by begin_write.
#pragma once

#include "fsdp/param_group.hpp"

namespace tpfsdp {

// The next gather is about to expose shards: they may not be written from here on.
void close_window(Root &root);

// The end of backward: completes all collectives, tells the peers and waits for them, opens the window. An interrupt of
// that wait posts nothing; the call may be repeated.
Status open_window_after_backward(Root &root, bool may_wait);

void begin_write(Root &root);
void end_write(Root &root);

// Replaces this rank's part of a parameter by a tensor of its shape, in a window of its own if none is open.
void replace_shard(ParamGroup &unit, size_t index, const Tensor &values);

// The unit's shards are writable for the length of a callback, or of a write by the library inside an open window.
class ShardWrite {
 public:
  explicit ShardWrite(ParamGroup &unit);
  ShardWrite(const ShardWrite &) = delete;
  ShardWrite &operator=(const ShardWrite &) = delete;
  ~ShardWrite();

 private:
  ParamGroup &unit_;
};

}  // namespace tpfsdp
