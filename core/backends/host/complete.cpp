// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

#include <string>
#include <utility>

#include "failure.hpp"
#include "invariant.hpp"
#include "post.hpp"
#include "progress.hpp"
#include "release.hpp"
#include "run.hpp"
#include "verdict.hpp"
#include "withdrawal.hpp"

namespace tpfsdp::host {

namespace {

/// A newer record in a peer's slot means that the bound on posts does not hold.
Outcome check_present(Comm &comm, uint64_t sequence) {
  for (int32_t peer = 0; peer < comm.world_size; ++peer)
    if (comm.words.see(comm.layout.record(peer, sequence).seq, Look::ACQUIRE, sequence) > sequence)
      return violated(comm, "RECORD_PRESENT");
  return {};
}

/// The sequence is over for this rank, however it ended.
void finish(Comm &comm, uint64_t sequence, const Outcome &end) {
  if (end.failed()) {
    Operation &operation = comm.operation(sequence);
    operation.outcome = end;
    operation.ended = sequence;
  }
  set_done(comm, sequence);
}

Outcome complete_next(Comm &comm, tpfsdp_backend_call *call, bool may_wait) {
  const uint64_t sequence = comm.done + 1;
#if !defined(TPFSDP_MUTANT_ARRIVAL_NOT_CHECKED)
  Outcome end = await(comm, {Target::RECORD, sequence, false, call, may_wait});
  if (!end.ok()) return end;
#else
  Outcome end;
  static_cast<void>(may_wait);
#endif
  end = check_present(comm, sequence);
  if (!end.ok()) return end;
  comm.read = sequence;

  end = verdict(comm, call, sequence);
  if (end.ok()) {
    bool consumed = true;
    comm.decided = sequence;
    end = run(comm, call, sequence, &consumed);
    comm.decided = 0;
    if (!consumed) return end;
    if (end.ok()) note_agreed(comm, sequence);
  } else if (end.sticky()) {
    end = raise(comm, std::move(end));
  }
  finish(comm, sequence, end);
  return end;
}

}  // namespace

Outcome complete(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool may_wait) {
  if (sequence > comm.posted)
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, comm.rank, sequence,
                          "sequence " + std::to_string(sequence) + " was not posted on comm '" + comm.name + "'");
  if (comm.failed_at > comm.done) give_up(comm);
  if (sequence <= comm.done) {
    const Operation &operation = comm.operation(sequence);
    return operation.ended == sequence && sequence > 0 ? operation.outcome : Outcome{};
  }
#if defined(TPFSDP_MUTANT_COMPLETED_OUT_OF_ORDER)
  comm.done = sequence - 1;
#endif
  while (comm.done < sequence) {
    Outcome end = complete_next(comm, call, may_wait);
    if (end.sticky()) withdraw(comm);
    if (!end.ok()) return end;
  }
  return {};
}

Outcome wait_read(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool may_wait) {
  if (sequence > comm.posted || sequence == 0) return complete(comm, call, sequence, may_wait);
#if !defined(TPFSDP_MUTANT_OWN_REDUCE_NOT_COMPLETED)
  // Peers may wait for this rank's done as it waits for theirs.
  if (sequence > comm.done) {
    Outcome own = complete(comm, call, sequence, may_wait);
    if (!own.ok()) return own;
  }
  invariant(comm, comm.done >= sequence, "OWN_BEFORE_PEERS");
#endif
  const bool remembered = comm.operation(sequence).post != Post::NONE && sequence + RECORDS > comm.posted;
  const uint64_t shown = remembered ? comm.operation(sequence).exposed_upto : sequence;
#if defined(TPFSDP_MUTANT_DONE_NOT_AWAITED)
  Outcome end;
#else
  Outcome end = await(comm, {Target::DONE, shown, true, call, may_wait});
#endif
  if (end.ok())
    invariant(comm, [&] { return done_by_all(comm.layout, comm.rank, comm.world_size) >= shown; }, "GSLOT_FREE");
  if (end.failed() && end.status != TPFSDP_ERR_CANCELLED) withdraw(comm);
  return end;
}

}  // namespace tpfsdp::host
