// SPDX-License-Identifier: Apache-2.0
// The last collectives of a group on this rank, kept always and in fixed memory: what one reads after a hang.
#pragma once

#include "base/error.hpp"

#include <array>
#include <mutex>
#include <optional>
#include <vector>

namespace tpfsdp {

const char *collective_name(tpfsdp_backend_kind kind) noexcept;  // "all_gather"

enum class CollectiveState : uint8_t { kPosted, kComplete, kFailed };
const char *collective_state_name(CollectiveState state) noexcept;

struct CollectiveEntry {
  int64_t sequence = 0;
  tpfsdp_backend_kind kind = 0;
  tpfsdp_reduce_op op = 0;
  tpfsdp_dtype dtype = 0;
  Status status = TPFSDP_OK;  // of a failed one
  CollectiveState state = CollectiveState::kPosted;
  int64_t element_count = 0;
  int64_t posted_ns = 0;
  int64_t ended_ns = 0;
  int64_t event = -1;     // its number in the recorder
  const char *unit = "";  // lives as long as the rank
};

// Locked, since a dump may come from any thread while the rank works.
class CollectiveLog {
 public:
  static constexpr int64_t kKept = 64;

  void post(const CollectiveEntry &entry) noexcept;
  // Those up to `sequence` that are still open; `each` gets every one of them.
  template <class Each>
  void complete(int64_t sequence, int64_t now_ns, Each &&each) noexcept {
    const std::lock_guard lock(mutex_);
    while (first_open_ < next_ && entry(first_open_).sequence <= sequence) {
      CollectiveEntry &ended = entry(first_open_++);
      if (ended.state != CollectiveState::kPosted) continue;
      ended.state = CollectiveState::kComplete;
      ended.ended_ns = now_ns;
      each(ended);
    }
  }
  void fail(int64_t sequence, Status status, int64_t now_ns) noexcept;
  void fail_open(Status status, int64_t now_ns) noexcept;
  std::optional<CollectiveEntry> find(int64_t sequence) const;
  std::vector<CollectiveEntry> entries() const;  // oldest first

 private:
  CollectiveEntry &entry(int64_t position) { return ring_[static_cast<size_t>(position % kKept)]; }
  const CollectiveEntry &entry(int64_t position) const { return ring_[static_cast<size_t>(position % kKept)]; }
  int64_t first_kept() const { return next_ > kKept ? next_ - kKept : 0; }

  mutable std::mutex mutex_;
  std::array<CollectiveEntry, kKept> ring_{};
  int64_t next_ = 0;
  int64_t first_open_ = 0;
};

}  // namespace tpfsdp
