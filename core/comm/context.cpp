// SPDX-License-Identifier: Apache-2.0
#include "comm/context.hpp"

#include "comm/backends.hpp"
#include "comm/launch.hpp"

#include <numeric>

namespace tpfsdp {
namespace {

constexpr std::string_view kLocal = "local:";

}  // namespace

void check_options(const RankOptions &rank, int32_t world_size) {
  if (world_size < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "world_size is ", world_size, "; it is at least 1, or 0");
  if (rank.rank < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank.rank, "; ranks count from 0");
  if (world_size > 0 && rank.rank >= world_size)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank.rank, ", but world_size is ", world_size, ": ranks are 0 to ",
         world_size - 1);
  const auto check_timeout = [](const char *name, int32_t timeout_ms) {
    if (timeout_ms < -1 || timeout_ms == 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", timeout_ms, "; it is a number of ms, or -1 for none");
  };
  check_timeout("arrival_timeout_ms", rank.arrival_timeout_ms);
  check_timeout("progress_timeout_ms", rank.progress_timeout_ms);
  check_timeout("join_timeout_ms", rank.join_timeout_ms);
  if (rank.event_capacity < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "event_capacity is ", rank.event_capacity,
         "; it is 0 (none) or a number of events");
}

namespace {

std::string launched_text(const Launch &launch) {
  return cat("launched as rank ", launch.rank, " of ", launch.world_size, " (", launch.source,
             "), but no group was joined: ");
}
constexpr const char *kHowToJoin =
    "this version joins ranks that are threads of one process: use run_ranks, or in each thread store \"local:NAME\" "
    "with rank and world_size; for a world of one set WORLD_SIZE=1 and RANK=0";

// Ranks that a launcher started as processes.
[[noreturn]] void refuse_processes(const Launch &launch, const std::string &backend) {
  try {
    choose_backend(backend, TPFSDP_BACKEND_CAN_USE_PROCESSES);
  } catch (const Failure &failure) {
    fail(TPFSDP_ERR_BACKEND_UNAVAILABLE, launched_text(launch), kHowToJoin, ". ", failure.what());
  }
  fail(TPFSDP_ERR_BACKEND_UNAVAILABLE, launched_text(launch), kHowToJoin);
}

// A world of one, or an explanation why it cannot be that.
void check_world_of_one(const JoinOptions &options) {
  const int32_t rank = options.rank.rank, world_size = options.world_size;
  if (world_size == 0 && rank != 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank, ", but world_size is not given");
  const std::optional<Launch> launch = read_launch();
  const int32_t launched = launch ? launch->world_size : 1;
  if (options.store == "env" && world_size != 0 && (world_size != launched || rank != (launch ? launch->rank : 0)))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank ", rank, " of ", world_size, " was asked for with store \"env\", but ",
         launch ? cat("the launch variables say rank ", launch->rank, " of ", launched) : "no launch variable is set");
  if (world_size > 1 && options.store.empty())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "world_size is ", world_size,
         ", but no store says where the ranks meet: give \"local:NAME\"");
  if (launched == 1) return;
  if (options.store == "env") refuse_processes(*launch, options.backend);
  fail(TPFSDP_ERR_STATE, launched_text(*launch), kHowToJoin);
}

}  // namespace

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

Ref<Context> join(JoinOptions options) {
  check_options(options.rank, options.world_size);
  BackendChoice backend = choose_backend(options.backend, TPFSDP_BACKEND_CAN_USE_THREADS);
  if (options.store.empty() || options.store == "env") {
    check_world_of_one(options);
    options.rank.rank = 0;
    options.rank.world_size = 1;
    return join_store(options, make_local_store(), std::move(backend));
  }
  const std::string_view store = options.store;
  if (!store.starts_with(kLocal) || store.size() == kLocal.size())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", options.store,
         "\"; this version knows \"local:NAME\" and \"env\"");
  if (options.world_size == 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", options.store,
         "\", but world_size is not given: threads of one "
         "process say their rank and world_size themselves");
  options.rank.world_size = options.world_size;
  auto joined = join_local_store(std::string(store.substr(kLocal.size())), options.rank.rank, options.world_size);
  return join_store(options, std::move(joined), std::move(backend));
}

}  // namespace tpfsdp
