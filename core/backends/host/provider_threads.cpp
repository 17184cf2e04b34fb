// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: one heap object per comm, counted by all, and memory that any of them may
// read.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "provider.hpp"
#include "shared_file.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

class Heap final : public Segment {
 public:
  Heap(const tpfsdp_backend_services &services, const tpfsdp_backend_comm_options &options)
      : services_(services),
        page_bytes_(static_cast<int64_t>(Layout::bytes(options.world_size))),
        pages_(static_cast<std::byte *>(services.allocate(page_bytes_))) {
    if (pages_ == nullptr) throw std::bad_alloc();
    format_pages(pages_, options.world_size, options.name);
  }
  ~Heap() override {
    for (const Memory &memory : take_kept()) give_back(memory);
    services_.deallocate(pages_, page_bytes_);
  }

  std::byte *pages() const override { return pages_; }

  Mapping map_own(const Memory &memory) override { return {memory, memory.data}; }
  Outcome map_peers(int32_t rank, const Place &place, size_t bytes, Mapping *out) override {
    auto *data = reinterpret_cast<std::byte *>(place.offset);
    *out = {{data, bytes, 0, 0, rank}, data};
    return {};
  }
  void unmap_readable(const Mapping &) noexcept override {}
  void unmap(const Mapping &mapping, bool is_last) noexcept override {
    if (is_last) give_back(mapping.memory);
  }
  Place place_of(const Memory *, const void *data) const override { return {0, reinterpret_cast<uint64_t>(data)}; }
  const std::byte *find(int32_t, const Place &place, uint64_t) override {
    return reinterpret_cast<const std::byte *>(place.offset);
  }
  /// A thread cannot die without its scope guard's word.
  Vital look_at(int32_t, Life life) const override {
    return life == Life::ALIVE || life == Life::UNBORN ? Vital::ALIVE : Vital::GONE;
  }
  std::string fate_of(int32_t, Life life) const override { return name_of(life); }

 private:
  Outcome obtain(size_t bytes, Memory *out) override {
    const size_t size = whole_pages(std::max<size_t>(bytes, 1));
    void *data = services_.allocate(static_cast<int64_t>(size));
    if (data == nullptr)
      return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY, "no memory for a region of " + std::to_string(size) + " bytes");
    *out = {static_cast<std::byte *>(data), size, 0, 0, 0};
    return {};
  }
  void give_back(const Memory &memory) noexcept override {
    mprotect(memory.data, memory.bytes, PROT_READ | PROT_WRITE);
    services_.deallocate(memory.data, static_cast<int64_t>(memory.bytes));
  }

  const tpfsdp_backend_services services_;
  const int64_t page_bytes_;  ///< of pages_
  std::byte *const pages_;
};

/// Where ranks find the heap that rank 0 made: by a number in the store, so that a rank that comes too late finds
/// nothing instead of freed memory.
class Directory {
 public:
  uint64_t add(std::shared_ptr<Segment> segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    segments_[++last_] = std::move(segment);
    return last_;
  }
  std::shared_ptr<Segment> find(uint64_t id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = segments_.find(id);
    return found == segments_.end() ? nullptr : found->second;
  }
  void remove(const Segment &segment) noexcept {
    std::shared_ptr<Segment> last;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = segments_.begin(); entry != segments_.end(); ++entry) {
      if (entry->second.get() != &segment) continue;
      last = std::move(entry->second);
      segments_.erase(entry);
      return;
    }
  }

 private:
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::shared_ptr<Segment>> segments_;
};

Directory &directory() {
  static Directory instance;
  return instance;
}

class Threads final : public Provider {
 public:
  const char *name() const override { return "threads"; }
  uint64_t capabilities() const override {
    return TPFSDP_BACKEND_CAN_READ_PEERS | TPFSDP_BACKEND_CAN_CHECK_FINGERPRINT | TPFSDP_BACKEND_CAN_ADD_IN_RANK_ORDER |
           TPFSDP_BACKEND_CAN_USE_THREADS | TPFSDP_BACKEND_CAN_READ_CALLER | TPFSDP_BACKEND_CAN_SHARE_REGIONS;
  }
  int32_t probe(char *, int64_t) const override { return 1; }
  bool private_futex() const override { return true; }
  bool reads_caller_memory() const override { return true; }

  Outcome meet(const Meeting &meeting, std::shared_ptr<Segment> *out) const override {
    const tpfsdp_backend_comm_options &options = meeting.options;
    const std::string key = std::string(options.name) + "/threads";
    uint64_t id = 0;
    if (options.rank == 0) {
      *out = std::make_shared<Heap>(meeting.services, options);
      if (options.world_size == 1) return {};
      id = directory().add(*out);
      const tpfsdp_status status = meeting.services.store_set(meeting.call, key.c_str(), &id, sizeof id);
      return status < 0 ? Outcome::error(status, "comm '" + std::string(options.name) + "' cannot write to its store")
                        : Outcome{};
    }
    const tpfsdp_status status =
        meeting.services.store_get(meeting.call, key.c_str(), &id, sizeof id, meeting.deadline_ns);
    if (status < 0)
      return Outcome::error(status, "rank " + std::to_string(options.rank) + " did not find rank 0 of comm '" +
                                        options.name + "' within " + std::to_string(options.join_timeout_ms) +
                                        " ms; start every rank, or restart the group");
    *out = directory().find(id);
    if (*out == nullptr)
      return Outcome::error(
          TPFSDP_ERR_PEER_LOST, 0, 0,
          std::string("rank 0 of comm '") + options.name + "' is not here any more, or is in another process");
    return {};
  }

  void met(const Meeting &meeting, const Segment &segment) const noexcept override {
    if (meeting.options.rank == 0) directory().remove(segment);
  }
};

}  // namespace

const Provider &threads_provider() {
  static const Threads instance;
  return instance;
}

}  // namespace tpfsdp::host
