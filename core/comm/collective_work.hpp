// SPDX-License-Identifier: Apache-2.0
// A collective on the host's own memory that was started and not waited for.
#pragma once

#include "comm/group.hpp"
#include "comm/work.hpp"

namespace tpfsdp {

class CollectiveWork final : public Work {
 public:
  CollectiveWork(Ref<Group> group, std::shared_ptr<PendingCollective> pending)
      : group_(std::move(group)), pending_(std::move(pending)) {}

  Gate *gate() const override { return group_->gate(); }
  std::string describe_rank() const override { return group_->describe_rank(); }
  Status wait(bool may_wait) override;

 private:
  Ref<Group> group_;
  std::shared_ptr<PendingCollective> pending_;
  bool is_read_ = false;  // no peer reads the input any more
};

// The two halves of the end of a collective on the host's memory: all is here, and nobody reads it any more.
Status finish_collective(Group &group, int64_t sequence, bool may_wait);

}  // namespace tpfsdp
