// SPDX-License-Identifier: Apache-2.0
// How a group fails, starts afresh, splits and ends.
#include "base/hash.hpp"
#include "comm/backend_call.hpp"
#include "comm/exchange.hpp"
#include "comm/group.hpp"

#include <algorithm>
#include <cstdint>

namespace tpfsdp {

void Group::check() {
  if (is_shut_down()) fail(TPFSDP_ERR_STATE, "group \"", name_, "\" of ", owner_->describe(), " was shut down");
  if (has_failed()) repeat_failure("check");
  if (!comm_) return;
  tpfsdp_backend_call call(*owner_);
  const Status status = backend().comm_check(&call, comm_);
  if (status < 0) throw Failure(note_failure(call, status, "check", ""));
}

void Group::abort(const std::string &reason) noexcept {
  if (is_shut_down()) return;
  if (comm_) return backend().comm_abort(comm_, TPFSDP_ERR_ABORTED, reason.c_str());
  try {
    tpfsdp_backend_call call(*owner_);
    call.failed_rank = rank_;
    call.message = cat("aborted: ", reason);
    note_failure(call, TPFSDP_ERR_ABORTED, "abort", "");
  } catch (...) {
    // Out of memory for the text; a group of one has nobody to tell.
  }
}

void Group::reset() {
  if (!comm_) return check();
  for (bool all_reset = false; !all_reset;) {
    post_reset(0);
    wait_reset(true, &all_reset);
  }
}

void Group::shutdown() {
  if (is_shut_down()) fail(TPFSDP_ERR_STATE, "group \"", name_, "\" of ", owner_->describe(), " was shut down before");
  if (has_failed()) repeat_failure("shutdown");
  if (comm_) {
    // A work that nobody waited for tells its own failure; the end of the group is another matter.
    while (!pending_.empty()) {
      try {
        complete(pending_.back()->sequence, true);
      } catch (const Failure &failure) {
        if (!leave_to_pending(failure.detail(), INT64_MAX)) throw;
      }
    }
    tpfsdp_backend_call call(*owner_);
    const Status status = backend().comm_shutdown(&call, comm_);
    if (status < 0) throw Failure(note_failure(call, status, "shutdown", ""));
    settle(sequence());
  }
  is_shut_down_.store(true, std::memory_order_release);
}

std::string group_key(const std::string &name, const std::vector<int32_t> &global_ranks, int64_t number) {
  return cat(name, "@", *std::min_element(global_ranks.begin(), global_ranks.end()), ".", number);
}

Ref<Group> Group::split(const Ref<Group> &group, int32_t color, int32_t order, const std::string &name) {
  struct Vote {
    int64_t number;
    uint64_t name_hash;
    int32_t color;
    int32_t order;
  };
  Rank &owner = *group->owner_;
  const Vote mine = {owner.last_group_number, hash_text(name), color, order};
  const std::vector<Vote> votes = exchange(group, mine);

  struct Member {
    int32_t order;
    int32_t rank;
    auto operator<=>(const Member &) const = default;
  };
  std::vector<Member> members;
  bool same_name = true;
  for (size_t i = 0; i < votes.size(); ++i) {
    owner.last_group_number = std::max(owner.last_group_number, votes[i].number + 1);
    if (votes[i].color != color) continue;
    members.push_back({votes[i].order, static_cast<int32_t>(i)});
    same_name = same_name && votes[i].name_hash == mine.name_hash;
  }
  if (color < 0) return nullptr;
  std::sort(members.begin(), members.end());
  std::vector<int32_t> ranks;
  for (const Member &member : members) ranks.push_back(group->global_ranks_[static_cast<size_t>(member.rank)]);
  // The key must be the same on all members, so a name that is not cannot be in it.
  std::string key = group_key(same_name && !name.empty() ? name : "split", ranks, owner.last_group_number);
  return make<Group>(group->owner_, name.empty() ? key : name, key, std::move(ranks));
}

}  // namespace tpfsdp
