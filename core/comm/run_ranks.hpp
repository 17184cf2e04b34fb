// SPDX-License-Identifier: Apache-2.0
// Runs one function as N ranks, each on a thread of its own.
#pragma once

#include "comm/context.hpp"

#include <functional>

namespace tpfsdp {

// What a rank does. Returns when it is done, or throws.
using RankBody = std::function<void(int32_t rank, int32_t world_size, const Ref<Context> &context)>;

// Every rank joins, runs `body` and shuts down. The first rank that fails aborts the others, and its failure is thrown;
// what the others then meet (REMOTE, ABORTED, PEER_LOST) never hides it. The interrupt of `options` is asked on this
// thread; rank, world_size and store are not looked at.
void run_ranks(int32_t rank_count, JoinOptions options, const RankBody &body);

}  // namespace tpfsdp
