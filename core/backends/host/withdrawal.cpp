// SPDX-License-Identifier: Apache-2.0
#include "withdrawal.hpp"

#include <string>

#include "failure.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

constexpr int64_t SLICE_NS = 1'000'000;

/// The rank may be reading a sequence up to `sequence` now.
bool reads(const Comm &comm, int32_t peer, uint64_t sequence) {
  const Lane &lane = comm.layout.lane(peer);
  const uint64_t moving = comm.words.see(lane.moving, Look::LAST, sequence);
  if (moving == 0 || moving > sequence) return false;
  const auto life = static_cast<Life>(comm.words.see(lane.life, Look::ACQUIRE));
  return comm.segment->look_at(peer, life) != Vital::GONE;
}

}  // namespace

void withdraw(Comm &comm) noexcept {
  const uint64_t shown = comm.caller_exposed;
  if (shown <= comm.withdrawn) return;
  comm.withdrawn = shown;
  bool read_by_all = true;
  for (int32_t peer = 0; peer < comm.world_size && read_by_all; ++peer)
    read_by_all = peer == comm.rank || comm.words.see(comm.layout.lane(peer).done, Look::ACQUIRE, shown) >= shown;
  if (read_by_all) return;

  comm.words.publish(comm.lane().withdrawn, shown, Point::WITHDRAW);
  for (int32_t peer = 0; peer < comm.world_size; ++peer) {
    if (peer == comm.rank || !reads(comm, peer, shown)) continue;
    comm.words.announce_sleep();
    for (;;) {
      const uint32_t heard = comm.words.hear();
      if (!reads(comm, peer, shown)) break;
      comm.words.sleep(heard, SLICE_NS);
    }
    comm.words.end_sleep();
  }
}

Outcome check_withdrawn(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  for (int32_t peer = 0; peer < comm.world_size; ++peer) {
    if (peer == comm.rank || (comm.layout.record(peer, sequence).body.flags & FLAG_CALLER_MEMORY) == 0) continue;
    if (comm.words.see(comm.layout.lane(peer).withdrawn, Look::LAST, sequence) < sequence) continue;
    std::string why;
    for (uint64_t later = sequence + 1; later <= sequence + IN_FLIGHT + 1 && why.empty(); ++later) {
      const Record &record = comm.layout.record(peer, later);
      if (comm.words.see(record.seq, Look::ACQUIRE, later) == later && record.body.post == Post::ERR)
        why = std::string(": it failed with ") + name_of_status(record.body.code) + ": " +
              comm.layout.texts(peer).of_record[later % RECORDS];
    }
    return Outcome::error(TPFSDP_ERR_REMOTE, peer, sequence,
                          "rank " + std::to_string(peer) + " took its memory back before this rank had read it in " +
                              describe(comm, call, sequence) + why + "; reset on every rank, then go on");
  }
  return {};
}

}  // namespace tpfsdp::host
