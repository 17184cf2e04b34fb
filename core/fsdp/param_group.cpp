// SPDX-License-Identifier: Apache-2.0
#include "fsdp/param_group.hpp"

#include "base/hash.hpp"
#include "comm/collectives.hpp"
#include "device/kernels.hpp"
#include "fsdp/digest.hpp"
#include "fsdp/fully_shard.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"
#include "fsdp/state.hpp"

#include <algorithm>
#include <utility>

namespace tpfsdp {
namespace {

std::vector<ParamSpec> specs_of(const std::vector<ShardedParam> &params, const MixedPrecision &precision) {
  std::vector<ParamSpec> specs;
  for (const ShardedParam &p : params) {
    const tpfsdp_dtype dtype = p.param->dtype();
    specs.push_back({p.param->shape(), dtype, p.param->requires_grad(), precision.full_dtype(dtype),
                     precision.reduction_dtype(dtype)});
  }
  return specs;
}

std::vector<ShardedParam> wrap(const std::vector<Ref<Param>> &managed) {
  std::vector<ShardedParam> params(managed.size());
  for (size_t i = 0; i < managed.size(); ++i) params[i].param = managed[i];
  return params;
}

}  // namespace

ParamGroup::ParamGroup(State &owner, Ref<Mesh> shard_mesh, const std::vector<Ref<Param>> &managed, ShardOptions options)
    : state(owner),
      mesh(std::move(shard_mesh)),
      group(mesh->group(0)),
      params(wrap(managed)),
      layout(specs_of(params, state.precision), group->size(), options.ownership),
      init_mode(options.init),
      host_memory(std::move(options.host_memory)),
      mode(choose_mode(options.unshard_mode, *group, static_cast<bool>(host_memory), state.reshard_kind)),
      shard_places(layout.shard_places(group->rank())) {
  name = state.name();  // until the root is settled
  if (mode.mode == UnshardMode::kMapped) {
    if (group->size() > 1) Digest(group, {this}, mode.mode).wait(true);  // before memory is made for unlike models
    mapped.create(*group, layout.full_bytes, nullptr, true);
  }
  if (!has_mapped_shards()) shards = Region(*group, shard_places.size_bytes, nullptr);
  for (size_t i = 0; i < params.size(); ++i) cut(params[i], i);
  shards_route = route_over_shards(group, layout);
  reduce_pieces.reserve(params.size());
  reduce_counts.reserve(2 * params.size());
}

ParamGroup::~ParamGroup() {
  drop_full_parameters(*this);
  for (ShardedParam &p : params) {
    if (p.param->unit != this) continue;
    p.param->unit = nullptr;
    p.param->index_in_unit = -1;
    for (const Face face : {Face::kShard, Face::kFull, Face::kGrad}) p.param->hide(face);
  }
}

Gate *ParamGroup::gate() const { return group->gate(); }

void ParamGroup::outside_ref() noexcept { state.modules.front()->ref(); }

void ParamGroup::outside_unref() noexcept { state.modules.front()->unref(); }

void ParamGroup::run_deferred() noexcept {
  if (const int32_t owed = owed_unpins.exchange(0, std::memory_order_acq_rel)) take_pins_back(*this, owed);
  Object::run_deferred();  // may end this unit
}

Root &ParamGroup::root() const { return *state.root; }

bool ParamGroup::keeps() const {
  return state.reshard_kind == ReshardKind::kNever || (state.reshard_kind == ReshardKind::kAuto && state.is_root());
}

bool ParamGroup::has_accumulated() const {
  return std::any_of(params.begin(), params.end(), [](const ShardedParam &p) { return p.accumulated; });
}

void ParamGroup::cut(ShardedParam &sharded, size_t index) {
  Param &param = *sharded.param;
  const ParamLayout &at = layout.params[index];
  const ElementRange owned = layout.owned(index, group->rank());
  if (has_mapped_shards()) {
    sharded.shard = own_part(mapped.data(), index);
  } else if (shards.data()) {
    sharded.shard = shards.data() + shard_places.offsets[index];
  }
  if (layout.ownership.cuts_inside_rows()) {
    sharded.local_shape = {owned.count()};
    sharded.flat_offset = owned.begin;
  } else {
    const RowRange rows = layout.owned_rows(index, group->rank());
    sharded.local_shape = param.shape();
    sharded.local_shape.front() = rows.count();
    sharded.offsets.assign(param.shape().size(), 0);
    sharded.offsets.front() = rows.begin;
  }

  const void *values = param.values()->view().data;
  Buffer received;
  if (init_mode == InitMode::kBroadcast && group->size() > 1 && at.value_bytes() > 0) {
    received = Buffer(at.value_bytes(), nullptr);
    if (group->rank() == 0 && !values)
      fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(), " is on META on rank 0 of group ", group->name(),
           ", whose values init BROADCAST gives to all: give it memory first");
    if (group->rank() == 0) copy_bytes(received.data(), values, at.value_bytes());
    tpfsdp_view view = param.values()->view();
    view.data = received.data();
    view.read_only = 0;
    view.device_type = TPFSDP_DEVICE_CPU;
    view.device_id = 0;
    broadcast(group, view, 0, false);
    values = received.data();
  }
  if (!values && at.value_bytes() > 0) {
    sharded.is_unwritten = true;
    return;
  }
  if (init_mode == InitMode::kVerify) sharded.value_hash = hash_bytes(values, static_cast<size_t>(at.value_bytes()));
  if (owned.count() > 0)
    copy_bytes(sharded.shard, static_cast<const std::byte *>(values) + dtype_bytes(at.dtype, owned.begin),
               dtype_bytes(at.dtype, owned.count()));
}

void ParamGroup::lay_out() {
  layout = ShardLayout(specs_of(params, state.precision), group->size(), layout.ownership);
  if (!needs_cast_shards()) {
    cast_shards = Region();
  } else if (!cast_shards.data()) {
    make_cast_shards();
  }
  const ShardPlaces places = layout.grad_shard_places(group->rank());
  second_gradient = Buffer();
  accumulator = GradSlot();
  const std::shared_ptr<Buffer> before =
      std::exchange(grad_shards, std::make_shared<Buffer>(places.size_bytes, nullptr));
  // Entered here and not by the buffer, whose last owner may be a tensor on another thread.
  root().account.subtract(before->size_bytes());
  root().account.add(grad_shards->size_bytes());
  for (size_t i = 0; i < params.size(); ++i) {
    ShardedParam &p = params[i];
    const std::byte *old = std::exchange(p.grad_shard, nullptr);
    if (places.offsets[i] < 0) {
      p.param->hide(Face::kGrad);
      continue;
    }
    if (grad_shards->data()) p.grad_shard = grad_shards->data() + places.offsets[i];
    if (!p.param->has(Face::kGrad)) continue;
    copy_bytes(p.grad_shard, old, dtype_bytes(p.param->dtype(), p.local_elements()));
    p.param->show(Face::kGrad, p.grad_shard, p.local_shape);
  }
}

void ParamGroup::make_cast_shards() {
  cast_places = layout.cast_shard_places(group->rank());
  cast_shards = Region(*group, cast_places.size_bytes, &root().account);
  cast_version = -1;
  last_shards_gather = 0;
  ++root().recorder().counters.allocations;
}

void ParamGroup::protect_shards(bool read_only) {
  if (has_mapped_shards()) {
    mapped.protect(read_only);
  } else {
    shards.protect(read_only);
  }
}

std::byte *ParamGroup::own_part(std::byte *full_buffer, size_t index) const {
  const ParamLayout &at = layout.params[index];
  return full_buffer + at.full_offset + dtype_bytes(at.full_dtype, layout.owned(index, group->rank()).begin);
}

void ParamGroup::set_destination(std::byte *base) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (base) params[i].full = base + layout.params[i].full_offset;
  }
  shards_route.aim(params);
  if (part) part->route.aim(params);
}

}  // namespace tpfsdp
