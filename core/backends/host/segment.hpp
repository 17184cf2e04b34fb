// SPDX-License-Identifier: Apache-2.0
// What the ranks of a comm share: the pages of its words, and the regions that peers read in place.
#ifndef TPFSDP_BACKENDS_HOST_SEGMENT_HPP
#define TPFSDP_BACKENDS_HOST_SEGMENT_HPP

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "outcome.hpp"

namespace tpfsdp::host {

/// A region's memory as its owner sees it.
struct Memory {
  std::byte *data = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;       ///< peers find it by this and an offset; 0: by address
  uint64_t exposed = 0;  ///< last sequence at which peers may read it
  int32_t owner = 0;
};

/// Memory that all ranks use, as one of them sees it: at one address it writes, at the other it only reads. Of threads
/// they are the same.
struct Mapping {
  Memory memory;
  const std::byte *readable = nullptr;
};

/// Where in a rank's regions some data lies, as its record says it.
struct Place {
  uint64_t region;
  uint64_t offset;
};

/// What can be said of the rank behind a lane. A stopped one may go on: who waits gives it a moment.
enum class Vital { ALIVE, STOPPED, GONE };

/// Owned by all who share it: what a peer may read is freed by the last of them.
class Segment {
 public:
  virtual ~Segment() = default;
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  virtual std::byte *pages() const = 0;
  Outcome allocate(size_t bytes, Memory *out);
  virtual Outcome protect(const Memory &memory, bool read_only);
  /// Frees memory that no peer can read any more.
  void free(const Memory &memory) noexcept;
  /// Keeps memory that a peer may still read; swept once all peers have passed its exposure, at the latest with the
  /// segment itself.
  void keep(const Memory &memory) noexcept;
  void sweep(int32_t owner, uint64_t passed) noexcept;
  /// This rank's second address of memory that it has allocated. Throws bad_alloc.
  virtual Mapping map_own(const Memory &memory) = 0;
  /// Of memory that `rank` has allocated.
  virtual Outcome map_peers(int32_t rank, const Place &place, size_t bytes, Mapping *out) = 0;
  /// The memory is not this rank's alone any more, and not freed or kept by it.
  void share() noexcept;
  virtual void unmap_readable(const Mapping &mapping) noexcept = 0;
  /// Both addresses. is_last: nobody else has the memory mapped, and it is freed.
  virtual void unmap(const Mapping &mapping, bool is_last) noexcept = 0;
  /// Of data in `memory`, or, with null, of the caller's own.
  virtual Place place_of(const Memory *memory, const void *data) const = 0;
  /// Where a peer's data lies in this rank's eyes; null if `bytes` of it do not lie in its regions.
  virtual const std::byte *find(int32_t rank, const Place &place, uint64_t bytes) = 0;
  /// False: what was not found cannot be found, since this process closed the descriptors of the peer's memory.
  virtual bool is_reachable(int32_t) const { return true; }
  /// Of a rank whose lane says `life`. Asked on the slow path only.
  virtual Vital look_at(int32_t rank, Life life) const = 0;
  /// How a rank that is not alive came to that: "closed", "its process 4711 has ended".
  virtual std::string fate_of(int32_t rank, Life life) const = 0;

 protected:
  Segment() = default;
  /// What nobody had read at the end, for the destructor of who obtained it.
  std::vector<Memory> take_kept() noexcept { return std::move(kept_); }
  virtual Outcome obtain(size_t bytes, Memory *out) = 0;
  virtual void give_back(const Memory &memory) noexcept = 0;

 private:
  std::mutex mutex_;
  int64_t regions_ = 0;  ///< allocated and not freed
  std::vector<Memory> kept_;
};

/// Makes zeroed memory the pages of a new comm.
void format_pages(std::byte *pages, int32_t world_size, const std::string &name);

}  // namespace tpfsdp::host

#endif
