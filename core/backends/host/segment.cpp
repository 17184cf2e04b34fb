// SPDX-License-Identifier: Apache-2.0
#include "segment.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <new>
#include <string>

namespace tpfsdp::host {

Outcome Segment::allocate(size_t bytes, Memory *out) {
  // Rounded up, more would be no number any more.
  if (bytes > size_t{1} << 56)
    return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY, "no machine has " + std::to_string(bytes) + " bytes for a region");
  const std::lock_guard<std::mutex> lock(mutex_);
  // A destructor cannot make room for what it must keep.
  kept_.reserve(kept_.size() + static_cast<size_t>(regions_) + 1);
  Outcome end = obtain(bytes, out);
  if (end.ok()) ++regions_;
  return end;
}

Outcome Segment::protect(const Memory &memory, bool read_only) {
  if (mprotect(memory.data, memory.bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE) == 0) return {};
  return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY, "a region cannot be protected: too many mappings");
}

void Segment::free(const Memory &memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  give_back(memory);
  --regions_;
}

void Segment::keep(const Memory &memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(memory);
}

void Segment::share() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --regions_;
}

void Segment::sweep(int32_t owner, uint64_t passed) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto over = [&](const Memory &memory) { return memory.owner == owner && memory.exposed <= passed; };
  const auto first = std::partition(kept_.begin(), kept_.end(), [&](const Memory &m) { return !over(m); });
  for (auto memory = first; memory != kept_.end(); ++memory) give_back(*memory);
  regions_ -= kept_.end() - first;
  kept_.erase(first, kept_.end());
}

void format_pages(std::byte *pages, int32_t world_size, const std::string &name) {
  FrontPage &front = *new (pages) FrontPage{};
  for (int32_t rank = 0; rank < world_size; ++rank) new (&Layout(pages, world_size).lane(rank)) Lane{};
  front.magic = LAYOUT_MAGIC;
  front.version = LAYOUT_VERSION;
  front.world_size = static_cast<uint32_t>(world_size);
  front.records = RECORDS;
  front.session = std::hash<std::string>()(name);
}

}  // namespace tpfsdp::host
