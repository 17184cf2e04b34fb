// SPDX-License-Identifier: Apache-2.0
// A host's {call, user, drop} record, kept by the library: copied once, dropped exactly once.
#pragma once

#include "base/error.hpp"

#include <memory>

namespace tpfsdp {

template <class Args>
class Callback {
 public:
  using Function = Status (*)(void *user, const Args *args);

  Callback() = default;
  // `Record` is any of the public {call, user, drop} records. When this throws, as for a NULL call, drop has run.
  template <class Record>
  static Callback copy_of(const Record &record, const char *name) {
    Callback callback;
    try {
      callback.held_ = std::make_shared<Held>(record.call, record.user, record.drop);
    } catch (...) {  // no memory to keep it
      if (record.drop) record.drop(record.user);
      throw;
    }
    if (!record.call) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, ".call is NULL");
    return callback;
  }

  explicit operator bool() const { return held_ != nullptr; }
  Status operator()(const Args &args) const { return held_->call(held_->user, &args); }

 private:
  struct Held {
    Held(Function c, void *u, void (*d)(void *)) : call(c), user(u), drop(d) {}
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;
    ~Held() {
      if (drop) drop(user);
#if defined(TPFSDP_MUTANT_DROP_CALLED_TWICE)
      if (drop) drop(user);
#endif
    }
    Function call;
    void *user;
    void (*drop)(void *);
  };
  std::shared_ptr<Held> held_;
};

}  // namespace tpfsdp
