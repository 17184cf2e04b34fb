// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_log.hpp"

#include <algorithm>

namespace tpfsdp {

const char *collective_name(tpfsdp_backend_kind kind) noexcept {
  switch (kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER:
    case TPFSDP_BACKEND_KIND_SHARED_GATHER:
    case TPFSDP_BACKEND_KIND_MAPPED_GATHER: return "all_gather";  // whichever way the memory goes
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER: return "reduce_scatter";
    case TPFSDP_BACKEND_KIND_ALL_REDUCE: return "all_reduce";
    case TPFSDP_BACKEND_KIND_BROADCAST: return "broadcast";
    case TPFSDP_BACKEND_KIND_BARRIER: return "barrier";
    default: return "";
  }
}

const char *collective_state_name(CollectiveState state) noexcept {
  switch (state) {
    case CollectiveState::kPosted: return "posted";
    case CollectiveState::kComplete: return "complete";
    case CollectiveState::kFailed: return "failed";
  }
  return "";
}

void CollectiveLog::post(const CollectiveEntry &posted) noexcept {
  const std::lock_guard lock(mutex_);
  entry(next_++) = posted;
  first_open_ = std::max(first_open_, first_kept());
}

void CollectiveLog::fail(int64_t sequence, Status status, int64_t now_ns) noexcept {
  const std::lock_guard lock(mutex_);
  for (int64_t i = first_open_; i < next_; ++i) {
    CollectiveEntry &failed = entry(i);
    if (failed.sequence != sequence || failed.state != CollectiveState::kPosted) continue;
    failed.state = CollectiveState::kFailed;
    failed.status = status;
    failed.ended_ns = now_ns;
  }
}

void CollectiveLog::fail_open(Status status, int64_t now_ns) noexcept {
  const std::lock_guard lock(mutex_);
  for (; first_open_ < next_; ++first_open_) {
    CollectiveEntry &failed = entry(first_open_);
    if (failed.state != CollectiveState::kPosted) continue;
    failed.state = CollectiveState::kFailed;
    failed.status = status;
    failed.ended_ns = now_ns;
  }
}

std::optional<CollectiveEntry> CollectiveLog::find(int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  for (int64_t i = next_ - 1; i >= first_kept(); --i) {
    if (entry(i).sequence == sequence) return entry(i);
  }
  return std::nullopt;
}

std::vector<CollectiveEntry> CollectiveLog::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveEntry> kept;
  for (int64_t i = first_kept(); i < next_; ++i) kept.push_back(entry(i));
  return kept;
}

}  // namespace tpfsdp
