// SPDX-License-Identifier: Apache-2.0
#include "module/hooks.hpp"

#include <algorithm>

namespace tpfsdp {

void Hooks::add(std::shared_ptr<Hook> hook, bool prepend) {
  auto &list = lists_[index(hook->kind)];
  auto longer = list ? std::make_shared<HookList>(*list) : std::make_shared<HookList>();
  longer->insert(prepend ? longer->begin() : longer->end(), std::move(hook));
  list = std::move(longer);
}

void Hooks::remove(const std::shared_ptr<Hook> &hook) {
  auto &list = lists_[index(hook->kind)];
  auto shorter = std::make_shared<HookList>(*list);
  std::erase(*shorter, hook);
  hook->module = nullptr;
  list = shorter->empty() ? nullptr : std::move(shorter);
}

void Hooks::forget_module() noexcept {
  for (const auto &list : lists_) {
    if (!list) continue;
    for (const std::shared_ptr<Hook> &hook : *list) hook->module = nullptr;
  }
}

std::shared_ptr<const Method> Hooks::method(const std::string &name) const {
  for (const auto &[known, method] : methods_) {
    if (known == name) return method;
  }
  return nullptr;
}

void Hooks::set_method(const std::string &name, HostFunction call) {
  const auto before = std::find_if(methods_.begin(), methods_.end(), [&](const auto &m) { return m.first == name; });
  if (!call) {
    if (before != methods_.end()) methods_.erase(before);
    return;
  }
  const bool is_forward = before != methods_.end() ? before->second->is_forward : name == "forward";
  auto method = std::make_shared<const Method>(Method{std::move(call), is_forward});
  if (before != methods_.end()) {
    before->second = std::move(method);
  } else {
    methods_.emplace_back(name, std::move(method));
  }
}

bool Hooks::set_forward_method(const std::string &name) {
  for (auto &[known, method] : methods_) {
    if (known != name) continue;
    method = std::make_shared<const Method>(Method{method->call, true});
    return true;
  }
  return false;
}

}  // namespace tpfsdp
