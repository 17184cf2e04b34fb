// SPDX-License-Identifier: Apache-2.0
// What the host wrote for a module: methods by name, and hooks around its forward and backward.
#pragma once

#include "base/error.hpp"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tpfsdp {

class Module;

// The numbers of module.h.
enum class HookKind : int32_t { kForwardPre = 1, kForward = 2, kBackwardPre = 3, kBackward = 4 };
constexpr size_t kHookKinds = 4;

struct HostCall {
  Module *module = nullptr;
  const char *method = "";
  void *payload = nullptr;
  bool failed = false;  // the method did, and the hook wants to know
};
using HostFunction = std::function<Status(const HostCall &)>;

struct Hook {
  HostFunction call;
  HookKind kind = HookKind::kForwardPre;
  bool always_call = false;
  Module *module = nullptr;  // null once it was removed, or its module has ended
};
using HookList = std::vector<std::shared_ptr<Hook>>;

struct Method {
  HostFunction call;
  bool is_forward = false;  // framed by pre_forward and post_forward
};

class Hooks {
 public:
  // Null where there are none. What runs through a list keeps it: hooks that are added meanwhile come the next time.
  const std::shared_ptr<const HookList> &list(HookKind kind) const { return lists_[index(kind)]; }
  void add(std::shared_ptr<Hook> hook, bool prepend);
  void remove(const std::shared_ptr<Hook> &hook);
  void forget_module() noexcept;

  // Null where there is none.
  std::shared_ptr<const Method> method(const std::string &name) const;
  void set_method(const std::string &name, HostFunction call);  // empty: removes it
  bool set_forward_method(const std::string &name);             // false where there is none

  // Of a backward whose hooks have run, while the call that ran them has to come again.
  bool ran_backward_pre = false;
  bool ran_backward = false;

 private:
  static size_t index(HookKind kind) { return static_cast<size_t>(kind) - 1; }

  std::array<std::shared_ptr<const HookList>, kHookKinds> lists_;
  std::vector<std::pair<std::string, std::shared_ptr<const Method>>> methods_;
};

}  // namespace tpfsdp
