// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_work.hpp"

namespace tpfsdp {

Status finish_collective(Group &group, int64_t sequence, bool may_wait) {
  try {
    if (const Status status = group.complete(sequence, may_wait); status != TPFSDP_OK) return status;
    return group.wait_read(sequence, may_wait);
  } catch (const Failure &failure) {
    fail_collective(group, failure);
  }
}

Status CollectiveWork::wait(bool may_wait) {
  if (pending_->failure) throw Failure(pending_->failure);
  // After an orderly end of the group every peer has read what this rank showed.
  if (is_read_ || group_->size() == 1 || (pending_->is_complete && group_->is_shut_down())) return TPFSDP_OK;
  try {
    const Status status = finish_collective(*group_, pending_->sequence, may_wait);
    is_read_ = status == TPFSDP_OK;
    return status;
  } catch (const Failure &failure) {
    pending_->failure = failure.detail();
    throw;
  }
}

}  // namespace tpfsdp
