// SPDX-License-Identifier: Apache-2.0
// The regions of a rank that is a process: ranges of one file, which peers get once, when they meet, and map as records
// name them. A range is used once, so that what a record names is never something else.
#ifndef TPFSDP_BACKENDS_HOST_ARENA_HPP
#define TPFSDP_BACKENDS_HOST_ARENA_HPP

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "segment.hpp"
#include "shared_file.hpp"

namespace tpfsdp::host {

/// This rank's own. Its file carries a lock that the kernel drops when the process ends, is replaced by another
/// program, or closes its descriptors: by that peers know that it is there.
class Arena {
 public:
  Outcome create();
  const SharedFile &file() const { return file_; }
  Outcome allocate(size_t bytes, Memory *out);
  void free(const Memory &memory) noexcept;
  /// The same memory where it cannot be written. Throws bad_alloc.
  const std::byte *map_readable(const Memory &memory) const;
  /// In the file.
  static uint64_t offset_of(const Memory &memory);
  /// Without taking it from peers that may read it still: it is gone with the last of them.
  static void leave(const Memory &memory) noexcept;

 private:
  SharedFile file_;
  uint64_t end_ = 0;
};

/// A process, whatever numbers it has in which namespace.
struct ProcessKey {
  uint64_t low = 0, high = 0;
  bool operator==(const ProcessKey &other) const { return low == other.low && high == other.high; }
};
/// Drawn once a process, and again in a forked child.
ProcessKey own_process_key();

/// A peer's.
class PeerArena {
 public:
  PeerArena() = default;
  PeerArena(SharedFile file, pid_t pid, const ProcessKey &key) : file_(std::move(file)), pid_(pid), key_(key) {}
  PeerArena(PeerArena &&) = default;
  ~PeerArena();

  /// Null if the bytes do not lie in that region. Throws bad_alloc when it cannot be mapped.
  const std::byte *find(const Place &place, uint64_t bytes);
  /// All of a region, for good: at an address to write and at one to read.
  Outcome map(const Place &place, size_t bytes, Mapping *out) const;
  const SharedFile &file() const { return file_; }
  /// False: nothing more of it can be mapped, since the host of this rank closed its file.
  bool is_reachable() const { return file_.is_intact(); }
  Vital look_at() const;
  std::string fate() const;

 private:
  struct View {
    std::byte *data = nullptr;
    size_t bytes = 0;
    uint64_t used = 0;  ///< when, by the count of looks
  };
  View *view(uint64_t region);
  void forget_oldest();

  SharedFile file_;
  pid_t pid_ = 0;
  ProcessKey key_;
  std::map<uint64_t, View> views_;
  uint64_t looks_ = 0;
  uint64_t last_region_ = 0;
  View *last_ = nullptr;
};

}  // namespace tpfsdp::host

#endif
