// SPDX-License-Identifier: Apache-2.0
#include "comm/rank.hpp"

#include "comm/group.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace tpfsdp {

Rank::Rank(RankOptions options, std::shared_ptr<Store> store, const tpfsdp_backend_table *backend, std::string report)
    : options_(std::move(options)),
      gate_(nullptr),
      store_(std::move(store)),
      backend_(backend),
      report_(std::move(report)),
      recorder_(options_.event_capacity) {
  set_interrupt(std::exchange(options_.interrupt, {}));
  gate_ = Gate::create();  // last: nothing after it can throw
  // It may have been given back an instant before the last call of its former rank has left it.
  while (!gate_->try_enter()) std::this_thread::yield();
  gate_->leave();
}

Rank::~Rank() { Gate::give_back(gate_); }

std::string Rank::describe() const { return cat("rank ", options_.rank, " of ", options_.world_size); }

void Rank::log(int32_t level, const char *component, const std::string &message) const noexcept {
  if (!options_.log) return;
  try {
    options_.log(level, component, message.c_str());
  } catch (...) {
    // A log that fails is no reason for the job to fail.
  }
}

void Rank::set_interrupt(Interrupt interrupt) {
  auto made = interrupt ? std::make_shared<const Interrupt>(std::move(interrupt)) : nullptr;
  const std::lock_guard lock(interrupt_mutex_);
  interrupt_.swap(made);
}

Status Rank::poll_interrupt(int32_t waited_ms, const char *operation, const char *unit) {
  std::shared_ptr<const Interrupt> interrupt;
  {
    const std::lock_guard lock(interrupt_mutex_);
    interrupt = interrupt_;
  }
  return interrupt ? (*interrupt)(waited_ms, operation, unit) : TPFSDP_OK;
}

int32_t Rank::name_unit(const std::string &name) {
  unit_names_.push_back(recorder_.intern(name));
  return static_cast<int32_t>(unit_names_.size()) - 1;
}

const char *Rank::unit_name(int32_t unit) const noexcept {
  return unit >= 0 && static_cast<size_t>(unit) < unit_names_.size() ? unit_names_[static_cast<size_t>(unit)] : "";
}

void Rank::enrol(Group *group) {
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(group);
}

void Rank::strike(Group *group) noexcept {
  const std::lock_guard lock(groups_mutex_);
  std::erase(groups_, group);
}

std::vector<Group *> Rank::groups() const {
  const std::lock_guard lock(groups_mutex_);
  return groups_;
}

void Rank::abort_groups(const std::string &reason) noexcept {
  // Under the lock, so that no group goes away meanwhile: a group strikes itself out first.
  const std::lock_guard lock(groups_mutex_);
  for (Group *group : groups_) group->abort(reason);
}

}  // namespace tpfsdp
