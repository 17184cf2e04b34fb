// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <algorithm>
#include <limits>

#include "invariant.hpp"

namespace tpfsdp::host {

namespace {

/// A count of this rank may stay or grow, up to what it has posted.
void set(Comm &comm, uint64_t *count, Word &word, uint64_t sequence, Point point) {
  invariant(comm, sequence >= word.load(std::memory_order_relaxed) && sequence <= comm.posted, "WORD_MONOTONE");
  *count = sequence;
  comm.words.publish(word, sequence, point);
}

template <Word Lane::*word>
uint64_t least_of_peers(const Layout &layout, int32_t rank, int32_t world_size) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (int32_t peer = 0; peer < world_size; ++peer)
    if (peer != rank) least = std::min(least, (layout.lane(peer).*word).load(std::memory_order_acquire));
  return least;
}

}  // namespace

void set_done(Comm &comm, uint64_t sequence) { set(comm, &comm.done, comm.lane().done, sequence, Point::DONE); }

void set_step(Comm &comm, uint64_t sequence) { set(comm, &comm.step, comm.lane().step, sequence, Point::STEP); }

uint64_t done_by_all(const Layout &layout, int32_t rank, int32_t world_size) {
  return least_of_peers<&Lane::done>(layout, rank, world_size);
}

uint64_t step_by_all(const Comm &comm) { return least_of_peers<&Lane::step>(comm.layout, comm.rank, comm.world_size); }

}  // namespace tpfsdp::host
