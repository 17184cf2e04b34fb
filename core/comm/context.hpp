// SPDX-License-Identifier: Apache-2.0
// One rank of a job as the host holds it: the rank and its default group.
#pragma once

#include "comm/backends.hpp"
#include "comm/group.hpp"

namespace tpfsdp {

class Context final : public Object {
 public:
  static constexpr Kind kKind = Kind::kContext;

  Context(std::shared_ptr<Rank> rank, Ref<Group> group) : rank_(std::move(rank)), group_(std::move(group)) {}

  Kind kind() const override { return kKind; }
  Gate *gate() const override { return rank_->gate(); }
  std::string describe_rank() const override { return rank_->describe(); }
  Rank &rank() const { return *rank_; }
  const std::shared_ptr<Rank> &rank_ptr() const { return rank_; }
  Group &group() const { return *group_; }

  // Of call mode: how deep the calls are now, and what the last nested one failed with. Of the rank's own thread.
  int32_t forward_calls = 0;
  int32_t backward_calls = 0;
  std::shared_ptr<const ErrorDetail> failure_of_call;

  // Ends every group made from this rank in order of their making, the default one last.
  void shutdown();
  void abort(const std::string &reason) noexcept;

 private:
  std::shared_ptr<Rank> rank_;
  Ref<Group> group_;
};

// What a program says about how to join.
struct JoinOptions {
  RankOptions rank;
  int32_t world_size = 0;  // 0: the launcher's
  std::string backend;     // "": the best that can run
  std::string store;       // "", "env", "local:NAME", "file:DIR", "tcp:HOST:PORT"
  std::string group_name = "world";
  // Of rank 0 with a "tcp:" store, once it listens: the store of the other ranks, and its port. None: nobody is told.
  std::function<Status(const std::string &store, int32_t port)> listening = {};
};

Ref<Context> join(JoinOptions options);

// The same for ranks that have met: options.rank is complete, world_size and store are not looked at.
Ref<Context> join_store(const JoinOptions &options, std::shared_ptr<Store> store, BackendChoice backend);

void check_options(const RankOptions &rank, int32_t world_size);

}  // namespace tpfsdp
