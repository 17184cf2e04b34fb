// SPDX-License-Identifier: Apache-2.0
// The end of a failed step: what a failure tells the peers, and how all ranks come back to one clean start.
#include "fsdp/gather.hpp"
#include "fsdp/gradients.hpp"
#include "fsdp/post_forward.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

#include <algorithm>

#include <utility>

namespace tpfsdp {

namespace {

// Short enough to need no memory.
constexpr const char *kOutOfMemory = "out of memory";

}  // namespace

const Failure &Root::out_of_memory() {
  static const Failure failure = [] {
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_OUT_OF_MEMORY;
    detail.message = kOutOfMemory;
    return Failure(std::move(detail));
  }();
  return failure;
}

Failure Root::with_rank(const Failure &failure) const {
  if (failure.detail()->origin || failure.detail()->rank >= 0) return failure;
  ErrorDetail detail = *failure.detail();
  detail.rank = context->rank().rank();
  detail.group = context->group().name();
  append_text(detail.message, cat(" (", context->rank().describe(), ")"));
  return Failure(std::move(detail));
}

void Root::failed(const Failure &failure) noexcept {
  std::string text;
  try {
    text = failure.what();
  } catch (const std::bad_alloc &) {
    text = kOutOfMemory;
  }
  // What came from a peer of a group, all ranks of that group know; those of the others wait for this rank.
  const Status status = failure.status();
  const bool is_verdict = status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_MISMATCH || is_sticky(status);
  const auto is_told = [&](const Group &group) { return is_verdict && failure.detail()->origin == &group; };
  // On every group before giving up on any: a peer may be waiting on each of them.
  for (const Ref<Group> &group : groups) {
    if (!is_told(*group)) group->post_failure(status, text);
  }
  for (const Ref<Group> &group : groups) {
    if (!is_told(*group)) group->give_up();
  }
  if (!std::exchange(has_failed_, true)) failure_text_ = std::move(text);
}

void Root::refuse_without_module() const {
  if (!module)
    fail(TPFSDP_ERR_STATE,
         "the root of this tree was released; keep the outermost sharded module while you use modules below it");
}

void Root::refuse_if_failed() const {
  refuse_without_module();
  for (const Ref<Group> &group : groups) group->check();
  if (has_failed_)
    fail(TPFSDP_ERR_STATE, "an earlier call of this step failed (", failure_text_,
         "): call reset_iter_state on the root of every rank, then go on");
}

void Root::refuse_unfinished_end() const {
  if (end_phase != 0)
    fail(TPFSDP_ERR_STATE,
         "end_backward of this tree has not ended, and peers may write their shards already: call it again");
}

void Root::drop_step() noexcept {
  ++resets;
  for (State *state : states) {
    state->still_to_run.clear();
    state->leave_backward();
  }
  for (ParamGroup *unit : units) {
    if (unit->is_gathering || unit->is_posting || (unit->has_destination && !unit->is_full())) {
      if (unit->is_full() && unit->pins.load(std::memory_order_relaxed) > 0) {
        unit->is_gathering = unit->is_posting = unit->is_prefetch = false;  // the memory stays until the last unpin
      } else {
        drop_full_parameters(*unit);
      }
    }
    forget_part(*unit);
    unit->scopes = 0;
    unit->training_state = TrainingState::kIdle;
    reshard(*unit);
    drop_gradients(*unit);
    unit->did_prefetch = unit->did_pre_backward = unit->did_post_backward = unit->owes_gradients = false;
    unit->post_forward_positions.clear();
  }
  for (GradSlot &slot : grad_slots) slot.last_reduce = 0;
  post_forward_order.clear();
  reductions.clear();
  forward_root = nullptr;
  is_in_backward = false;
  end_phase = 0;
  exchange_ = nullptr;
  // Memory that all ranks make together is there on all of them or is made anew by all.
  if (std::any_of(slots.begin(), slots.end(), [](const Slot &slot) { return bool(slot.group); }))
    plan_is_old_ = loses_slots_ = true;
  // Before the first step has ended on all ranks, which a reset makes sure of, one may have compared and another not.
  if (windows_opened == 0) stage_ = Stage::kNew;
}

void Root::reset() {
  for (const Ref<Group> &group : groups) group->check();
  if (window == Window::kExplicit)
    fail(TPFSDP_ERR_STATE, "reset_iter_state inside an explicit write window: call tpfsdp_shards_end_write first");
  drop_step();
  has_failed_ = true;  // until all ranks have met
  if (failure_text_.empty()) failure_text_ = "reset_iter_state was interrupted";
  // RESET goes out on every group before this rank waits on any: group by group two ranks can wait for each other for
  // ever. A call that was interrupted goes on with the post that nobody has answered yet.
#if defined(TPFSDP_MUTANT_RESET_COMM_BY_COMM)
  for (const Ref<Group> &group : groups) {
    group->post_reset(windows_opened);
    for (bool all_reset = false; group->wait_reset(true, &all_reset), !all_reset;) group->post_reset(windows_opened);
  }
#else
  if (!has_posted_reset_) {
    for (const Ref<Group> &group : groups) group->post_reset(windows_opened);
    has_posted_reset_ = true;
    groups_to_reset_ = groups;
  }
  while (!groups_to_reset_.empty()) {
    bool all_reset = false;
    groups_to_reset_.back()->wait_reset(true, &all_reset);
    if (all_reset) {
      groups_to_reset_.pop_back();
    } else {
      groups_to_reset_.back()->post_reset(windows_opened);
    }
  }
  has_posted_reset_ = false;
#endif
  has_failed_ = false;
  failure_text_.clear();
}

std::vector<Root *> roots_around(Module &module) {
  std::vector<Root *> roots;
  const auto add = [&](Module &sharded) {
    Root *root = &settle_outermost(sharded);
    if (std::find(roots.begin(), roots.end(), root) == roots.end()) roots.push_back(root);
  };
  Module *above = &module;
  while (above && !above->state) above = above->parent();
  if (above) {
    add(*above);
  } else {
    for (const auto &[name, below] : list_modules(module, "", true)) {
      if (below->state) add(*below);
    }
  }
  return roots;
}

void report_failure(Module &module, const std::string &why) {
  const std::vector<Root *> roots = roots_around(module);
  if (roots.empty()) fail(TPFSDP_ERR_STATE, "nothing at or below module \"", module.path(), "\" is sharded");
  ErrorDetail detail;
  detail.status = TPFSDP_ERR_CALLBACK;
  detail.message = why;
  const Failure failure(std::move(detail));
  for (const Root *root : roots) root->refuse_if_failed();
  for (Root *root : roots) root->failed(failure);
}

}  // namespace tpfsdp
