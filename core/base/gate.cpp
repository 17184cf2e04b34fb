// SPDX-License-Identifier: Apache-2.0
#include "base/gate.hpp"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <utility>

namespace tpfsdp {
namespace {

// pthread_t is an address in glibc, so never 0 nor odd, and costs no system call.
uint64_t this_thread() noexcept { return static_cast<uint64_t>(pthread_self()); }

// The owner makes no call, it only runs what was deferred.
constexpr uint64_t kDrains = 1;
// How long a call waits for such an owner. A drain waits for nothing, but its drop may be a host's that does.
constexpr std::chrono::milliseconds kDrainPatience(10);

// Gates that were given back. Without a lock, which a fork could leave locked for ever in the child.
std::atomic<Gate *> free_gates{nullptr};

}  // namespace

void Gate::push_free(Gate *first, Gate *last) noexcept {
  last->next_free_ = free_gates.load(std::memory_order_relaxed);
  while (!free_gates.compare_exchange_weak(last->next_free_, first, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
}

Gate *Gate::create() {
  // All of them, so that none can be given out twice; the rest goes back.
  Gate *gate = free_gates.exchange(nullptr, std::memory_order_acquire);
  if (!gate) return new Gate;
  if (Gate *rest = gate->next_free_) {
    Gate *last = rest;
    while (last->next_free_) last = last->next_free_;
    push_free(rest, last);
  }
  return gate;
}

void Gate::give_back(Gate *gate) noexcept {
  // The rank may end by what its own last call had to do: then the gate is free when that call leaves.
  if (gate->held_by_this_thread()) {
    gate->is_given_back_ = true;
  } else {
    push_free(gate, gate);
  }
}

bool Gate::try_enter() noexcept {
  const auto try_once = [this](uint64_t &owner) {
    owner = 0;
    return owner_.compare_exchange_strong(owner, this_thread(), std::memory_order_acquire, std::memory_order_relaxed);
  };
  uint64_t owner = 0;
  if (try_once(owner)) return true;
  // A finalizer on another thread is no second call: it is gone in a moment.
  const auto until = std::chrono::steady_clock::now() + kDrainPatience;
  while ((owner & kDrains) != 0 && !held_by_this_thread() && std::chrono::steady_clock::now() < until) {
    sched_yield();
    if (try_once(owner)) return true;
  }
  return false;
}

bool Gate::held_by_this_thread() const noexcept {
  return (owner_.load(std::memory_order_relaxed) & ~kDrains) == this_thread();
}

void Gate::leave() noexcept {
  for (;;) {
    if (queue_.load(std::memory_order_acquire)) drain();
    const bool ends = std::exchange(is_given_back_, false);
    owner_.store(0, std::memory_order_seq_cst);
    if (ends) {
      push_free(this, this);
      return;
    }
    // Whoever queued between the drain and the store saw the gate taken: look again, or its work would wait for the
    // next call. seq_cst on both sides, as this is store-then-load against load-then-store.
    uint64_t free = 0;
    if (!queue_.load(std::memory_order_seq_cst) ||
        !owner_.compare_exchange_strong(free, this_thread() | kDrains, std::memory_order_acquire,
                                        std::memory_order_relaxed))
      return;
  }
}

void Gate::defer(Deferrable *object) noexcept {
  // Only who raises it from 0 may still touch the object: for all others the drain that runs their share may be on its
  // way already.
  if (object->owed_.fetch_add(1, std::memory_order_acq_rel) == 0) {
    Deferrable *head = queue_.load(std::memory_order_relaxed);
    do {
      object->next_ = head;
    } while (!queue_.compare_exchange_weak(head, object, std::memory_order_seq_cst, std::memory_order_relaxed));
  }
  uint64_t free = 0;
  if (owner_.load(std::memory_order_seq_cst) == 0 &&
      owner_.compare_exchange_strong(free, this_thread() | kDrains, std::memory_order_acquire,
                                     std::memory_order_relaxed))
    leave();
}

void Gate::drain() noexcept {
  Deferrable *object = queue_.exchange(nullptr, std::memory_order_acquire);
  while (object) {
    Deferrable *next = object->next_;
    object->taken_ = object->owed_.exchange(0, std::memory_order_acq_rel);  // from here it may be queued again
    object->run_deferred();                                                 // may destroy it
    object = next;
  }
}

}  // namespace tpfsdp
