// SPDX-License-Identifier: Apache-2.0
// Walks over a module tree, in the orders that the seed's named_* iterators have.
#include "module/module.hpp"

#include <unordered_set>

namespace tpfsdp {
namespace {

std::string join(const std::string &prefix, const std::string &name) {
  return prefix.empty() ? name : cat(prefix, ".", name);
}

void walk(Module &module, const std::string &prefix, bool once, std::unordered_set<const Module *> &seen,
          std::vector<NamedModule> &out) {
  if (once && !seen.insert(&module).second) return;
  out.emplace_back(prefix, &module);
  for (const auto &[name, child] : module.children()) {
    if (child) walk(*child, join(prefix, name), once, seen, out);
  }
}

void describe_below(Module &module, const std::string &name, int depth, std::string &out) {
  out.append(static_cast<size_t>(depth) * 2, ' ');
  if (!name.empty()) append_text(out, cat("(", name, "): "));
  append_text(out, cat(module.options().class_name, "(", module.options().extra_repr, ")"));
  if (module.state) append_text(out, " [sharded]");
  for (const auto &[param_name, param] : module.params()) {
    if (param)
      append_text(out, cat(" ", param_name, ": ", dtype_name(param->dtype()), shape_text(param->shape()),
                           param->requires_grad() ? "" : " frozen"));
  }
  out.push_back('\n');
  for (const auto &[child_name, child] : module.children()) {
    if (child) describe_below(*child, child_name, depth + 1, out);
  }
}

}  // namespace

std::vector<NamedModule> list_children(Module &module) {
  std::unordered_set<const Module *> seen;
  std::vector<NamedModule> out;
  for (const auto &[name, child] : module.children()) {
    if (child && seen.insert(child.get()).second) out.emplace_back(name, child.get());
  }
  return out;
}

std::vector<NamedModule> list_modules(Module &module, const std::string &prefix, bool remove_duplicates) {
  std::unordered_set<const Module *> seen;
  std::vector<NamedModule> out;
  walk(module, prefix, remove_duplicates, seen, out);
  return out;
}

std::vector<std::pair<std::string, Param *>> list_params(Module &module, bool recurse) {
  std::unordered_set<const Param *> seen;
  std::vector<std::pair<std::string, Param *>> out;
  for (const auto &[path, below] : recurse ? list_modules(module, "", true) : std::vector<NamedModule>{{"", &module}}) {
    for (const auto &[name, param] : below->params()) {
      if (param && seen.insert(param.get()).second) out.emplace_back(join(path, name), param.get());
    }
  }
  return out;
}

std::vector<std::pair<std::string, Tensor *>> list_buffers(Module &module, bool recurse) {
  std::unordered_set<const Tensor *> seen;
  std::vector<std::pair<std::string, Tensor *>> out;
  for (const auto &[path, below] : recurse ? list_modules(module, "", true) : std::vector<NamedModule>{{"", &module}}) {
    for (const auto &buffer : below->buffers()) {
      if (buffer.tensor && seen.insert(buffer.tensor.get()).second)
        out.emplace_back(join(path, buffer.name), buffer.tensor.get());
    }
  }
  return out;
}

std::string describe(Module &module) {
  std::string out;
  describe_below(module, "", 0, out);
  return out;
}

}  // namespace tpfsdp
