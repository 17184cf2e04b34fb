// SPDX-License-Identifier: Apache-2.0
// One sequence of an operation: where its data lies, and the post.
#ifndef TPFSDP_BACKENDS_HOST_POST_OP_HPP
#define TPFSDP_BACKENDS_HOST_POST_OP_HPP

#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// An operation, or as much of it as one sequence moves.
struct Posting {
  tpfsdp_backend_op op;
  int64_t elements;          ///< that move, of the kinds without pieces; what ranks agree on is op.element_count
  const void *source;        ///< what peers read
  Memory *staged = nullptr;  ///< the source lies in it, not in the operation's own region
  int32_t window = 0;        ///< of staged data
  uint8_t phase = 0;         ///< of an all-reduce of two sequences
};
Posting whole_of(const tpfsdp_backend_op &op);

/// An all-reduce whose data does not travel in the records: slice r is reduced by rank r in a first sequence, and
/// gathered from there in a second.
bool is_in_halves(const Comm &comm, const tpfsdp_backend_op &op);

/// At most IN_FLIGHT sequences of which this rank has not seen all records.
Outcome make_room(Comm &comm, tpfsdp_backend_call *call, bool may_wait);
uint64_t post_op(Comm &comm, const Posting &posting);
/// Both halves: the first is completed, then the second posted, whose result goes to `output`. Reduced slices lie at
/// posting.op.output meanwhile, which may be the same.
Outcome post_halves(Comm &comm, tpfsdp_backend_call *call, Posting posting, void *output, bool may_wait,
                    uint64_t *out_sequence);

}  // namespace tpfsdp::host

#endif
