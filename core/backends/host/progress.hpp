// SPDX-License-Identifier: Apache-2.0
// The two counts of a rank that peers wait for besides its posts: done and step. They only grow.
#ifndef TPFSDP_BACKENDS_HOST_PROGRESS_HPP
#define TPFSDP_BACKENDS_HOST_PROGRESS_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// Sequences up to this one are finished or given up here.
void set_done(Comm &comm, uint64_t sequence);
/// The end of backward was reached with everything up to `sequence` complete.
void set_step(Comm &comm, uint64_t sequence);

/// Sequences up to the result are read by no peer of `rank` any more. Waits for nothing and lets nobody run.
uint64_t done_by_all(const Layout &layout, int32_t rank, int32_t world_size);
/// The same of the agreement at the end of backward.
uint64_t step_by_all(const Comm &comm);

}  // namespace tpfsdp::host

#endif
