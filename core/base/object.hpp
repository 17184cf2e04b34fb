// SPDX-License-Identifier: Apache-2.0
// What a handle of the C ABI stands for: a counted object, and the slot that makes its one canonical handle.
//
// Two counts, so that a program cannot break the library by releasing too often: `references_` counts owners inside the
// library, the handle's own count (handle_table.hpp) counts owners outside, and all of those together hold one
// reference.
#pragma once

#include "base/gate.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace tpfsdp {

enum class Kind : uint8_t {
  kNone = 0,
  kError,
  kContext,
  kList,
  kBlob,
  kTensor,
  kWork,
  kGroup,
  kMesh,
  kParam,
  kModule,
  kUnit,
  kScope,
  kHook,
};

class Object : public Deferrable {
 public:
  Object() = default;
  Object(const Object &) = delete;
  Object &operator=(const Object &) = delete;

  virtual Kind kind() const = 0;
  // The gate of the rank this object belongs to; null when any thread may use it at any time.
  virtual Gate *gate() const { return nullptr; }

  void ref() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void unref() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // "rank 1 of 4", for messages about handles that do not belong together.
  virtual std::string describe_rank() const { return "no rank"; }

  // The one reference that all owners outside hold together. A part of something else holds on to the whole instead.
  virtual void outside_ref() noexcept { ref(); }
  virtual void outside_unref() noexcept { unref(); }

  // Takes a reference unless the last one is going right now.
  bool try_ref() noexcept;
  // Gives back one reference for each that a finalizer deferred while another call was inside the rank.
  void run_deferred() noexcept override;

 protected:
  ~Object() override;

 private:
  friend class HandleTable;
  std::atomic<int32_t> references_{0};
  std::atomic<uint64_t> handle_{0};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T *object) : object_(object) {
    if (object_) object_->ref();
  }
  Ref(const Ref &other) : Ref(other.object_) {}
  Ref(Ref &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class U>
    requires std::is_convertible_v<U *, T *>
  Ref(const Ref<U> &other) : Ref(other.get()) {}
  ~Ref() {
    if (object_) object_->unref();
  }
  Ref &operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  T *get() const { return object_; }
  T *operator->() const { return object_; }
  T &operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref &a, const Ref &b) { return a.object_ == b.object_; }

 private:
  T *object_ = nullptr;
};

template <class T, class... Args>
Ref<T> make(Args &&...args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tpfsdp
