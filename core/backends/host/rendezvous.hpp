// SPDX-License-Identifier: Apache-2.0
// How the processes of a comm meet: rank 0 listens on a unix socket without a place in the file system, and says in the
// store where. Everybody sends it the file of its arena and gets those of all others. Nobody stays connected.
#ifndef TPFSDP_BACKENDS_HOST_RENDEZVOUS_HPP
#define TPFSDP_BACKENDS_HOST_RENDEZVOUS_HPP

#include <vector>

#include "arena.hpp"
#include "outcome.hpp"
#include "provider.hpp"

namespace tpfsdp::host {

/// What a rank has of a peer.
struct Met {
  SharedFile file;
  int32_t pid = 0;
  ProcessKey key;
};

/// On rank 0: takes everybody in, and gives them `pages` and each other's files.
Outcome gather_ranks(const Meeting &meeting, const SharedFile &pages, const SharedFile &own, std::vector<Met> *out);
/// On all others.
Outcome join_ranks(const Meeting &meeting, const SharedFile &own, SharedFile *pages, std::vector<Met> *out);

}  // namespace tpfsdp::host

#endif
