// SPDX-License-Identifier: Apache-2.0
// The messages of a rendezvous, over unix sockets that keep their bounds, with descriptors beside them.
#ifndef TPFSDP_BACKENDS_HOST_FRAME_HPP
#define TPFSDP_BACKENDS_HOST_FRAME_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.hpp"
#include "descriptor.hpp"
#include "provider.hpp"

namespace tpfsdp::host {

inline constexpr uint64_t FRAME_MAGIC = 0x314d485346505474;  // "tTPFSHM1"
inline constexpr uint32_t FRAME_VERSION = 1;
inline constexpr size_t FRAME_FILES = 32;

/// What rank 0 puts into the store.
struct Address {
  uint64_t magic;
  uint32_t version;
  uint32_t user;
  char machine[40];    ///< its boot id: pages are shared by processes of one kernel
  uint8_t socket[16];  ///< anybody on this machine can see it
  uint8_t secret[16];  ///< only who reads the store knows it
};

struct Hello {
  uint64_t magic;
  uint32_t version;
  int32_t rank;
  int32_t world_size;
  int32_t pid;
  ProcessKey key;
  uint8_t secret[16];
};

/// Some of the files, or why there are none.
struct Answer {
  struct Entry {
    int32_t rank;  ///< -1: the pages
    int32_t pid;
    ProcessKey key;
  };
  uint64_t magic;
  int32_t status;
  int32_t at_fault;
  int32_t count;
  int32_t reserved;
  Entry entries[FRAME_FILES];
  char text[256];
};

/// Makes an address of which nobody can guess the secret.
Address draw_address();
Outcome listen_at(const Address &address, Descriptor *out);
/// PENDING: nobody listens there (yet, or any more).
Outcome connect_to(const Address &address, Descriptor *out);

/// 1: sent with its files, at most FRAME_FILES; 0: not now, since the peer is slow or as many descriptors are under way
/// as one user may have; -1: the peer has gone.
int send_frame(const Descriptor &socket, const void *frame, size_t bytes, const std::vector<int> &files);
/// As many bytes as the frame has, with its files. 1: received, 0: nothing is there yet, -1: the peer has gone, or sent
/// something else, -2: no descriptors are left for the files.
int receive_frame(const Descriptor &socket, void *frame, size_t bytes, std::vector<Descriptor> *files);

/// CANCELLED.
Outcome interrupted(const Meeting &meeting);
/// Waits until one of the descriptors can be read, a moment passes, or the host interrupts (CANCELLED), or the time is
/// over (TIMEOUT, without a text).
Outcome wait_readable(const Meeting &meeting, const std::vector<int> &descriptors);
/// The same for nothing but time.
Outcome wait_a_moment(const Meeting &meeting);

}  // namespace tpfsdp::host

#endif
