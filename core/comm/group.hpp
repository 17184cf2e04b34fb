// SPDX-License-Identifier: Apache-2.0
// This rank's membership of a communicator. Two faces: the steps of the sharding engine (submit, complete, step,
// reset), and the collectives that a host may use itself (collectives.hpp), which are made of them.
#pragma once

#include "base/error.hpp"
#include "base/object.hpp"
#include "comm/rank.hpp"

#include <tpfsdp/backend.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tpfsdp {

class CollectiveLog;  // the last collectives of the group, for dump_recorder

// An asynchronous collective between its submission and its end. The group keeps it, so that a work may be released
// before that; the memory that it reads and writes stays borrowed.
struct PendingCollective {
  int64_t sequence = 0;
  std::vector<tpfsdp_backend_piece> pieces;
  bool is_complete = false;
  std::shared_ptr<const ErrorDetail> failure;
};

class Group final : public Object {
 public:
  static constexpr Kind kKind = Kind::kGroup;

  // Collective over `global_ranks`. The key is unique in the job and the same on every rank: it is the place in the
  // store. The name is for messages.
  Group(std::shared_ptr<Rank> owner, std::string name, std::string key, std::vector<int32_t> global_ranks);
  ~Group() override;

  Kind kind() const override { return kKind; }
  Gate *gate() const override { return owner_->gate(); }
  std::string describe_rank() const override { return owner_->describe(); }

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(global_ranks_.size()); }
  const std::string &name() const { return name_; }
  const std::vector<int32_t> &global_ranks() const { return global_ranks_; }
  Rank &owner() const { return *owner_; }
  const std::shared_ptr<Rank> &owner_ptr() const { return owner_; }
  // Counts what was given up: a sequence submitted under another number was not completed.
  int64_t generation() const { return generation_; }
  // This rank's last word to its peers is a failure that nothing has followed.
  bool has_told_failure() const { return has_told_failure_; }
  // Of the last collective submitted, common memory made, or reset.
  int64_t sequence() const { return posted_.load(std::memory_order_relaxed); }
  tpfsdp_backend_comm *comm() const { return comm_; }  // null in a group of one

  // ---- Steps of the engine; a group of one takes none of them. Each returns OK or, with may_wait false, PENDING; an
  // error is thrown with operation, unit, group and backend filled in, and a sticky one is remembered. ----

  // Counts and records the collective. `wire_bytes`: what it brings to this rank from others.
  Status submit(const tpfsdp_backend_op &op, int64_t wire_bytes, bool may_wait, int64_t *out_sequence);
  Status complete(int64_t sequence, bool may_wait);
  Status wait_read(int64_t sequence, bool may_wait);
  Status wait_step(bool may_wait);
  // Memory that all ranks have mapped (region.hpp has the owner). Collective; a failure of this rank is its caller's to
  // post, as everywhere.
  Status create_common(int64_t size_bytes, bool may_wait, void **out_data, const void **out_readable,
                       tpfsdp_backend_region **out_region);
  Status wait_released(tpfsdp_backend_region *region, bool may_wait);
  void publish_step();
  void post_failure(Status status, const std::string &message) noexcept;
  void give_up() noexcept;
  void post_reset(int64_t windows_opened);
  Status wait_reset(bool may_wait, bool *out_all_reset);

  // Keeps an asynchronous collective that was just submitted until it is complete or has failed; a failure of its
  // sequence is its own then, and no other wait ends with it.
  void keep(std::shared_ptr<PendingCollective> pending);
  void fail_pending(const std::shared_ptr<const ErrorDetail> &failure) noexcept;

  // ---- Life ----

  // These four may come from any thread.
  void check();  // throws the sticky error
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
  bool is_shut_down() const noexcept { return is_shut_down_.load(std::memory_order_acquire); }
  void abort(const std::string &reason) noexcept;
  // JSON: the last collectives of this rank, what each peer was last seen doing, and who is behind.
  std::string dump() const;
  void reset();  // after a failed collective outside any tree
  void shutdown();

  // Collective: one group for each colour that is not negative, ordered by (order, old rank). Null for a negative one.
  // "" as name: "split".
  static Ref<Group> split(const Ref<Group> &group, int32_t color, int32_t order, const std::string &name);

 private:
  std::shared_ptr<Rank> owner_;
  std::string name_;
  const char *recorded_name_;
  std::vector<int32_t> global_ranks_;
  int32_t rank_ = -1;
  std::atomic<int64_t> posted_{0};
  std::atomic<bool> is_shut_down_{false};
  int64_t generation_ = 0;
  bool has_told_failure_ = false;
  tpfsdp_backend_comm *comm_ = nullptr;
  std::unique_ptr<CollectiveLog> log_;
  std::vector<std::shared_ptr<PendingCollective>> pending_;  // in order of their sequences
  std::atomic<bool> has_failed_{false};
  mutable std::mutex failure_mutex_;
  std::shared_ptr<const ErrorDetail> failure_;  // the first sticky one

  const tpfsdp_backend_table &backend() const { return owner_->backend(); }
  void require_usable(const char *operation);
  std::shared_ptr<const ErrorDetail> failure() const;
  // Completes the error of a call and remembers it if it sticks.
  std::shared_ptr<const ErrorDetail> note_failure(const tpfsdp_backend_call &call, Status status, const char *operation,
                                                  const char *unit);
  [[noreturn]] void repeat_failure(const char *operation) const;
  bool leave_to_pending(const std::shared_ptr<const ErrorDetail> &failure, int64_t before);
  void settle(int64_t sequence) noexcept;
  void note_posted();
  void count(const tpfsdp_backend_op &op, int64_t wire_bytes, int64_t start_ns);
};

// The number that the next group made over `ranks` of this group gets; agreed on by the caller from everybody's
// last_group_number. With the lowest member it makes a key that no other group of the job has.
std::string group_key(const std::string &name, const std::vector<int32_t> &global_ranks, int64_t number);

// Posts a local failure of a collective call to the peers, then throws it on: a mistake of one rank is an error on all,
// never a hang.
[[noreturn]] void fail_collective(Group &group, const Failure &failure);

}  // namespace tpfsdp
