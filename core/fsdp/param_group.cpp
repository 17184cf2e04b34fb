// SPDX-License-Identifier: Apache-2.0
#include "fsdp/param_group.hpp"

#include "base/hash.hpp"
#include "comm/collectives.hpp"
#include "device/kernels.hpp"
#include "fsdp/digest.hpp"
#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"
#include "fsdp/state.hpp"

#include <algorithm>
#include <utility>

namespace tpfsdp {
namespace {

std::vector<ParamSpec> specs_of(const std::vector<ShardedParam> &params) {
  std::vector<ParamSpec> specs;
  for (const ShardedParam &p : params) specs.push_back({p.param->shape(), p.param->dtype(), p.param->requires_grad()});
  return specs;
}

std::vector<ShardedParam> wrap(const std::vector<Ref<Param>> &managed) {
  std::vector<ShardedParam> params(managed.size());
  for (size_t i = 0; i < managed.size(); ++i) params[i].param = managed[i];
  return params;
}

}  // namespace

ParamGroup::ParamGroup(State &owner, Ref<Mesh> shard_mesh, const std::vector<Ref<Param>> &managed, InitMode init,
                       UnshardMode wish, HostMemory memory)
    : state(owner),
      mesh(std::move(shard_mesh)),
      group(mesh->group(0)),
      params(wrap(managed)),
      layout(specs_of(params), group->size()),
      init_mode(init),
      host_memory(std::move(memory)),
      mode(choose_mode(wish, *group, static_cast<bool>(host_memory), state.reshard_kind)),
      shard_places(layout.shard_places(group->rank())) {
  name = state.name();  // until the root is settled
  if (mode.mode == UnshardMode::kMapped) {
    if (group->size() > 1) Digest(group, {this}, mode.mode).wait(true);  // before memory is made for unlike models
    mapped.create(*group, layout.full_bytes, nullptr, true);
  } else {
    shards = Region(*group, shard_places.size_bytes, nullptr);
  }
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
  const RowRange rows = rows_of_rank(at.rows, group->size(), group->rank());
  if (mapped) {
    sharded.shard = own_part(mapped.data(), index);
  } else if (shards.data()) {
    sharded.shard = shards.data() + shard_places.offsets[index];
  }
  sharded.local_shape = param.shape();
  sharded.local_shape.front() = rows.count();
  sharded.offsets.assign(param.shape().size(), 0);
  sharded.offsets.front() = rows.begin;

  const void *values = param.values()->view().data;
  Buffer received;
  if (init_mode == InitMode::kBroadcast && group->size() > 1 && at.full_bytes() > 0) {
    received = Buffer(at.full_bytes(), nullptr);
    if (group->rank() == 0 && !values)
      fail(TPFSDP_ERR_STATE, "parameter ", param.full_name(), " is on META on rank 0 of group ", group->name(),
           ", whose values init BROADCAST gives to all: give it memory first");
    if (group->rank() == 0) copy_bytes(received.data(), values, at.full_bytes());
    tpfsdp_view view = param.values()->view();
    view.data = received.data();
    view.read_only = 0;
    view.device_type = TPFSDP_DEVICE_CPU;
    view.device_id = 0;
    broadcast(group, view, 0, false);
    values = received.data();
  }
  if (!values && at.full_bytes() > 0) {
    sharded.is_unwritten = true;
    return;
  }
  if (init_mode == InitMode::kVerify) sharded.value_hash = hash_bytes(values, static_cast<size_t>(at.full_bytes()));
  if (rows.count() > 0)
    copy_bytes(sharded.shard, static_cast<const std::byte *>(values) + rows.begin * at.row_bytes,
               rows.count() * at.row_bytes);
}

void ParamGroup::lay_out() {
  layout = ShardLayout(specs_of(params), group->size());
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

void ParamGroup::protect_shards(bool read_only) {
  if (mapped) {
    mapped.protect(read_only);
  } else {
    shards.protect(read_only);
  }
}

std::byte *ParamGroup::own_part(std::byte *full_buffer, size_t index) const {
  const ParamLayout &at = layout.params[index];
  return full_buffer + at.full_offset + rows_of_rank(at.rows, group->size(), group->rank()).begin * at.row_bytes;
}

void ParamGroup::set_destination(std::byte *base) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (base) params[i].full = base + layout.params[i].full_offset;
  }
  shards_route.aim(params);
  if (part) part->route.aim(params);
}

}  // namespace tpfsdp
