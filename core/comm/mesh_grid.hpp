// SPDX-License-Identifier: Apache-2.0
// The ranks of a grid that is known by this rank's lines only: gathered line by line, over the groups themselves.
#pragma once

#include "comm/group.hpp"

namespace tpfsdp {

struct Grid {
  std::vector<int32_t> global_ranks;  // row-major over the groups, outermost first
  int64_t last_group_number = 0;      // the highest of all its ranks
};

// Collective over all groups, which are of one rank and of one grid.
Grid gather_grid(const std::vector<Ref<Group>> &groups);

// The same, and refuses (INVALID_ARGUMENT, on every rank) groups that are no grid: a rank that is in it twice, or lines
// that other ranks see differently.
void check_grid(const std::vector<Ref<Group>> &groups);

}  // namespace tpfsdp
