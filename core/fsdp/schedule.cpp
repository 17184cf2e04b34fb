// SPDX-License-Identifier: Apache-2.0
#include "fsdp/schedule.hpp"

#include "fsdp/gather.hpp"
#include "fsdp/root.hpp"

#include <utility>

namespace tpfsdp {

void record_post_forward(Root &root, ParamGroup &unit) {
  // Forwards whose backward never comes would make it grow for ever.
  if (root.post_forward_order.size() >= 64 * root.units.size()) forget_order(root);
  unit.post_forward_positions.push_back(static_cast<int64_t>(root.post_forward_order.size()));
  root.post_forward_order.push_back(&unit);
}

Status prefetch_before(Root &root, ParamGroup &unit, bool may_wait) {
  if (unit.post_forward_positions.empty()) return TPFSDP_OK;
  const int64_t position = unit.post_forward_positions.back();
  if (position > 0) {
    ParamGroup &before = *root.post_forward_order[static_cast<size_t>(position) - 1];
    // The gather belongs to the backward that asks for it, whatever the unit itself was last in.
    const TrainingState own = std::exchange(before.training_state, TrainingState::kPreBackward);
    const Status status = issue_gather(before, may_wait, true);
    before.training_state = own;
    if (status != TPFSDP_OK) return status;
  }
  unit.post_forward_positions.pop_back();
  return TPFSDP_OK;
}

void forget_order(Root &root) {
  for (ParamGroup *unit : root.units) unit->post_forward_positions.clear();
  root.post_forward_order.clear();
}

}  // namespace tpfsdp
