// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unshard_mode.hpp"

#include "comm/region.hpp"
#include "fsdp/param_group.hpp"

#include <utility>

namespace tpfsdp {

const char *mode_name(UnshardMode mode) noexcept {
  switch (mode) {
    case UnshardMode::kPrivate: return "private";
    case UnshardMode::kShared: return "shared";
    case UnshardMode::kMapped: return "mapped";
    case UnshardMode::kAuto: break;
  }
  return "auto";
}

ModeChoice choose_mode(UnshardMode wish, const Group &group, bool has_host_memory, ReshardKind reshard) {
  if (wish == UnshardMode::kPrivate) return {wish, "asked for"};
  if (has_host_memory) return {UnshardMode::kPrivate, "full values lie in the host's memory, of each rank"};
  if (reshard == ReshardKind::kSize)
    return {UnshardMode::kPrivate, "reshard_after_forward SIZE keeps parts of a copy per rank"};
  if (wish != UnshardMode::kMapped && group.size() == 1)
    return {UnshardMode::kPrivate, "the unit has one rank, and nobody to share a copy with"};
  if (!CommonRegion::is_possible(group))
    return {UnshardMode::kPrivate,
            cat("backend \"", group.owner().backend().name, "\" has no memory that all ranks of a host have mapped")};
  if (wish == UnshardMode::kAuto) return {wish, "decided at the first step", true};
  return {wish, "asked for"};
}

UnshardMode mode_that_fits(int64_t needed_bytes, int64_t budget_bytes) {
#if defined(TPFSDP_MUTANT_BUDGET_OF_ONE_BYTE_LESS)
  ++needed_bytes;
#endif
  return budget_bytes == 0 || needed_bytes <= budget_bytes ? UnshardMode::kPrivate : UnshardMode::kShared;
}

ModeChoice settle_mode(UnshardMode own, UnshardMode agreed, int64_t needed_bytes, int64_t budget_bytes) {
  const auto choice = [agreed](std::string reason) { return ModeChoice{agreed, std::move(reason), true}; };
  if (own == UnshardMode::kShared)
    return choice(cat("a copy per rank would bring this rank to ", needed_bytes, " bytes, over its memory budget of ",
                      budget_bytes));
  if (agreed == UnshardMode::kShared) return choice("a copy per rank does not fit the memory budget of another rank");
  if (budget_bytes == 0) return choice("no memory budget is set");
  return choice(
      cat("a copy per rank brings this rank to ", needed_bytes, " bytes, within its memory budget of ", budget_bytes));
}

}  // namespace tpfsdp
