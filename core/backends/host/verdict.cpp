// SPDX-License-Identifier: Apache-2.0
#include "verdict.hpp"

#include <string>

#include "failure.hpp"
#include "mismatch.hpp"
#include "record.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

constexpr int32_t NOBODY = -1;

int32_t first_with(const Comm &comm, uint64_t sequence, Post post) {
  for (int32_t rank = 0; rank < comm.world_size; ++rank)
    if (comm.layout.record(rank, sequence).body.post == post) return rank;
  return NOBODY;
}

int32_t first_without(const Comm &comm, uint64_t sequence, Post post) {
  for (int32_t rank = 0; rank < comm.world_size; ++rank)
    if (comm.layout.record(rank, sequence).body.post != post) return rank;
  return NOBODY;
}

Outcome closed_against(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, int32_t closer, int32_t other) {
  return Outcome::error(TPFSDP_ERR_ABORTED, closer, sequence,
                        "rank " + std::to_string(closer) + " shut down comm '" + comm.name + "' at sequence " +
                            std::to_string(sequence) + " while rank " + std::to_string(other) + " was at " +
                            fields_text(comm, call, comm.layout.record(other, sequence)) + "; restart the group");
}

}  // namespace

Outcome verdict(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  const Record &own = comm.layout.record(comm.rank, sequence);
  bool alike = true;
  bool all_ops = true;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const Record::Body &body = comm.layout.record(rank, sequence).body;
    all_ops = all_ops && body.post == own.body.post;
    alike = alike && body.fingerprint == own.body.fingerprint;
  }
#if defined(TPFSDP_MUTANT_FINGERPRINT_IGNORED)
  alike = true;
#endif
  if (all_ops && alike) return {};

  if (const int32_t failed = first_with(comm, sequence, Post::ERR); failed != NOBODY)
    return remote(comm, call, failed, sequence);
  if (const int32_t resetting = first_with(comm, sequence, Post::RESET); resetting != NOBODY)
    return remote(comm, call, resetting, sequence);
  if (const int32_t closer = first_with(comm, sequence, Post::CLOSE); closer != NOBODY)
    return closed_against(comm, call, sequence, closer, first_without(comm, sequence, Post::CLOSE));
  return mismatch(comm, call, sequence);
}

Outcome reset_verdict(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  if (const int32_t closer = first_with(comm, sequence, Post::CLOSE); closer != NOBODY)
    return closed_against(comm, call, sequence, closer, first_with(comm, sequence, Post::RESET));
  if (first_without(comm, sequence, Post::RESET) != NOBODY) return Outcome::pending();

  const int64_t windows = reset_note(comm.layout.record(0, sequence)).windows_opened;
  std::string text;
  int32_t behind = NOBODY;
  int64_t least = windows;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const int64_t opened = reset_note(comm.layout.record(rank, sequence)).windows_opened;
    text += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " applied " + std::to_string(opened);
    if (opened < least || (opened != windows && behind == NOBODY)) behind = opened < windows ? rank : 0;
    least = opened < least ? opened : least;
  }
  if (behind == NOBODY) return {};
  return Outcome::error(TPFSDP_ERR_STATE, behind, sequence,
                        "ranks of comm '" + comm.name + "' applied different numbers of steps: " + text +
                            "; load a checkpoint on every rank, then go on");
}

}  // namespace tpfsdp::host
