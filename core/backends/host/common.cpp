// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "shared_file.hpp"

namespace tpfsdp::host {

namespace {

/// The head: how many have the memory mapped, then a line a rank.
struct alignas(LINE_BYTES) Owners {
  std::atomic<int32_t> count;
};
struct alignas(LINE_BYTES) User {
  Word released;
};

Owners &owners_of(const Memory &memory) { return *reinterpret_cast<Owners *>(memory.data); }
User &user_of(const Memory &memory, int32_t rank) {
  return reinterpret_cast<User *>(memory.data + sizeof(Owners))[rank];
}

}  // namespace

Common::Common(std::shared_ptr<Segment> of_comm, std::shared_ptr<Alarm> of_rank)
    : segment(std::move(of_comm)), alarm(std::move(of_rank)) {}

size_t Common::head_bytes(int32_t world_size) {
  return whole_pages(sizeof(Owners) + sizeof(User) * static_cast<size_t>(world_size));
}

Word &Common::released_by(int32_t rank) const { return user_of(mapping.memory, rank).released; }

uint64_t Common::released_by_all() const {
  uint64_t least = RELEASED_FOR_GOOD;
  for (int32_t peer = 0; peer < alarm->world_size; ++peer)
    if (peer != alarm->rank) least = std::min(least, released_by(peer).load(std::memory_order_acquire));
  return least;
}

void format_common(const Memory &memory, int32_t world_size) {
  new (&owners_of(memory)) Owners{world_size};
  for (int32_t rank = 0; rank < world_size; ++rank) new (&user_of(memory, rank)) User{};
}

void leave(Common &common) noexcept {
  if (std::exchange(common.has_left, true)) return;
  const Memory &memory = common.mapping.memory;
  common.alarm->words.publish(common.released_by(common.alarm->rank), RELEASED_FOR_GOOD, Point::RELEASE);
#if defined(TPFSDP_MUTANT_COMMON_REGION_FREED_BY_THE_FIRST)
  const bool is_last = owners_of(memory).count.fetch_sub(1, std::memory_order_acq_rel) == common.alarm->world_size;
#else
  const bool is_last = owners_of(memory).count.fetch_sub(1, std::memory_order_acq_rel) == 1;
#endif
  common.segment->unmap(common.mapping, is_last);
  common.mapping = {};
}

}  // namespace tpfsdp::host
