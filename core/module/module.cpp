// SPDX-License-Identifier: Apache-2.0
#include "module/module.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

template <class Places>
auto find_name(Places &places, const std::string &name) {
  return std::find_if(places.begin(), places.end(), [&](const auto &place) { return place.first == name; });
}

auto find_buffer(auto &buffers, const std::string &name) {
  return std::find_if(buffers.begin(), buffers.end(), [&](const auto &buffer) { return buffer.name == name; });
}

bool reaches(Module &from, const Module *target) {
  bool found = false;
  for_each_below(from, [&](const Module &below) { found = found || &below == target; });
  return found;
}

}  // namespace

Module::Module(Ref<Context> context, ModuleOptions options)
    : id_(next_identity()), context_(std::move(context)), options_(std::move(options)) {}

Module::~Module() {
  if (hooks) hooks->forget_module();
  if (state) state->forget(*this);
  state = nullptr;  // before the parameters it refers to
  for (const auto &[name, child] : children_) detach_child(child);
  for (const auto &[name, param] : params_) {
    if (param) param->remove_place(this, name);
  }
}

std::string Module::path() const {
  if (parents_.empty()) return "";
  const Module &above = *parents_.front();
  const auto here = std::find_if(above.children_.begin(), above.children_.end(),
                                 [&](const auto &child) { return child.second.get() == this; });
  const std::string prefix = above.path();
  return prefix.empty() ? here->first : cat(prefix, ".", here->first);
}

const char *Module::path_for_caller() {
  path_for_caller_ = path();
  return path_for_caller_.c_str();
}

void Module::check_new_name(const char *what, const std::string &name) const {
  if (name.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "the name of a ", what, " may not be empty");
  if (name.find('.') != std::string::npos)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the name of a ", what, " may not contain a dot: \"", name, "\"");
}

void Module::check_not_managed(const char *what, const std::string &name) const {
  if (is_managed)
    fail(TPFSDP_ERR_STATE, what, " \"", name, "\" cannot be set on module \"", path(),
         "\": it is sharded already; build the tree first, then call fully_shard");
}

void Module::detach_child(const Ref<Module> &child) noexcept {
  if (!child) return;
  const auto place = std::find(child->parents_.begin(), child->parents_.end(), this);
  if (place != child->parents_.end()) child->parents_.erase(place);
}

void Module::attach(const std::string &name, const Ref<Module> &child) {
  check_not_managed("module", name);
  if (child && reaches(*child, this))
    fail(TPFSDP_ERR_STATE, "module \"", name, "\" contains the module it would be put into: a tree has no cycle");
  const auto place = find_name(children_, name);
  if (child) child->parents_.push_back(this);
  if (place == children_.end()) {
    children_.emplace_back(name, child);
  } else {
    detach_child(std::exchange(place->second, child));
  }
}

void Module::add_module(const std::string &name, Ref<Module> child) {
  check_new_name("module", name);
  if (find_name(params_, name) != params_.end() || find_buffer(buffers_, name) != buffers_.end())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", path(), "\" already has a parameter or buffer \"", name, "\"");
  attach(name, child);
}

void Module::register_parameter(const std::string &name, Ref<Param> param) {
  check_new_name("parameter", name);
  check_not_managed("parameter", name);
  if (find_name(children_, name) != children_.end() || find_buffer(buffers_, name) != buffers_.end())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", path(), "\" already has a module or buffer \"", name, "\"");
  if (param && param->unit)
    fail(TPFSDP_ERR_STATE, "parameter ", param->full_name(), " is sharded already; tie parameters before fully_shard");
  const auto place = find_name(params_, name);
  if (param) param->add_place(this, name);
  if (place == params_.end()) {
    params_.emplace_back(name, std::move(param));
  } else {
    const Ref<Param> before = std::exchange(place->second, std::move(param));
    if (before) before->remove_place(this, name);
  }
}

void Module::register_buffer(const std::string &name, Ref<Tensor> tensor, bool persistent) {
  check_new_name("buffer", name);
  if (find_name(children_, name) != children_.end() || find_name(params_, name) != params_.end())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", path(), "\" already has a module or parameter \"", name, "\"");
  const auto place = find_buffer(buffers_, name);
  if (place == buffers_.end()) {
    buffers_.push_back({name, std::move(tensor), persistent});
  } else {
    *place = {name, std::move(tensor), persistent};
  }
}

std::pair<Module *, std::string> Module::split(const std::string &target) {
  const size_t dot = target.rfind('.');
  if (dot == std::string::npos) return {this, target};
  return {&get_submodule(target.substr(0, dot)), target.substr(dot + 1)};
}

void Module::refuse(const char *what, const std::string &target) const {
  fail(TPFSDP_ERR_NOT_FOUND, "module \"", path(), "\" (", options_.class_name, ") has no ", what, " \"", target, "\"");
}

Module &Module::get_submodule(const std::string &target) {
  if (target.empty()) return *this;
  const size_t dot = target.find('.');
  const std::string head = target.substr(0, dot);
  const auto place = find_name(children_, head);
  if (place == children_.end() || !place->second) refuse("module", head);
  if (dot == std::string::npos) return *place->second;
  const std::string rest = target.substr(dot + 1);
  if (rest.empty()) place->second->refuse("module", rest);
  return place->second->get_submodule(rest);
}

void Module::set_submodule(const std::string &target, Ref<Module> child, bool strict) {
  if (target.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "the target of set_submodule may not be empty");
  auto [above, name] = split(target);
  if (strict && find_name(above->children_, name) == above->children_.end()) above->refuse("module", name);
  above->add_module(name, std::move(child));
}

Param &Module::get_parameter(const std::string &target) {
  auto [above, name] = split(target);
  const auto place = find_name(above->params_, name);
  if (place == above->params_.end() || !place->second) above->refuse("parameter", name);
  return *place->second;
}

Tensor &Module::get_buffer(const std::string &target) {
  auto [above, name] = split(target);
  const auto place = find_buffer(above->buffers_, name);
  if (place == above->buffers_.end() || !place->tensor) above->refuse("buffer", name);
  return *place->tensor;
}

}  // namespace tpfsdp
