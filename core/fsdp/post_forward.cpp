// SPDX-License-Identifier: Apache-2.0
#include "fsdp/post_forward.hpp"

#include "device/kernels.hpp"
#include "fsdp/root.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

bool wants_part(const ParamGroup &unit) { return unit.state.reshard_kind == ReshardKind::kSize; }

// The ranks of a group in its order, k at a time.
Ref<Group> group_of_part(Root &root, const ParamGroup &unit) {
  const int32_t size = unit.state.reshard_size;
  for (const ParamGroup *other : root.units) {
    if (other->part && other->group == unit.group && other->state.reshard_size == size) return other->part->route.group;
  }
  auto group = Group::split(unit.group, unit.group->rank() / size, unit.group->rank(),
                            cat(unit.group->name(), "/reshard", size));
  root.groups.push_back(group);
  return group;
}

}  // namespace

Status make_post_forward_groups(Root &root, bool may_wait) {
  for (ParamGroup *unit : root.units) {
    if (!wants_part(*unit) || unit->part) continue;
    if (!may_wait) return TPFSDP_PENDING;
    auto part = std::make_unique<PostForwardPart>();
    part->route = route_over_parts(group_of_part(root, *unit), unit->layout);
    part->pieces = pieces_of_part(unit->layout, part->route.group->size(), part->route.group->rank());
    unit->part = std::move(part);
  }
  return TPFSDP_OK;
}

void lay_out_part(ParamGroup &unit) {
  if (!wants_part(unit)) {
    unit.part = nullptr;
  } else if (!unit.part->memory.data() && unit.layout.full_bytes > 0) {
    Group &group = *unit.part->route.group;
    unit.part->memory = Region(group, part_bytes(unit.layout, group.size()), &unit.root().account);
  }
}

void keep_part(ParamGroup &unit) {
  PostForwardPart &part = *unit.part;
  // Peers may read it since an earlier forward of this version: what it holds is right already.
  if (part.version != unit.gathered_version) {
    for (const PartPiece &piece : part.pieces)
      copy_bytes(part.memory.data() + piece.part_offset, unit.params[piece.param].full + piece.param_offset,
                 piece.size_bytes);
    part.version = unit.gathered_version;
  }
  part.is_held = true;
}

void forget_part(ParamGroup &unit) noexcept {
  if (!unit.part) return;
  unit.part->is_held = false;
  if (unit.sharded_state == ShardedState::kShardedPostForward) unit.sharded_state = ShardedState::kSharded;
}

bool has_fresh_part(const ParamGroup &unit) {
  return unit.part && unit.part->is_held && unit.part->version == unit.version && unit.root().window == Window::kClosed;
}

}  // namespace tpfsdp
