// SPDX-License-Identifier: Apache-2.0
// Full parameters on request, outside the hooks of a step: scopes, unshard and reshard of one module, reductions by
// segment.
#pragma once

#include "comm/work.hpp"
#include "fsdp/state.hpp"

namespace tpfsdp {

// Holds the units of some modules full until it is closed, or ends.
class Scope final : public Object {
 public:
  static constexpr Kind kKind = Kind::kScope;

  Scope(std::vector<Ref<Module>> modules, bool recurse);
  ~Scope() override;

  Kind kind() const override { return kKind; }
  Gate *gate() const override { return modules_.front()->gate(); }
  std::string describe_rank() const override { return modules_.front()->describe_rank(); }

  void close();  // throws STATE the second time

 private:
  void let_go() noexcept;

  std::vector<Ref<Module>> modules_;
  std::vector<ParamGroup *> units_;
  int64_t resets_ = 0;  // of the root when it was opened: a reset closes every scope
  bool is_open_ = false;
};

// Null when it is done; with `async` what to wait for.
Ref<Work> unshard_module(const Ref<Module> &module, bool async);
void reshard_module(Module &module);
// The same for the end of the step by finalize_backward.
Ref<Work> finalize_module(const Ref<Module> &module, bool async);
void reduce_below(Module &module);

}  // namespace tpfsdp
