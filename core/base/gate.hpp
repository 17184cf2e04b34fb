// SPDX-License-Identifier: Apache-2.0
// The busy word of a rank: one thread at a time inside its trees and groups. What finalizers of other threads bring
// meanwhile is queued and done at the end of the call that is inside, so that a release never waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace tpfsdp {

// Something that may have work to do once the gate is free.
class Deferrable {
 public:
  virtual ~Deferrable() = default;
  // Inside the gate, for `deferred_count()` calls of defer. May destroy the object.
  virtual void run_deferred() noexcept = 0;

 protected:
  int32_t deferred_count() const noexcept { return taken_; }

 private:
  friend class Gate;
  std::atomic<int32_t> owed_{0};  // calls of defer that were not run; above 0: in the queue, or about to be
  int32_t taken_ = 0;             // of those, the ones that run now
  Deferrable *next_ = nullptr;
};

class Gate {
 public:
  // Gates are type-stable: one that is given back may be used again, but its memory stays a gate. So a look-up may
  // enter the gate of a handle first and find out then that the handle died.
  static Gate *create();
  static void give_back(Gate *gate) noexcept;

  Gate(const Gate &) = delete;
  Gate &operator=(const Gate &) = delete;

  // One exchange. False: a thread (perhaps this one, in a callback) is inside. Where that is only a finalizer's drain,
  // waits for its end, at most 10 ms.
  bool try_enter() noexcept;
  void leave() noexcept;
  bool held_by_this_thread() const noexcept;

  // Runs object->run_deferred() now if nobody is inside, else when the call that is inside ends. What keeps the object
  // alive until then is what the deferred work itself gives back: each call of defer stands for one reference.
  void defer(Deferrable *object) noexcept;

 private:
  Gate() = default;
  static void push_free(Gate *first, Gate *last) noexcept;
  void drain() noexcept;

  std::atomic<uint64_t> owner_{0};
  std::atomic<Deferrable *> queue_{nullptr};
  Gate *next_free_ = nullptr;
  bool is_given_back_ = false;  // by the call that is inside
};

// Holds a gate for one call.
class GateHold {
 public:
  explicit GateHold(Gate *gate) noexcept : gate_(gate && gate->try_enter() ? gate : nullptr) {}
  GateHold(const GateHold &) = delete;
  GateHold &operator=(const GateHold &) = delete;
  ~GateHold() {
    if (gate_) gate_->leave();
  }
  bool is_held() const noexcept { return gate_ != nullptr; }

 private:
  Gate *gate_;
};

}  // namespace tpfsdp
