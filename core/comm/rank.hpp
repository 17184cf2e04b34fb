// SPDX-License-Identifier: Apache-2.0
// What everything of one rank shares: identity, gate, store, transport, log, interrupt, recorder, names of units. Held
// by the context and by whatever was made from it.
#pragma once

#include "base/callback.hpp"
#include "base/gate.hpp"
#include "comm/recorder.hpp"
#include "comm/store.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace tpfsdp {

constexpr int32_t kLogWarning = 3;  // the number of context.h

using Log = std::function<void(int32_t rank, int32_t level, const char *component, const char *message)>;
// OK, or what the host's interrupt callback gave.
using Interrupt = std::function<Status(int32_t waited_ms, const char *operation, const char *unit)>;

struct RankOptions {
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t arrival_timeout_ms = 1800000;
  int32_t progress_timeout_ms = 60000;
  int32_t join_timeout_ms = 300000;
  int32_t event_capacity = 0;
  int64_t memory_budget_bytes = 0;  // 0: no bound
  Log log;
  Interrupt interrupt;
};

class Group;

class Rank {
 public:
  Rank(RankOptions options, std::shared_ptr<Store> store, const tpfsdp_backend_table *backend, std::string report);
  ~Rank();
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  int32_t rank() const { return options_.rank; }
  int32_t world_size() const { return options_.world_size; }
  const RankOptions &options() const { return options_; }
  std::string describe() const;  // "rank 1 of 4"
  Gate *gate() const { return gate_; }
  Store &store() const { return *store_; }
  const tpfsdp_backend_table &backend() const { return *backend_; }
  const std::string &backend_report() const { return report_; }
  Recorder &recorder() { return recorder_; }

  void log(int32_t level, const char *component, const std::string &message) const noexcept;
  void set_interrupt(Interrupt interrupt);
  Status poll_interrupt(int32_t waited_ms, const char *operation, const char *unit);

  // Numbers for units, for messages of the transport: the same on every rank for the same name.
  int32_t name_unit(const std::string &name);
  const char *unit_name(int32_t unit) const noexcept;  // "" if none

  // ---- The groups made from this rank ----

  void enrol(Group *group);
  void strike(Group *group) noexcept;
  std::vector<Group *> groups() const;  // in order of their making
  // Stops all groups, also those that another thread is inside. Any thread.
  void abort_groups(const std::string &reason) noexcept;
  // The highest number that a group of this rank was given: ranks agree on the next by the highest of theirs.
  int64_t last_group_number = 0;

  std::atomic<bool> is_shut_down{false};

 private:
  RankOptions options_;
  Gate *gate_;
  std::shared_ptr<Store> store_;
  const tpfsdp_backend_table *backend_;
  std::string report_;
  Recorder recorder_;
  std::mutex interrupt_mutex_;  // set_interrupt may come from any thread
  std::shared_ptr<const Interrupt> interrupt_;
  std::unordered_map<int32_t, const char *> unit_names_;
  mutable std::mutex groups_mutex_;  // abort may come from any thread
  std::vector<Group *> groups_;
};

}  // namespace tpfsdp
