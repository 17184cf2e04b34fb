// SPDX-License-Identifier: Apache-2.0
#include "comm/rank.hpp"

#include "base/hash.hpp"

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
    options_.log(options_.rank, level, component, message.c_str());
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
  // Of the name itself and not of the order of naming, in which ranks with other trees beside this one differ.
  const auto number = static_cast<int32_t>(hash_text(name) & 0x7fffffff);
  unit_names_.try_emplace(number, recorder_.intern(name));
  return number;
}

const char *Rank::unit_name(int32_t unit) const noexcept {
  const auto named = unit_names_.find(unit);
  return named == unit_names_.end() ? "" : named->second;
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
