// SPDX-License-Identifier: Apache-2.0
#include "fsdp/param_access.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"
#include "fsdp/write_window.hpp"

#include <array>

namespace tpfsdp {
namespace {

constexpr std::array<int64_t, 64> kNoOffsets{};

[[noreturn]] void refuse_face(const Param &param, Face face) {
  if (face == Face::kGrad) fail(TPFSDP_ERR_NOT_FOUND, "parameter ", param.full_name(), " has no gradient");
  if (face == Face::kShard)
    fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(), " is in no unit: call fully_shard first");
  if (!param.unit)
    fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(),
         " has no values: the tree that sharded it has ended and took them; call tpfsdp_param_set_tensor first");
  fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(),
       " is sharded, its full values are not here: call pre_forward, pre_backward, unshard or open a scope first");
}

// For the life of a tensor: the tree stays, and with `pinned` the full values too.
std::function<void()> keep(ParamGroup &unit, bool pinned) {
  if (pinned) pin(unit);
  unit.outside_ref();
  return [&unit, pinned, gradients = unit.grad_shards] {
    if (pinned) unit.owed_unpins.fetch_add(1, std::memory_order_acq_rel);
    unit.gate()->defer(&unit);
  };
}

}  // namespace

ParamGroup &unit_of(const Param &param) {
  if (!param.unit) refuse_face(param, Face::kShard);
  return *static_cast<ParamGroup *>(param.unit);
}

ShardedParam &sharded(const Param &param) { return unit_of(param).params[static_cast<size_t>(param.index_in_unit)]; }

const tpfsdp_view &view_of_face(const Param &param, Face face) {
  if (!param.has(face)) refuse_face(param, face);
  return param.view(face);
}

Ref<Tensor> tensor_of_face(Param &param, Face face) {
  const tpfsdp_view &view = view_of_face(param, face);
  if (!param.unit) return param.values();
  ParamGroup &unit = unit_of(param);
  std::optional<ShardPlace> place;
  if (face != Face::kFull) {
    const ShardedParam &p = sharded(param);
    place =
        ShardPlace{param.shape(), p.offsets, p.flat_offset < 0 ? 0 : -1, p.flat_offset, Ref<Object>(unit.mesh.get())};
  }
  auto tensor = make<Tensor>(view, nullptr, std::move(place));
  tensor->take_over(keep(unit, face == Face::kFull));
  return tensor;
}

ShardDescription describe_shard(const Param &param) {
  if (!param.unit) return {param.shape().data(), kNoOffsets.data(), -1, -1, nullptr};
  const ShardedParam &p = sharded(param);
  const bool is_run = p.flat_offset >= 0;
  return {p.local_shape.data(), is_run ? nullptr : p.offsets.data(), is_run ? -1 : 0, p.flat_offset,
          unit_of(param).mesh.get()};
}

tpfsdp_view grad_buffer(Param &param, bool accumulate) {
  ParamGroup &unit = unit_of(param);
  const auto index = static_cast<size_t>(param.index_in_unit);
  std::byte *data = get_grad_buffer(unit, index, accumulate);
  const ParamLayout &at = unit.layout.params[index];
  tpfsdp_view view{};
  view.dtype = at.full_dtype;
  view.size_bytes = at.full_bytes();
  view.data = view.size_bytes > 0 ? data : nullptr;
  view.shape = param.shape().data();
  view.ndim = static_cast<int32_t>(param.shape().size());
  view.device_type = TPFSDP_DEVICE_CPU;
  view.epoch = reinterpret_cast<int64_t>(data);  // the same place, the same view
  return view;
}

void set_requires_grad(Param &param, bool requires_grad) {
  if (param.requires_grad() == requires_grad) return;
  if (requires_grad && !is_floating(param.dtype()))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "parameter ", param.full_name(), " of dtype ", dtype_name(param.dtype()),
         " cannot require gradients; only f64, f32, f16 and bf16 can");
  if (param.unit) {
    Root *root = unit_of(param).state.root.get();
    if (root && !root->is_between_steps())
      fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(),
           " can be frozen or unfrozen between steps only: after end_backward, with no unshard or scope under way");
    if (root) root->plan_again();
  }
  param.set_requires_grad(requires_grad);
}

void set_requires_grad(Module &module, bool requires_grad) {
  for (const auto &[name, param] : list_params(module, true)) set_requires_grad(*param, requires_grad);
}

void set_tensor(Param &param, Ref<Tensor> tensor) {
  if (param.unit) {
    replace_shard(unit_of(param), static_cast<size_t>(param.index_in_unit), *tensor);
  } else {
    param.set_values(std::move(tensor));
  }
}

void zero_gradients(Module &module, bool to_none) {
  for_each_below(module, [&](Module &below) {
    for (const auto &[name, param] : below.params()) {
      if (param && param->unit) zero_gradient(sharded(*param), to_none);
    }
  });
}

}  // namespace tpfsdp
