// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh_grid.hpp"

#include "base/hash.hpp"
#include "comm/exchange.hpp"

#include <algorithm>

namespace tpfsdp {

Grid gather_grid(const std::vector<Ref<Group>> &groups) {
  // First the number, so that each rank's row of the grid is only ranks.
  std::vector<int64_t> cells = {groups.front()->owner().rank()};
  int64_t number = groups.front()->owner().last_group_number;
  // From the innermost: what is gathered grows by one dimension each time.
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    std::vector<int64_t> mine = cells;
    mine.push_back(number);
    std::vector<int64_t> all(mine.size() * static_cast<size_t>((*group)->size()));
    exchange_bytes(*group, mine.data(), static_cast<int64_t>(mine.size() * sizeof(int64_t)), all.data());
    cells.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      if ((i + 1) % mine.size() == 0) {
        number = std::max(number, all[i]);
      } else {
        cells.push_back(all[i]);
      }
    }
  }
  Grid grid;
  grid.last_group_number = number;
  for (const int64_t rank : cells) grid.global_ranks.push_back(static_cast<int32_t>(rank));
  return grid;
}

namespace {

// What is wrong with the grid as this rank sees it; "" if nothing.
std::string fault_of(const std::vector<Ref<Group>> &groups, const std::vector<int32_t> &grid) {
  std::vector<int32_t> sorted = grid;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return cat("rank ", *twice, " is in the grid twice");
  size_t stride = grid.size();
  size_t origin = 0;  // of this rank
  std::vector<size_t> strides;
  for (const Ref<Group> &group : groups) {
    stride /= static_cast<size_t>(group->size());
    strides.push_back(stride);
    origin += stride * static_cast<size_t>(group->rank());
  }
  for (size_t dim = 0; dim < groups.size(); ++dim) {
    const Group &group = *groups[dim];
    for (int32_t i = 0; i < group.size(); ++i) {
      const size_t cell =
          origin - strides[dim] * static_cast<size_t>(group.rank()) + strides[dim] * static_cast<size_t>(i);
      const int32_t expected = group.global_ranks()[static_cast<size_t>(i)];
      if (grid[cell] != expected)
        return cat("group \"", group.name(), "\" has rank ", expected, " where the grid of all groups has rank ",
                   grid[cell]);
    }
  }
  return "";
}

}  // namespace

void check_grid(const std::vector<Ref<Group>> &groups) {
  if (groups.size() == 1) return;
  const Grid grid = gather_grid(groups);
  const std::string fault = fault_of(groups, grid.global_ranks);
  // Ranks whose lines cross have seen the same grid if each line has: one exchange along each dimension.
  struct Vote {
    uint64_t hash;
    int64_t is_bad;
  };
  Vote vote{hash_bytes(grid.global_ranks.data(), grid.global_ranks.size() * sizeof(int32_t)), fault.empty() ? 0 : 1};
  for (const Ref<Group> &group : groups) {
    for (const Vote &other : exchange(group, vote)) {
      if (other.hash != vote.hash || other.is_bad) vote.is_bad = 1;
    }
  }
  if (!vote.is_bad) return;
  fail(TPFSDP_ERR_INVALID_ARGUMENT, groups.front()->describe_rank(),
       ": the groups are not the lines of one grid: ", fault.empty() ? "ranks see different grids" : fault);
}

}  // namespace tpfsdp
