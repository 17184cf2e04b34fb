// SPDX-License-Identifier: Apache-2.0
#include "wait.hpp"

#include <sched.h>

#include <utility>

#include "comm.hpp"
#include "common.hpp"
#include "failure.hpp"
#include "patience.hpp"

namespace tpfsdp::host {

namespace {

constexpr int64_t SLICE_NS = 100'000'000;
constexpr int64_t YIELD_NS = 50'000;
constexpr int SPINS = 64;         // about a microsecond
constexpr int SPINS_CROWDED = 8;  // the awaited rank may need this core

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// What another rank did that ends the wait; OK: nothing.
Outcome seen_error(Comm &comm, const Awaiting &awaiting, Look look) {
  if (awaiting.watch_errors) {
    Outcome remote = peer_error(comm, awaiting.call, look);
    if (!remote.ok()) return remote;
  }
  return sticky(comm, look);
}

/// The last look: a satisfied wait wins.
Outcome unless_there([[maybe_unused]] Comm &comm, [[maybe_unused]] const Awaiting &awaiting,
                     [[maybe_unused]] int32_t peer, Outcome end) {
#if !defined(TPFSDP_MUTANT_NO_LAST_LOOK)
  if (there(comm, awaiting, peer, Look::LAST)) return {};
#endif
  return end;
}

/// One look at everything but the awaited word. PENDING: nothing ends the wait.
Outcome look_around(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  Outcome end = seen_error(comm, awaiting, Look::ACQUIRE);
  if (!end.ok()) return unless_there(comm, awaiting, peer, std::move(end));
  return Outcome::pending();
}

Outcome sleep_until(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  Words &words = comm.words;
  struct Announced {
    Words &words;
    explicit Announced(Words &w) : words(w) { words.announce_sleep(); }
    ~Announced() { words.end_sleep(); }
  } const announced(words);
  for (;;) {
    const uint32_t heard = words.hear();
    if (there(comm, awaiting, peer, Look::LAST)) return {};
    Outcome end = seen_error(comm, awaiting, Look::LAST);
    if (!end.ok()) return unless_there(comm, awaiting, peer, std::move(end));
    words.sleep(heard, SLICE_NS);
    end = slow_look(comm, awaiting, peer);
    if (end.status != TPFSDP_PENDING) return end;
  }
}

Outcome wait_for(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  if (!comm.words.scheduled()) {
    const int spins = comm.more_ranks_than_cores ? SPINS_CROWDED : SPINS;
    for (int i = 0; i < spins; ++i) {
      pause();
      if (there(comm, awaiting, peer, Look::ACQUIRE)) return {};
    }
    const int64_t until = comm.services.clock_ns() + YIELD_NS;
    do {
      sched_yield();
      if (there(comm, awaiting, peer, Look::ACQUIRE)) return {};
    } while (comm.services.clock_ns() < until);
  }
  Outcome end = look_around(comm, awaiting, peer);
  return end.status == TPFSDP_PENDING ? sleep_until(comm, awaiting, peer) : end;
}

Outcome poll(Comm &comm, const Awaiting &awaiting, int32_t peer) {
  Outcome end = look_around(comm, awaiting, peer);
  if (end.status != TPFSDP_PENDING) return end;
  return comm.services.clock_ns() - patience_of(comm, awaiting).slow_ns >= SLICE_NS ? slow_look(comm, awaiting, peer)
                                                                                    : std::move(end);
}

}  // namespace

bool there(const Comm &comm, const Awaiting &awaiting, int32_t peer, Look look) {
  const Lane &lane = comm.layout.lane(peer);
  const uint64_t sequence = awaiting.sequence;
  switch (awaiting.target) {
    case Target::NOTHING: return true;
    case Target::JOINED: return comm.words.see(lane.life, look) != static_cast<uint32_t>(Life::UNBORN);
    case Target::RECORD:
#if defined(TPFSDP_MUTANT_STALE_GENERATION_ACCEPTED)
      return comm.words.see(lane.records[sequence % RECORDS].seq, look, sequence) != 0;
#else
      return comm.words.see(lane.records[sequence % RECORDS].seq, look, sequence) >= sequence;
#endif
    case Target::DONE: return comm.words.see(lane.done, look, sequence) >= sequence;
    case Target::STEP: return comm.words.see(lane.step, look, sequence) >= sequence;
    case Target::RELEASE: return comm.words.see(awaiting.common->released_by(peer), look, sequence) >= sequence;
  }
  return false;
}

Patience &patience_of(Comm &comm, const Awaiting &awaiting) {
  return awaiting.common != nullptr ? awaiting.common->patience : comm.patience[static_cast<size_t>(awaiting.target)];
}

Outcome await(Comm &comm, const Awaiting &awaiting) {
  Patience &patience = patience_of(comm, awaiting);
  const bool goes_on = patience.target == awaiting.target && patience.sequence == awaiting.sequence;
  for (int32_t peer = goes_on ? patience.cursor : 0; peer < comm.world_size; ++peer) {
    if (peer == comm.rank || there(comm, awaiting, peer, Look::ACQUIRE)) continue;
    begin_patience(comm, awaiting, peer);
    Outcome end = awaiting.may_wait ? wait_for(comm, awaiting, peer) : poll(comm, awaiting, peer);
    if (!end.ok()) return end;
  }
  patience.target = Target::NOTHING;
  return {};
}

}  // namespace tpfsdp::host
