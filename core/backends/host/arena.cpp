// SPDX-License-Identifier: Apache-2.0
#include "arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>

namespace tpfsdp::host {

namespace {

/// A region's number says where it lies: first page above, count of pages below. Region 0 is none, since page 0 is kept
/// free for the lock.
constexpr int COUNT_BITS = 28;
constexpr uint64_t MOST_PAGES = (uint64_t{1} << COUNT_BITS) - 1;
constexpr uint64_t LAST_PAGE = (uint64_t{1} << (64 - COUNT_BITS)) - 1;
/// Peers' regions that stay mapped; a model's shards and gradients are two a unit.
constexpr size_t MOST_VIEWS = 1024;

uint64_t pages_of(size_t bytes) { return std::max<uint64_t>(1, (bytes + page_bytes() - 1) / page_bytes()); }

struct Range {
  uint64_t offset;
  size_t bytes;
};
Range range_of(uint64_t region) {
  return {(region >> COUNT_BITS) * page_bytes(), (region & MOST_PAGES) * page_bytes()};
}
/// A number that came from a peer may say anything.
bool lies_in(const SharedFile &file, const Range &range) {
  return range.offset > 0 && range.bytes > 0 && range.offset + range.bytes <= file.size();
}

struct flock lock_of_owner() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 0;
  lock.l_len = 1;
  return lock;
}

/// The start of a file of /proc as text. False: it cannot be read.
bool read_proc(pid_t pid, const char *name, char (&text)[512]) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? read(file.get(), text, sizeof text - 1) : 0;
  if (length <= 0) return false;
  text[length] = '\0';
  return true;
}

/// 'R', 'S', 'T', ... of /proc; 0: it cannot be read.
char state_of(pid_t pid) {
  char text[512];
  if (!read_proc(pid, "stat", text)) return 0;
  // The name before it may hold anything, brackets too.
  const char *bracket = std::strrchr(text, ')');
  return bracket != nullptr && bracket[1] == ' ' ? bracket[2] : '\0';
}

/// A process that ends gives up its memory first, then its locks, and is a zombie last.
bool has_memory(pid_t pid) {
  char text[512];
  return read_proc(pid, "statm", text) && text[0] != '0';
}

}  // namespace

Outcome Arena::create() {
  Outcome end = file_.create();
  if (!end.ok()) return end;
  struct flock lock = lock_of_owner();
  if (fcntl(file_.get(), F_SETLK, &lock) != 0)
    return Outcome::error(TPFSDP_ERR_BACKEND, std::string("shared memory cannot be locked: ") + std::strerror(errno));
  end_ = page_bytes();
  return {};
}

Outcome Arena::allocate(size_t bytes, Memory *out) {
  const uint64_t pages = pages_of(bytes);
  const uint64_t first = end_ / page_bytes();
  if (pages > MOST_PAGES || first + pages > LAST_PAGE)
    return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY,
                          "a region of " + std::to_string(bytes) + " bytes is larger than shared memory can name");
  const size_t size = pages * page_bytes();
  Outcome end = file_.extend(end_, size);
  if (!end.ok()) return end;
  std::byte *data;
  try {
    data = file_.map(end_, size, true);
  } catch (...) {
    file_.punch(end_, size);
    throw;
  }
  *out = {data, size, first << COUNT_BITS | pages, 0, 0};
  end_ += size;
  return {};
}

void Arena::free(const Memory &memory) noexcept {
  leave(memory);
  file_.punch(offset_of(memory), memory.bytes);
}

uint64_t Arena::offset_of(const Memory &memory) { return range_of(memory.id).offset; }

const std::byte *Arena::map_readable(const Memory &memory) const {
  return file_.map(offset_of(memory), memory.bytes, false);
}

void Arena::leave(const Memory &memory) noexcept { munmap(memory.data, memory.bytes); }

ProcessKey own_process_key() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static ProcessKey key;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) {
    while (getrandom(&key, sizeof key, 0) != sizeof key)
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    owner = getpid();
  }
  return key;
}

PeerArena::~PeerArena() {
  for (const auto &[region, view] : views_) munmap(view.data, view.bytes);
}

const std::byte *PeerArena::find(const Place &place, uint64_t bytes) {
  View *seen = last_ != nullptr && last_region_ == place.region ? last_ : view(place.region);
  if (seen == nullptr || place.offset > seen->bytes || bytes > seen->bytes - place.offset) return nullptr;
  seen->used = ++looks_;
  return seen->data + place.offset;
}

Outcome PeerArena::map(const Place &place, size_t bytes, Mapping *out) const {
  const Range range = range_of(place.region);
  if (!is_reachable())
    return Outcome::error(TPFSDP_ERR_BACKEND,
                          "this process closed the descriptors of this library's shared memory, and cannot map more");
  if (place.offset != 0 || !lies_in(file_, range) || range.bytes < bytes)
    return Outcome::error(TPFSDP_ERR_BACKEND, "what a peer shows is no memory of " + std::to_string(bytes) + " bytes");
  std::byte *writable = file_.map(range.offset, range.bytes, true);
  try {
    *out = {{writable, range.bytes, place.region, 0, 0}, file_.map(range.offset, range.bytes, false)};
  } catch (...) {
    munmap(writable, range.bytes);
    throw;
  }
  return {};
}

PeerArena::View *PeerArena::view(uint64_t region) {
  auto found = views_.find(region);
  if (found == views_.end()) {
    const Range range = range_of(region);
    if (!lies_in(file_, range)) return nullptr;
    if (views_.size() >= MOST_VIEWS) forget_oldest();
    std::byte *data = nullptr;
    while (data == nullptr) {
      try {
        data = file_.map(range.offset, range.bytes, false);
      } catch (const std::bad_alloc &) {  // as many mappings as a process may have
        if (views_.empty()) throw;
        forget_oldest();
      }
    }
    found = views_.emplace(region, View{data, range.bytes, 0}).first;
  }
  last_region_ = region;
  return last_ = &found->second;
}

/// What the owner freed long ago is never named again.
void PeerArena::forget_oldest() {
  const auto oldest = std::min_element(views_.begin(), views_.end(),
                                       [](const auto &a, const auto &b) { return a.second.used < b.second.used; });
  munmap(oldest->second.data, oldest->second.bytes);
  views_.erase(oldest);
  last_ = nullptr;
}

Vital PeerArena::look_at() const {
  // The kernel does not tell a process of its own locks.
  if (key_ == own_process_key()) return Vital::ALIVE;
  struct flock lock = lock_of_owner();
  if (!file_.is_intact() || fcntl(file_.get(), F_GETLK, &lock) != 0) return Vital::ALIVE;
  if (lock.l_type == F_UNLCK) return Vital::GONE;
  // Under a debugger it is 't': somebody is looking at it.
  return lock.l_pid > 0 && state_of(lock.l_pid) == 'T' ? Vital::STOPPED : Vital::ALIVE;
}

std::string PeerArena::fate() const {
  const std::string process = "its process " + std::to_string(pid_);
  if (look_at() == Vital::STOPPED) return process + " is stopped";
  return process +
         (has_memory(pid_) ? " runs another program, or closed the descriptors of this library" : " has ended");
}

}  // namespace tpfsdp::host
