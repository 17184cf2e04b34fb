// SPDX-License-Identifier: Apache-2.0
#include "patience.hpp"

#include <string>
#include <utility>

#include "comm.hpp"
#include "failure.hpp"
#include "post.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

constexpr int64_t MS = 1'000'000;
constexpr int64_t ASK_NS = 100 * MS;
/// A job that is stopped as a whole goes on rank by rank: whoever is stopped for longer is lost.
constexpr int64_t STOPPED_NS = 500 * MS;
constexpr int64_t FIRST_LOG_NS = 30'000 * MS;
constexpr int32_t LOG_WARNING = 3;

/// "rank 1 (last posted 11), rank 3 (last posted 12)": the ranks whose word is missing.
std::string missing(const Comm &comm, const Awaiting &awaiting, int32_t from) {
  std::string text;
  for (int32_t peer = from; peer < comm.world_size; ++peer) {
    if (peer == comm.rank || there(comm, awaiting, peer, Look::ACQUIRE)) continue;
    if (!text.empty()) text += ", ";
    text += "rank " + std::to_string(peer) + " (last posted " + std::to_string(last_posted(comm, peer)) + ")";
  }
  return text;
}

std::string seconds(int64_t ns) {
  const int64_t tenths = ns / (100 * MS);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// The peer was seen stopped through enough looks. A long pause between two looks says that this rank was, too.
bool is_stopped_for_good(Patience &patience, int32_t peer, int64_t now, int64_t passed) {
  if (patience.stopped == -1 || passed >= STOPPED_NS / 2) {
    patience.stopped = peer;
    patience.stopped_ns = now;
  }
  return patience.stopped == peer && now - patience.stopped_ns >= STOPPED_NS;
}

/// A rank that cannot act any more, and whose word is still missing at a last look.
Outcome find_dead(Comm &comm, const Awaiting &awaiting, int32_t from, int64_t now, int64_t passed) {
  Patience &patience = patience_of(comm, awaiting);
  for (int32_t peer = from; peer < comm.world_size; ++peer) {
    if (peer == comm.rank || there(comm, awaiting, peer, Look::ACQUIRE)) continue;
    const Lane &lane = comm.layout.lane(peer);
    const auto life = static_cast<Life>(comm.words.see(lane.life, Look::ACQUIRE));
    const Vital vital = comm.segment->look_at(peer, life);
    if (vital == Vital::ALIVE && patience.stopped == peer) patience.stopped = -1;
    if (vital == Vital::ALIVE) continue;
    if (vital == Vital::STOPPED && !is_stopped_for_good(patience, peer, now, passed)) continue;
#if !defined(TPFSDP_MUTANT_NO_LAST_LOOK)
    if (there(comm, awaiting, peer, Look::LAST)) continue;
#endif
    return raise(comm,
                 Outcome::error(TPFSDP_ERR_PEER_LOST, peer, awaiting.sequence,
                                "rank " + std::to_string(peer) + " is lost (" + comm.segment->fate_of(peer, life) +
                                    ") in " + describe(comm, awaiting) + "; restart the group"));
  }
  return {};
}

Outcome timed_out(Comm &comm, const Awaiting &awaiting, int32_t peer, std::string text) {
  if (there(comm, awaiting, peer, Look::LAST)) return {};
  return raise(comm, Outcome::error(TPFSDP_ERR_TIMEOUT, peer, awaiting.sequence, std::move(text)));
}

/// An interrupt of these waits is no failure: peers hear of nothing.
bool can_be_called_again(const Comm &comm, const Awaiting &awaiting) {
  if (awaiting.target == Target::STEP || awaiting.target == Target::RELEASE) return true;
  if (awaiting.target != Target::RECORD) return false;
  const Post post = comm.layout.record(comm.rank, awaiting.sequence).body.post;
  return post == Post::RESET || post == Post::CLOSE;
}

/// PENDING: neither clock is over.
Outcome clocks(Comm &comm, const Awaiting &awaiting, int32_t peer, int64_t now, int64_t passed) {
  Patience &patience = patience_of(comm, awaiting);
  const Lane &lane = comm.layout.lane(peer);
  const uint64_t moving = comm.words.see(lane.moving, Look::ACQUIRE);
  const uint64_t chunk = comm.words.see(lane.chunk, Look::ACQUIRE);
  if (moving != patience.moving || chunk != patience.chunk) {
    patience.moving = moving;
    patience.chunk = chunk;
    patience.moved_ns = now;
  }
  if (moving != 0) {
    if (comm.progress_timeout_ms < 0 || now - patience.moved_ns < comm.progress_timeout_ms * MS)
      return Outcome::pending();
    return timed_out(comm, awaiting, peer,
                     "rank " + std::to_string(peer) + " has moved no byte of sequence " + std::to_string(moving) +
                         " for " + seconds(now - patience.moved_ns) + " in " + describe(comm, awaiting) +
                         "; restart the group");
  }
  patience.arrival_ns += passed;
  const int32_t limit_ms = awaiting.target == Target::JOINED ? comm.join_timeout_ms : comm.arrival_timeout_ms;
  if (limit_ms < 0 || patience.arrival_ns < limit_ms * MS) return Outcome::pending();
  return timed_out(comm, awaiting, peer,
                   "after " + seconds(patience.arrival_ns) + " in " + describe(comm, awaiting) +
                       " still missing: " + missing(comm, awaiting, peer) + "; restart the group");
}

}  // namespace

void begin_patience(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  Patience &patience = patience_of(comm, awaiting);
  const bool goes_on = patience.target == awaiting.target && patience.sequence == awaiting.sequence;
  if (goes_on && patience.cursor == peer) return;
  const int64_t now = comm.services.clock_ns();
  const int64_t began = goes_on ? patience.began_ns : now;
  const int64_t arrival = goes_on ? patience.arrival_ns : 0;
  const int64_t log = goes_on ? patience.next_log_ns : FIRST_LOG_NS;
  const int64_t asked = goes_on ? patience.asked_ns : now;
  patience = {awaiting.target, awaiting.sequence, peer, began, now, asked, arrival, log, 0, 0, now};
}

Outcome slow_look(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  Patience &patience = patience_of(comm, awaiting);
  const int64_t now = comm.services.clock_ns();
  const int64_t passed = now - std::exchange(patience.slow_ns, now);

  Outcome end = find_dead(comm, awaiting, peer, now, passed);
  if (end.ok()) end = clocks(comm, awaiting, peer, now, passed);
  if (end.status != TPFSDP_PENDING) return end;

  const int64_t waited = now - patience.began_ns;
  if (waited >= patience.next_log_ns) {
    while (patience.next_log_ns <= waited) patience.next_log_ns *= 2;
    const std::string text = "waiting for " + seconds(waited) + " in " + describe(comm, awaiting) +
                             "; missing: " + missing(comm, awaiting, peer);
    comm.services.log(awaiting.call, LOG_WARNING, text.c_str());
  }
  if (awaiting.may_wait && now - patience.asked_ns >= ASK_NS) {
    patience.asked_ns = now;
    const char *operation = name_of(comm, awaiting);
    if (comm.services.poll_interrupt(awaiting.call, operation, unit_of(comm, awaiting), waited) < 0)
      return Outcome::error(
          TPFSDP_ERR_CANCELLED, comm.rank, awaiting.sequence,
          "interrupted in " + describe(comm, awaiting) + "; missing: " + missing(comm, awaiting, peer) +
              (can_be_called_again(comm, awaiting) ? "; call it again" : "; reset on every rank, then go on"));
  }
  return Outcome::pending();
}

}  // namespace tpfsdp::host
