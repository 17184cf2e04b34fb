// SPDX-License-Identifier: Apache-2.0
// Memory that every rank of a comm has mapped, for what a host has one copy of: common slots, mapped shards. In front
// of the data each rank has a line with its release word, the last gather whose use of the memory has ended there. It
// belongs to all who mapped it, and is given back by the last of them that leaves. note: common-regions
#ifndef TPFSDP_BACKENDS_HOST_COMMON_HPP
#define TPFSDP_BACKENDS_HOST_COMMON_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "alarm.hpp"
#include "layout.hpp"
#include "segment.hpp"
#include "wait.hpp"
#include "words.hpp"

namespace tpfsdp::host {

/// The release word of a rank that has left.
inline constexpr uint64_t RELEASED_FOR_GOOD = std::numeric_limits<uint64_t>::max();

/// One rank's hold of such memory.
struct Common {
  Common(std::shared_ptr<Segment> segment, std::shared_ptr<Alarm> alarm);

  const std::shared_ptr<Segment> segment;
  const std::shared_ptr<Alarm> alarm;
  Mapping mapping{};
  size_t bytes = 0;     ///< of the data
  uint64_t number = 0;  ///< the sequence at which it was made: all ranks call it that

  uint64_t used = 0;      ///< last gather of it that this rank has posted
  uint64_t agreed = 0;    ///< last of which the verdict was OK, so that ranks use the memory until they say otherwise
  uint64_t given_up = 0;  ///< last of which this rank knows no verdict: peers may use the memory
  uint64_t released = 0;  ///< equals the own word
  int32_t unit = -1;      ///< of `used`, for messages
  Patience patience;      ///< of the wait for its users
  bool has_left = false;

  /// Gathered here with the verdict OK, and not released: by a tree that the comm's failure is not of, or under a pin.
  bool is_in_use() const { return released < agreed; }

  static size_t head_bytes(int32_t world_size);
  std::byte *data() const { return mapping.memory.data + head_bytes(alarm->world_size); }
  const std::byte *readable() const { return mapping.readable + head_bytes(alarm->world_size); }
  Word &released_by(int32_t rank) const;
  /// Every peer's use of gathers up to this one has ended. Waits for nothing and lets nobody run.
  uint64_t released_by_all() const;
};

/// Makes new memory one that world_size ranks are about to map.
void format_common(const Memory &memory, int32_t world_size);
/// Gives up this rank's share, and says so to who waits for its release. The memory goes with the last one.
void leave(Common &common) noexcept;

}  // namespace tpfsdp::host

#endif
