// SPDX-License-Identifier: Apache-2.0
#include "fsdp/write_window.hpp"

#include "base/debug.hpp"
#include "device/kernels.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/reduce.hpp"
#include "fsdp/root.hpp"

namespace tpfsdp {
namespace {

void protect_shards(Root &root, bool read_only) {
  if (!debug_switches().read_only) return;
  for (ParamGroup *unit : root.units) unit->protect_shards(read_only);
}

void record(Root &root, const char *operation) {
  Event event;
  event.kind = EventKind::kWrite;
  event.operation = operation;
  root.recorder().record(event);
}

void open(Root &root, Window window) {
  root.window = window;
  for (ParamGroup *unit : root.units) forget_part(*unit);  // what is written now is not in it
  protect_shards(root, false);
  record(root, window == Window::kExplicit ? "begin_write" : "open");
}

template <class Unwanted>
std::string names_of(const Root &root, Unwanted unwanted) {
  std::string names;
  for (const ParamGroup *unit : root.units) {
    if (unwanted(*unit)) append_text(names, cat(names.empty() ? "" : ", ", unit->name));
  }
  return names;
}

void refuse_pins(const Root &root) {
  const std::string pinned = names_of(root, [](const ParamGroup &unit) { return unit.pins.load() > 0; });
  if (!pinned.empty())
    fail(TPFSDP_ERR_STATE, "a write window cannot open while full parameters are pinned: unit(s) ", pinned,
         "; release the views of their full parameters first");
}

// What other ranks compute on: a unit that stays full would change under them. Posted is as good as full.
void refuse_common(const Root &root, const char *when, bool also_shared) {
  const std::string full = names_of(root, [&](const ParamGroup &unit) {
    const bool is_used = unit.is_full() || (unit.is_gathering && !unit.is_prefetch);
    return is_used && (unit.has_mapped_shards() || (also_shared && unit.mode.is_common()));
  });
  if (!full.empty())
    fail(TPFSDP_ERR_STATE, "unit(s) ", full, " are full ", when,
         ", in mode shared or mapped, where a host has one copy: reshard them first, or close their scopes; between "
         "several backwards set_is_last_backward(false) keeps them");
}

// Mapped shards are what peers compute on, until they have resharded.
void wait_mapped_released(Root &root) {
#if !defined(TPFSDP_MUTANT_MAPPED_WINDOW_NOT_AWAITED)
  for (ParamGroup *unit : root.units) {
    if (unit->has_mapped_shards()) unit->mapped.wait_released(true);
  }
#else
  static_cast<void>(root);
#endif
}

Status complete_all(Root &root, bool may_wait) {
  for (const Ref<Group> &group : root.groups) {
    const int64_t last = group->sequence();
    if (group->complete(last, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    finish_reductions(root, *group, last);
  }
  return TPFSDP_OK;
}

}  // namespace

void close_window(Root &root) {
  if (root.window == Window::kClosed) return;
  root.window = Window::kClosed;
  for (ParamGroup *unit : root.units) ++unit->version;
  protect_shards(root, true);
  record(root, "close");
}

Status open_window_after_backward(Root &root, bool may_wait) {
  if (root.end_phase == 0) {
    const Status status = root.step([&] {
      if (root.window == Window::kExplicit)
        fail(TPFSDP_ERR_STATE, "end_backward inside an explicit write window: call tpfsdp_shards_end_write first");
      if (complete_all(root, may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
      const std::string pending = names_of(root, [](const ParamGroup &unit) { return unit.is_gathering; });
      if (!pending.empty())
        fail(TPFSDP_ERR_STATE, "a gather is under way at the end of backward: unit(s) ", pending,
             "; wait for their unshard first");
      refuse_pins(root);
#if !defined(TPFSDP_MUTANT_COMMON_UNIT_KEPT_OVER_A_STEP)
      refuse_common(root, "at the end of a last backward", true);
#endif
      for (const Ref<Group> &group : root.groups) {
        if (group->has_told_failure())
          fail(TPFSDP_ERR_STATE, "a collective on group ", group->name(),
               " failed on this rank: call reset_iter_state on the root of every rank, then go on");
      }
      for (const Ref<Group> &group : root.groups) group->publish_step();
      return TPFSDP_OK;
    });
    if (status != TPFSDP_OK) return status;
    root.end_phase = 1;
  }
  // Past this point peers may open their windows, so nothing of this rank can fail the step for them any more.
  root.refuse_if_failed();
  for (const Ref<Group> &group : root.groups) {
    try {
      if (group->wait_step(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    } catch (const Failure &failure) {
      if (failure.status() != TPFSDP_ERR_CANCELLED) root.failed(failure);
      throw;
    }
  }
  root.end_phase = 0;
  ++root.windows_opened;
  open(root, Window::kOpen);
  return TPFSDP_OK;
}

void begin_write(Root &root) {
  root.refuse_if_failed();
  root.refuse_unfinished_end();
  if (root.window == Window::kExplicit)
    fail(TPFSDP_ERR_STATE, "a write window is open already: call tpfsdp_shards_end_write first");
#if !defined(TPFSDP_MUTANT_WRITE_WINDOW_IGNORED)
  if (root.forward_root || root.is_in_backward)
    fail(TPFSDP_ERR_STATE, "a write window cannot open inside a step: a ", root.is_in_backward ? "backward" : "forward",
         " of this tree has not ended");
#endif
  refuse_pins(root);
  refuse_common(root, "where a write window is to open", false);
  try {
    complete_all(root, true);
    for (ParamGroup *unit : root.units) {
      if (unit->is_prefetch) drop_prefetch(*unit, true);  // old when it is wanted, and mapped it would be waited for
    }
    for (const Ref<Group> &group : root.groups) group->wait_read(group->sequence(), true);
    wait_mapped_released(root);
  } catch (const Failure &failure) {
    if (failure.status() != TPFSDP_ERR_CANCELLED)
      root.failed(failure);  // nothing is under way here: asked again, it waits again
    throw;
  }
  open(root, Window::kExplicit);
}

void end_write(Root &root) {
  if (root.window != Window::kExplicit)
    fail(TPFSDP_ERR_STATE, "no write window is open: call tpfsdp_shards_begin_write first");
  close_window(root);
}

void replace_shard(ParamGroup &unit, size_t index, const Tensor &values) {
  ShardedParam &p = unit.params[index];
  if (values.shape() != p.local_shape || values.dtype() != p.param->dtype())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the shard of ", p.param->full_name(), " on ", unit.describe_rank(), " is ",
         dtype_name(p.param->dtype()), " ", shape_text(p.local_shape), ", the tensor ", dtype_name(values.dtype()), " ",
         shape_text(values.shape()));
  check_in_host_memory(values.view(), p.param->full_name(), false);
  Root *root = unit.state.root.get();
  const bool opens = root && root->window == Window::kClosed;
  if (opens) begin_write(*root);
  if (values.view().size_bytes > 0) copy_bytes(p.shard, values.view().data, values.view().size_bytes);
  p.value_hash = 0;  // the values of the start do not hold any more
  p.is_unwritten = false;
  if (opens) end_write(*root);
}

ShardWrite::ShardWrite(ParamGroup &unit) : unit_(unit) {
  // What was made of the shards is old now, though no window has been open.
  unit_.cast_version = -1;
  if (unit_.part && !unit_.part->is_held) unit_.part->version = -1;
  if (debug_switches().read_only) unit_.protect_shards(false);
}

ShardWrite::~ShardWrite() {
  if (!debug_switches().read_only || !unit_.state.root || unit_.root().window != Window::kClosed) return;
  try {
    unit_.protect_shards(true);
  } catch (const Failure &) {
    // The shards stay writable: only a debug check is lost.
  }
}

}  // namespace tpfsdp
