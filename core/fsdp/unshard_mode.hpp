// SPDX-License-Identifier: Apache-2.0
// How the full parameters of a unit come to be: a copy per rank, read from the shards of all; one copy per host, of
// which each rank writes its part; or none, because the shards lie in order in memory that all ranks have mapped.
#pragma once

#include "comm/group.hpp"

namespace tpfsdp {

enum class ReshardKind : int32_t;

// The numbers of fully_shard.h.
enum class UnshardMode : int32_t { kAuto = 0, kPrivate = 1, kShared = 2, kMapped = 3 };

const char *mode_name(UnshardMode mode) noexcept;

struct ModeChoice {
  UnshardMode mode = UnshardMode::kAuto;  // kAuto: until it is known what fits
  std::string reason;
  bool is_library_choice = false;  // at the first step

  // One copy for all ranks of a host, which nobody may write while another computes on it.
  bool is_common() const { return mode == UnshardMode::kShared || mode == UnshardMode::kMapped; }
};

// What of a wish can be.
ModeChoice choose_mode(UnshardMode wish, const Group &group, bool has_host_memory, ReshardKind reshard);

// Of units whose choice is kAuto: what this rank wants, and what holds when all have said so. `needed_bytes` is what
// the tree would take on this rank with private copies.
UnshardMode mode_that_fits(int64_t needed_bytes, int64_t budget_bytes);
ModeChoice settle_mode(UnshardMode own, UnshardMode agreed, int64_t needed_bytes, int64_t budget_bytes);

}  // namespace tpfsdp
