// SPDX-License-Identifier: Apache-2.0
// From handles to objects and back.
//
// Entry   one call into a rank: enters the rank's gate with the first handle and checks that all others are of the same
//         rank. A second thread, or a callback of this one, gets BUSY; infos may be asked from callbacks too.
// hold    for what any thread may use at any time: the object with a reference for the length of the call.
#pragma once

#include "base/error.hpp"
#include "base/handle_table.hpp"

#include <tpfsdp/base.h>

namespace tpfsdp::capi {

// Throws INVALID_HANDLE or FORKED.
[[noreturn]] void refuse_handle(const void *handle, Kind kind, const char *name);
[[noreturn]] void refuse_busy(Kind kind, bool own_callback);
[[noreturn]] void refuse_other_rank(const Object &first, const Object &second);

class Entry {
 public:
  enum class Mode { kChange, kAsk };

  explicit Entry(Mode mode = Mode::kChange) : mode_(mode) {}
  Entry(const Entry &) = delete;
  Entry &operator=(const Entry &) = delete;
  ~Entry() {
    if (entered_) entered_->leave();
  }

  // T::kKind names the kind. The reference is good until the call ends.
  template <class T>
  T &get(const void *handle, const char *name) {
    enter(handle, T::kKind, name);
    auto &object = static_cast<T &>(*find(handle, T::kKind, name));
    if (!first_) first_ = &object;
    return object;
  }
  template <class T>
  T *get_or_null(const void *handle, const char *name) {
    return handle ? &get<T>(handle, name) : nullptr;
  }

 private:
  void enter(const void *handle, Kind kind, const char *name);
  Object *find(const void *handle, Kind kind, const char *name);

  Mode mode_;
  Gate *gate_ = nullptr;     // of all handles of this call
  Gate *entered_ = nullptr;  // to leave at the end
  Object *first_ = nullptr;
};

template <class T>
class Held {
 public:
  explicit Held(T *object) : object_(object) { object_->outside_ref(); }
  Held(const Held &) = delete;
  Held &operator=(const Held &) = delete;
  // It may be the last reference: then the object ends inside its rank's gate, as by any release.
  ~Held() {
    if (Gate *gate = object_->gate()) {
      gate->defer(object_);
    } else {
      object_->outside_unref();
    }
  }
  T *operator->() const { return object_; }
  T &operator*() const { return *object_; }
  T *get() const { return object_; }
  operator Ref<T>() const { return Ref<T>(object_); }

 private:
  T *object_;
};

template <class T>
Held<T> hold(const void *handle, const char *name) {
  const Ref<Object> object = HandleTable::find_and_hold(handle, T::kKind);
  if (!object) refuse_handle(handle, T::kKind, name);
  return Held<T>(static_cast<T *>(object.get()));
}

// The handle of an object: owned for an out-parameter of a maker, borrowed from get functions and in records.
template <class Handle>
Handle *owned(Object *object) {
  return static_cast<Handle *>(HandleTable::expose(object, true));
}
template <class Handle>
Handle *borrowed(Object *object) {
  return object ? static_cast<Handle *>(HandleTable::expose(object, false)) : nullptr;
}

}  // namespace tpfsdp::capi
