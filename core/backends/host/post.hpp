// SPDX-License-Identifier: Apache-2.0
// Posting never waits: the bound on collectives in flight leaves every slot of the ring free when it is written again.
#ifndef TPFSDP_BACKENDS_HOST_POST_HPP
#define TPFSDP_BACKENDS_HOST_POST_HPP

#include <cstddef>
#include <cstdint>

#include "comm.hpp"

namespace tpfsdp::host {

/// Publishes the next sequence of this rank and returns it. data: INLINE_BYTES, may be null.
uint64_t post(Comm &comm, const Record::Body &body, const std::byte *data, const char *text = nullptr);
/// Sees records of sequences that were given up, without waiting, so that more may be posted.
void catch_up(Comm &comm);
/// True while this rank's own last post is an ERR or RESET that some peer has not met yet.
bool last_post_unread(Comm &comm, Post post);
/// The last sequence whose record of that rank is there.
uint64_t last_posted(const Comm &comm, int32_t rank);

}  // namespace tpfsdp::host

#endif
