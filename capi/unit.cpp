// SPDX-License-Identifier: Apache-2.0
#include "fsdp/gather.hpp"
#include "fsdp/state.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/unit.h>

static_assert(TPFSDP_SHARDED_SHARDED == static_cast<int>(tpfsdp::ShardedState::kSharded) &&
              TPFSDP_SHARDED_UNSHARDED == static_cast<int>(tpfsdp::ShardedState::kUnsharded) &&
              TPFSDP_UNSHARD_MAPPED == static_cast<int>(tpfsdp::UnshardMode::kMapped) &&
              TPFSDP_TRAINING_IDLE == static_cast<int>(tpfsdp::TrainingState::kIdle) &&
              TPFSDP_TRAINING_FORWARD == static_cast<int>(tpfsdp::TrainingState::kForward) &&
              TPFSDP_TRAINING_PRE_BACKWARD == static_cast<int>(tpfsdp::TrainingState::kPreBackward) &&
              TPFSDP_TRAINING_POST_BACKWARD == static_cast<int>(tpfsdp::TrainingState::kPostBackward));

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_unit_get_info(tpfsdp_unit *unit, tpfsdp_unit_info *out_info,
                                   tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    ParamGroup &u = entry.get<ParamGroup>(unit, "unit");
    if (!u.state.root) u.name = u.state.name();  // the tree may still grow above it
    tpfsdp_unit_info info{};
    info.param_count = static_cast<int32_t>(u.params.size());
    info.sharded_state = static_cast<int32_t>(u.sharded_state);
    info.training_state = static_cast<int32_t>(u.training_state);
    info.storage = u.host_memory ? TPFSDP_STORAGE_HOST : TPFSDP_STORAGE_LIBRARY;
    info.pin_count = u.pins.load() - u.owed_unpins.load();
    info.slot = u.slot ? u.slot->number : -1;
    info.unshard_mode = static_cast<int32_t>(u.mode.mode);
    info.layout = u.layout.ownership.is_contiguous ? TPFSDP_LAYOUT_CONTIGUOUS : TPFSDP_LAYOUT_ROWS;
    info.param_dtype = u.state.precision.param_dtype;
    info.reduce_dtype = u.state.precision.reduce_dtype;
    info.shard_bytes = u.shard_bytes();
    info.full_bytes = u.layout.full_bytes;
    info.logical_bytes = u.layout.logical_bytes;
    info.wire_bytes = u.gather_wire_bytes();
    info.grad_bytes = u.layout.grad_bytes;
    info.version = u.version;
    info.unshards = u.unshards;
    info.deferred_reshards = u.deferred_reshards;
    info.mesh = borrowed<tpfsdp_mesh>(u.mesh.get());
    info.module = borrowed<tpfsdp_module>(u.state.modules.front());
    info.unshard_reason = u.mode.reason.c_str();
    info.name = u.name.c_str();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_unit_pin(tpfsdp_unit *unit, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    pin(entry.get<ParamGroup>(unit, "unit"));
  });
}

tpfsdp_status tpfsdp_unit_unpin(tpfsdp_unit *unit, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<ParamGroup>(unit, "unit");
    unpin(*held);
  });
}

}  // extern "C"
