// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes of one machine and user: words in one file without a name, regions in one a rank.
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "provider.hpp"
#include "rendezvous.hpp"
#include "shared_file.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

class SharedPages final : public Segment {
 public:
  SharedPages(const tpfsdp_backend_comm_options &options, Arena arena, const SharedFile &file, std::vector<Met> met)
      : bytes_(whole_pages(Layout::bytes(options.world_size))), arena_(std::move(arena)) {
    peers_.reserve(met.size());
    for (Met &peer : met) peers_.emplace_back(std::move(peer.file), peer.pid, peer.key);
    pages_ = file.map(0, bytes_, true);
  }
  ~SharedPages() override {
    for (const Memory &memory : take_kept()) Arena::leave(memory);
    munmap(pages_, bytes_);
  }

  std::byte *pages() const override { return pages_; }
  Mapping map_own(const Memory &memory) override { return {memory, arena_.map_readable(memory)}; }
  Outcome map_peers(int32_t rank, const Place &place, size_t bytes, Mapping *out) override {
    const PeerArena &peer = peers_[static_cast<size_t>(rank)];
    Outcome end = peer.map(place, bytes, out);
    out->memory.owner = rank;
    return end;
  }
  void unmap_readable(const Mapping &mapping) noexcept override {
    munmap(const_cast<std::byte *>(mapping.readable), mapping.memory.bytes);
  }
  void unmap(const Mapping &mapping, bool is_last) noexcept override {
    const Memory &memory = mapping.memory;
    unmap_readable(mapping);
    Arena::leave(memory);
    if (!is_last) return;
    const PeerArena &maker = peers_[static_cast<size_t>(memory.owner)];
    (maker.file() ? maker.file() : arena_.file()).punch(Arena::offset_of(memory), memory.bytes);
  }
  Place place_of(const Memory *memory, const void *data) const override {
    return {memory->id, static_cast<uint64_t>(static_cast<const std::byte *>(data) - memory->data)};
  }
  const std::byte *find(int32_t rank, const Place &place, uint64_t bytes) override {
    return peers_[static_cast<size_t>(rank)].find(place, bytes);
  }
  bool is_reachable(int32_t rank) const override { return peers_[static_cast<size_t>(rank)].is_reachable(); }
  Vital look_at(int32_t rank, Life life) const override {
    if (life != Life::ALIVE && life != Life::UNBORN) return Vital::GONE;
    return peers_[static_cast<size_t>(rank)].look_at();
  }
  std::string fate_of(int32_t rank, Life life) const override {
    if (life != Life::ALIVE && life != Life::UNBORN) return name_of(life);
    return peers_[static_cast<size_t>(rank)].fate();
  }

 private:
  Outcome obtain(size_t bytes, Memory *out) override { return arena_.allocate(bytes, out); }
  void give_back(const Memory &memory) noexcept override { arena_.free(memory); }

  const size_t bytes_;
  std::byte *pages_ = nullptr;
  Arena arena_;
  std::vector<PeerArena> peers_;  ///< this rank's own is empty
};

class Shm final : public Provider {
 public:
  const char *name() const override { return "shm"; }
  uint64_t capabilities() const override {
    return TPFSDP_BACKEND_CAN_READ_PEERS | TPFSDP_BACKEND_CAN_CHECK_FINGERPRINT | TPFSDP_BACKEND_CAN_ADD_IN_RANK_ORDER |
           TPFSDP_BACKEND_CAN_USE_PROCESSES | TPFSDP_BACKEND_CAN_SHARE_REGIONS;
  }
  int32_t probe(char *reason, int64_t reason_bytes) const override {
    SharedFile file;
    const Outcome end = file.create();
    if (end.ok()) return 1;
    std::snprintf(reason, static_cast<size_t>(reason_bytes), "%s", end.text.c_str());
    return 0;
  }
  bool private_futex() const override { return false; }
  bool reads_caller_memory() const override { return false; }

  Outcome meet(const Meeting &meeting, std::shared_ptr<Segment> *out) const override {
    const tpfsdp_backend_comm_options &options = meeting.options;
    Arena arena;
    Outcome end = arena.create();
    if (!end.ok()) return end;
    SharedFile pages;
    std::vector<Met> met;
    if (options.rank == 0) {
      end = create_pages(options, &pages);
      if (end.ok() && options.world_size > 1) end = gather_ranks(meeting, pages, arena.file(), &met);
    } else {
      end = join_ranks(meeting, arena.file(), &pages, &met);
    }
    if (!end.ok()) return end;
    met.resize(static_cast<size_t>(options.world_size));
    *out = std::make_shared<SharedPages>(options, std::move(arena), pages, std::move(met));
    return {};
  }

  void met(const Meeting &, const Segment &) const noexcept override {}

 private:
  static Outcome create_pages(const tpfsdp_backend_comm_options &options, SharedFile *out) {
    const size_t bytes = whole_pages(Layout::bytes(options.world_size));
    Outcome end = out->create();
    if (end.ok()) end = out->extend(0, bytes);
    if (!end.ok()) return end;
    std::byte *pages = out->map(0, bytes, true);
    format_pages(pages, options.world_size, options.name);
    munmap(pages, bytes);
    return {};
  }
};

}  // namespace

const Provider &shm_provider() {
  static const Shm instance;
  return instance;
}

}  // namespace tpfsdp::host
