// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fully_shard.hpp"

#include "fsdp/root.hpp"

#include <algorithm>
#include <new>
#include <unordered_set>

namespace tpfsdp {
namespace {

using Seen = std::unordered_set<const Module *>;

bool is_below(Module &above, const Module &module) {
  bool found = false;
  for_each_below(above, [&](const Module &below) { found = found || (&below == &module && &below != &above); });
  return found;
}

void collect_managed(const Ref<Module> &module, bool is_root, Seen &seen, std::vector<Module *> &out) {
  if ((module->state && !is_root) || !seen.insert(module.get()).second) return;
  for (const auto &[name, child] : module->children()) {
    if (child) collect_managed(child, false, seen, out);
  }
  out.push_back(module.get());
}

std::vector<Module *> managed_modules(const std::vector<Ref<Module>> &roots) {
  Seen seen;
  std::vector<Module *> out;
  for (const Ref<Module> &root : roots) collect_managed(root, true, seen, out);
  return out;
}

[[noreturn]] void refuse_no_module() { fail(TPFSDP_ERR_INVALID_ARGUMENT, "fully_shard needs at least one module"); }

void check_modules(const std::vector<Ref<Module>> &modules) {
  if (modules.empty()) refuse_no_module();
  for (size_t i = 0; i < modules.size(); ++i) {
    const Module &module = *modules[i];
    if (std::find(modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(i), modules[i]) !=
        modules.begin() + static_cast<std::ptrdiff_t>(i))
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", module.path(),
           "\" is in the list twice; modules must be distinct");
    if (!module.options().has_forward)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "module \"", module.path(), "\" (", module.options().class_name,
           ") is a container without forward and cannot be sharded by itself: shard its children, or pass them as a "
           "list");
    if (module.state) fail(TPFSDP_ERR_STATE, "fully_shard was already applied to module \"", module.path(), "\"");
    if (module.is_managed)
      fail(TPFSDP_ERR_STATE, "module \"", module.path(),
           "\" belongs to an earlier fully_shard of a module above it: shard children first, then their parents");
  }
}

Ref<Mesh> checked_mesh(Ref<Mesh> mesh, const Module &module) {
  if (!mesh)
    return make<Mesh>(std::vector<Ref<Group>>{Ref<Group>(&module.context().group())}, std::vector<std::string>{},
                      nullptr);
  if (mesh->ndim() > 2)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "fully_shard expects a 1-D or 2-D mesh, got ", mesh->ndim(), "-D");
  if (mesh->ndim() == 2 && mesh->names().empty())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a 2-D mesh replicates over its first dimension and needs dimension names");
  if (mesh->ndim() == 2)
    fail(TPFSDP_ERR_UNSUPPORTED, "this version shards over 1-D meshes; slice one dimension of (", mesh->names()[0],
         ", ", mesh->names()[1], ")");
  return mesh;
}

void set_reshard(State &state, const ShardOptions &options, const Group &group) {
  state.reshard_kind = options.reshard;
  if (options.reshard != ReshardKind::kSize) return;
  const int32_t size = options.reshard_size, world = group.size();
  if (size < 1 || world % size != 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "reshard_after_forward is SIZE(", size, "), but the mesh of module \"",
         state.modules.front()->path(), "\" has ", world, " ranks: give a divisor of it");
  if (size == 1)
    group.owner().log(kLogWarning, "fsdp",
                      cat("reshard_after_forward SIZE(1) of module \"", state.modules.front()->path(),
                          "\" keeps everything on every rank: NEVER says so"));
  state.reshard_kind = size == 1 ? ReshardKind::kNever : size == world ? ReshardKind::kAlways : ReshardKind::kSize;
  if (state.reshard_kind == ReshardKind::kSize) state.reshard_size = size;
}

void check_params(const std::vector<Ref<Param>> &params) {
  for (const Ref<Param> &param : params) {
    if (param->unit)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "parameter ", param->full_name(), " is shared with unit \"",
           static_cast<ParamGroup *>(param->unit)->state.name(),
           "\", which has sharded it already: shard both modules in one call, as a list");
    if (!param->values())
      fail(TPFSDP_ERR_STATE, "parameter ", param->full_name(),
           " has no values: the tree that sharded it has ended and took them; call tpfsdp_param_set_tensor first");
    check_in_host_memory(param->values()->view(), param->full_name(), true);
    if (param->shape().empty())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "parameter ", param->full_name(),
           " is a scalar and has no rows to cut: make it 1-D with one element, or ignore it");
  }
}

void commit(const std::shared_ptr<State> &state, const std::vector<Module *> &managed) noexcept {
  for (Module *module : managed) module->is_managed = true;
  for (Module *module : state->modules) module->state = state;
  if (!state->unit) return;
  for (size_t i = 0; i < state->unit->params.size(); ++i) {
    ShardedParam &sharded = state->unit->params[i];
    Param &param = *sharded.param;
    param.unit = state->unit.get();
    param.index_in_unit = static_cast<int64_t>(i);
    param.hide(Face::kFull);
    param.show(Face::kShard, sharded.shard, sharded.local_shape);
    param.drop_values();  // the host may free its memory now
  }
}

}  // namespace

std::vector<Ref<Param>> managed_params(const std::vector<Ref<Module>> &roots,
                                       const std::vector<const Param *> &ignored) {
  std::unordered_set<const Param *> seen(ignored.begin(), ignored.end());
  std::vector<Ref<Param>> out;
  for (const Module *module : managed_modules(roots)) {
    for (const auto &[name, param] : module->params()) {
      if (!param) continue;
#if defined(TPFSDP_MUTANT_TIED_ONE_PLACE)
      if (std::find(ignored.begin(), ignored.end(), param.get()) == ignored.end()) out.push_back(param);
#else
      if (seen.insert(param.get()).second) out.push_back(param);
#endif
    }
  }
  return out;
}

void fully_shard(const std::vector<Ref<Module>> &modules, Ref<Mesh> mesh,
                 const std::function<ShardOptions()> &read_options) {
  if (modules.empty() && !mesh) refuse_no_module();  // nobody to tell
  const Ref<Group> told = mesh ? mesh->group(mesh->ndim() - 1) : Ref<Group>(&modules.front()->context().group());
  try {
    ShardOptions options = read_options();
    check_modules(modules);
    mesh = checked_mesh(std::move(mesh), *modules.front());
    std::vector<Ref<Module>> roots;
    for (const Ref<Module> &module : modules) {
      const bool nested =
          std::any_of(modules.begin(), modules.end(), [&](const auto &other) { return is_below(*other, *module); });
      if (!nested) roots.push_back(module);
    }
    const std::vector<Ref<Param>> params = managed_params(roots, options.ignored);
    check_params(params);
    auto state = std::make_shared<State>();
    for (const Ref<Module> &module : modules) state->modules.push_back(module.get());
    set_reshard(*state, options, *mesh->group(0));
    check_precision(options.precision);
    state->precision = options.precision;
    if (!params.empty()) {
      state->unit = make<ParamGroup>(*state, std::move(mesh), params, std::move(options));
    }
    commit(state, managed_modules(roots));
  } catch (const Failure &failure) {
    if (told->size() == 1) throw;
    fail_collective(*told, failure);
  } catch (const std::bad_alloc &) {
    if (told->size() > 1) told->post_failure(TPFSDP_ERR_OUT_OF_MEMORY, "out of memory");
    told->give_up();
    throw;
  }
}

}  // namespace tpfsdp
