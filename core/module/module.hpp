// SPDX-License-Identifier: Apache-2.0
// The host's module tree, mirrored: names, children, parameters, buffers, flags.
#pragma once

#include "comm/context.hpp"
#include "module/hooks.hpp"
#include "module/param.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tpfsdp {

class Module;

// What fully_shard hangs on a module; core/fsdp derives it.
class ModuleState {
 public:
  virtual ~ModuleState() = default;
  // The module ends; others may still hold this state.
  virtual void forget(const Module &module) noexcept = 0;
};

struct ModuleOptions {
  bool has_forward = true;
  std::string class_name = "Module";
  std::vector<std::string> base_names;
  std::string extra_repr;
  void *user = nullptr;
};

class Module final : public Object {
 public:
  static constexpr Kind kKind = Kind::kModule;

  struct Buffer {
    std::string name;
    Ref<Tensor> tensor;  // null: an empty place
    bool persistent = true;
  };
  using Children = std::vector<std::pair<std::string, Ref<Module>>>;
  using Params = std::vector<std::pair<std::string, Ref<Param>>>;
  using Buffers = std::vector<Buffer>;

  Module(Ref<Context> context, ModuleOptions options);
  ~Module() override;

  Kind kind() const override { return kKind; }
  Gate *gate() const override { return context_->gate(); }
  std::string describe_rank() const override { return context_->describe_rank(); }

  int64_t id() const { return id_; }
  Context &context() const { return *context_; }
  const ModuleOptions &options() const { return options_; }
  // Direct, in order of registration; empty places included.
  const Children &children() const { return children_; }
  const Params &params() const { return params_; }
  const Buffers &buffers() const { return buffers_; }
  Module *parent() const { return parents_.empty() ? nullptr : parents_.front(); }
  // Dotted name from the top by the first place of each; "" at the top.
  std::string path() const;
  const char *path_for_caller();

  void add_module(const std::string &name, Ref<Module> child);
  void set_submodule(const std::string &target, Ref<Module> child, bool strict);
  void register_parameter(const std::string &name, Ref<Param> param);
  void register_buffer(const std::string &name, Ref<Tensor> tensor, bool persistent);

  Module &get_submodule(const std::string &target);
  Param &get_parameter(const std::string &target);
  Tensor &get_buffer(const std::string &target);

  bool training = true;
  bool grad_enabled = true;
  std::shared_ptr<ModuleState> state;  // of fully_shard on this module
  std::unique_ptr<Hooks> hooks;        // null until the host sets a method or a hook
  int64_t last_walk = 0;               // the walk that met it last, see for_each_below
  bool is_managed = false;             // some fully_shard call walked it: its tree does not change any more

 private:
  void check_new_name(const char *what, const std::string &name) const;
  void check_not_managed(const char *what, const std::string &name) const;
  void attach(const std::string &name, const Ref<Module> &child);
  void detach_child(const Ref<Module> &child) noexcept;
  std::pair<Module *, std::string> split(const std::string &target);
  [[noreturn]] void refuse(const char *what, const std::string &target) const;

  int64_t id_;
  Ref<Context> context_;
  ModuleOptions options_;
  Children children_;
  Params params_;
  Buffers buffers_;
  std::vector<Module *> parents_;  // one entry per place
  std::string path_for_caller_;
};

// ---- Walks, in the orders of the seed: pre-order, duplicates once unless asked for. ----

using NamedModule = std::pair<std::string, Module *>;
std::vector<NamedModule> list_children(Module &module);
std::vector<NamedModule> list_modules(Module &module, const std::string &prefix, bool remove_duplicates);
std::vector<std::pair<std::string, Param *>> list_params(Module &module, bool recurse);
std::vector<std::pair<std::string, Tensor *>> list_buffers(Module &module, bool recurse);

// Calls visit(module) for the module and all below it, each once, without allocating: for calls of every step.
template <class Visit>
void for_each_below(Module &module, Visit &&visit, int64_t walk = 0) {
  if (walk == 0) walk = next_identity();
  if (module.last_walk == walk) return;
  module.last_walk = walk;
  visit(module);
  for (const auto &[name, child] : module.children()) {
    if (child) for_each_below(*child, visit, walk);
  }
}

// One module a line, with class, shapes and extra_repr.
std::string describe(Module &module);

}  // namespace tpfsdp
