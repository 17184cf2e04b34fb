// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common.hpp"
#include "invariant.hpp"
#include "post.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "withdrawal.hpp"

namespace tpfsdp::host {

namespace {

// The abort word: status, raising rank + 1, low bits of the sequence; the rest is in the raising rank's texts.
constexpr int STATUS_SHIFT = 52;
constexpr int RANK_SHIFT = 36;
constexpr uint64_t SEQUENCE_MASK = (uint64_t{1} << RANK_SHIFT) - 1;

uint64_t abort_word(int32_t raiser, const Outcome &cause) {
  const uint64_t sequence = cause.sequence < 0 ? 0 : static_cast<uint64_t>(cause.sequence);
  return static_cast<uint64_t>(-cause.status) << STATUS_SHIFT | static_cast<uint64_t>(raiser + 1) << RANK_SHIFT |
         (sequence & SEQUENCE_MASK);
}

void write_abort(Texts::Abort *target, const Outcome &cause) {
  target->status = cause.status;
  target->rank = cause.rank;
  target->sequence = cause.sequence;
  const size_t length = std::min(cause.text.size(), sizeof target->text - 1);
  std::memcpy(target->text, cause.text.data(), length);
  target->text[length] = '\0';
}

Outcome sticky(const Alarm &alarm, Look look) {
  const uint64_t word = alarm.words.see(alarm.layout.front().abort, look);
  if (word == 0) return {};
  const auto raiser = static_cast<int32_t>(word >> RANK_SHIFT & 0xffff) - 1;
  if (raiser < 0 || raiser >= alarm.world_size)
    return Outcome::error(TPFSDP_ERR_INTERNAL, "comm '" + alarm.name + "': the abort word is damaged");
  const Texts::Abort &abort = alarm.layout.texts(raiser).of_abort;
  Outcome outcome{abort.status, abort.rank, abort.sequence, {}};
  outcome.text.assign(abort.text, strnlen(abort.text, sizeof abort.text));
  return outcome;
}

Outcome raise(Alarm &alarm, Outcome cause) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(alarm.mutex);
    first = !std::exchange(alarm.raised, true);
    if (first) write_abort(&alarm.layout.texts(alarm.rank).of_abort, cause);
  }
  if (first) alarm.words.claim(alarm.layout.front().abort, abort_word(alarm.rank, cause), Point::ABORT);
  Outcome ruling = sticky(alarm, Look::LAST);
  return ruling.ok() ? std::move(cause) : ruling;
}

}  // namespace

Outcome raise(Comm &comm, Outcome cause) { return raise(*comm.alarm, std::move(cause)); }

Outcome sticky(const Comm &comm, Look look) { return sticky(*comm.alarm, look); }

Outcome violated(Alarm &alarm, uint64_t sequence, const char *name, const std::string &detail) {
  ++alarm.violations;
  return raise(
      alarm, Outcome::error(TPFSDP_ERR_INTERNAL, alarm.rank, sequence,
                            std::string("invariant ") + name + " does not hold on rank " + std::to_string(alarm.rank) +
                                " of comm '" + alarm.name + "' at sequence " + std::to_string(sequence) + detail +
                                "; this is a bug of the library, please report it"));
}

Outcome violated(Comm &comm, const char *name, const std::string &detail) {
  return violated(*comm.alarm, comm.posted, name, detail);
}

Outcome remote(const Comm &comm, tpfsdp_backend_call *call, int32_t rank, uint64_t sequence) {
  const Record &record = comm.layout.record(rank, sequence);
  const bool mine = sequence <= comm.posted && comm.operation(sequence).post != Post::NONE;
  const std::string at =
      mine ? describe(comm, call, sequence) : "sequence " + std::to_string(sequence) + " on comm '" + comm.name + "'";
  if (record.body.post == Post::RESET)
    return Outcome::error(
        TPFSDP_ERR_REMOTE, rank, sequence,
        "rank " + std::to_string(rank) + " is resetting in place of " + at + "; reset on every rank, then go on");
  const char *text = comm.layout.texts(rank).of_record[sequence % RECORDS];
  return Outcome::error(TPFSDP_ERR_REMOTE, rank, sequence,
                        "rank " + std::to_string(rank) + " failed with " + name_of_status(record.body.code) + ": " +
                            std::string(text, strnlen(text, TEXT_BYTES)) + " (in place of " + at +
                            "); reset on every rank, then go on");
}

Outcome peer_error(Comm &comm, tpfsdp_backend_call *call, Look look) {
#if defined(TPFSDP_MUTANT_ERROR_WATCHED_AT_NEXT_ONLY)
  const uint64_t first = comm.posted + 1;
#else
  const uint64_t first = comm.done + 1;
#endif
  for (uint64_t sequence = first; sequence <= comm.posted + 1; ++sequence) {
    int32_t resetting = comm.rank;
    for (int32_t peer = 0; peer < comm.world_size; ++peer) {
      if (peer == comm.rank) continue;
      const Record &record = comm.layout.record(peer, sequence);
      if (comm.words.see(record.seq, look, sequence) != sequence) continue;
      // A reset follows some rank's error: where both can be read, the error is the news.
      if (record.body.post == Post::ERR) return remote(comm, call, peer, sequence);
      if (record.body.post == Post::RESET && resetting == comm.rank) resetting = peer;
    }
    if (resetting != comm.rank) return remote(comm, call, resetting, sequence);
  }
  return {};
}

void post_failure(Comm &comm, tpfsdp_status status, const char *message) {
  if (last_post_unread(comm, Post::RESET)) return;
  catch_up(comm);
  // Also when collectives were posted behind the unread one.
  if (comm.failed_at > comm.read) return;
  Record::Body body{};
  body.post = Post::ERR;
  body.unit = -1;
  body.source = -1;
  body.epoch = comm.epoch;
  body.code = status;
  const char *text = message == nullptr ? "" : message;
  comm.failed_at = post(comm, body, nullptr, text);
  withdraw(comm);
  comm.failure = Outcome::error(status, comm.rank, comm.failed_at, text);
}

void give_up(Comm &comm) {
  comm.half_reduced = 0;
  comm.staging.window = 0;
  comm.staging.half_done = 0;
  withdraw(comm);
  abandon_making(comm);
  if (comm.done == comm.posted) return;
  const bool own = comm.failed_at > comm.done;
  for (uint64_t sequence = comm.done + 1; sequence <= comm.posted; ++sequence) {
    Operation &operation = comm.operation(sequence);
#if !defined(TPFSDP_MUTANT_GIVEN_UP_GATHER_FORGOTTEN)
    if (operation.common) operation.common->given_up = sequence;
#endif
    operation.ended = sequence;
    operation.outcome = own ? comm.failure
                            : Outcome::error(TPFSDP_ERR_STATE, comm.rank, sequence,
                                             describe(comm, nullptr, sequence) +
                                                 " was given up before it completed; reset on every rank, then go on");
    operation.outcome.sequence = static_cast<int64_t>(sequence);
  }
  set_done(comm, comm.posted);
}

}  // namespace tpfsdp::host
