// SPDX-License-Identifier: Apache-2.0
#include "comm/context.hpp"

#include <numeric>

namespace tpfsdp {
void Context::shutdown() {
  if (rank_->is_shut_down) fail(TPFSDP_ERR_STATE, rank_->describe(), " was shut down before");
  // The default group last: when it is closed, every rank has come this far.
  for (Group *group : rank_->groups()) {
    if (group == group_.get() || group->is_shut_down()) continue;
    try {
      group->shutdown();
    } catch (const Failure &failure) {
      // A peer may have released its handle of this group before; whether it is lost, the default group tells.
      if (failure.status() != TPFSDP_ERR_PEER_LOST) throw;
    }
  }
  // Before the last meeting, so that no rank finds it again after.
  if (rank_->rank() == 0) rank_->store().discard();
  if (!group_->is_shut_down()) group_->shutdown();
  rank_->is_shut_down = true;
}

void Context::abort(const std::string &reason) noexcept { rank_->abort_groups(reason); }

Ref<Context> join_store(const JoinOptions &options, std::shared_ptr<Store> store, BackendChoice backend) {
  auto rank = std::make_shared<Rank>(options.rank, std::move(store), backend.table, std::move(backend.report));
  std::vector<int32_t> all(static_cast<size_t>(options.rank.world_size));
  std::iota(all.begin(), all.end(), 0);
  auto group = make<Group>(rank, options.group_name, "world", std::move(all));
  return make<Context>(std::move(rank), std::move(group));
}

}  // namespace tpfsdp
