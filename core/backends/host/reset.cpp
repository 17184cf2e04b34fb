// SPDX-License-Identifier: Apache-2.0
#include "reset.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "failure.hpp"
#include "invariant.hpp"
#include "post.hpp"
#include "progress.hpp"
#include "record.hpp"
#include "release.hpp"
#include "verdict.hpp"

namespace tpfsdp::host {

namespace {

/// ": rank 0 is at epoch 3, rank 1 at epoch 2", or nothing if all RESETs are of the same.
std::string unequal_epochs(const Comm &comm, uint64_t sequence) {
  std::string text;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const Record::Body &body = comm.layout.record(rank, sequence).body;
    if (body.post != Post::RESET || body.epoch == comm.epoch) continue;
    if (text.empty()) text = ": rank " + std::to_string(comm.rank) + " is at epoch " + std::to_string(comm.epoch);
    text += ", rank " + std::to_string(rank) + " at epoch " + std::to_string(body.epoch);
  }
  return text;
}

}  // namespace

void post_reset(Comm &comm, int64_t windows_opened) {
  if (last_post_unread(comm, Post::RESET)) return;
  give_up(comm);
  release_unused(comm, comm.posted);
  catch_up(comm);
  Record::Body body{};
  body.post = Post::RESET;
  body.unit = -1;
  body.source = -1;
  body.epoch = comm.epoch;
  alignas(8) std::byte data[INLINE_BYTES]{};
  const ResetNote note{windows_opened};
  std::memcpy(data, &note, sizeof note);
  post(comm, body, data);
}

Outcome wait_reset(Comm &comm, tpfsdp_backend_call *call, bool may_wait, bool *out_all_reset) {
  const uint64_t sequence = comm.posted;
  if (sequence == 0 || comm.operation(sequence).post != Post::RESET || comm.read >= sequence)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, sequence, "no reset is posted on comm '" + comm.name + "'");
  Outcome end = await(comm, {Target::RECORD, sequence, false, call, may_wait});
  if (!end.ok()) return end;

  const std::string epochs = unequal_epochs(comm, sequence);
  end = reset_verdict(comm, call, sequence);
  comm.read = sequence;
  set_done(comm, sequence);
  if (end.sticky()) return raise(comm, std::move(end));
  *out_all_reset = end.status != TPFSDP_PENDING;
  if (!*out_all_reset) return {};
  // Always checked: ranks of unequal epochs would never agree on a collective again.
  if (!epochs.empty()) return violated(comm, "RESET_EQUAL", epochs);
  invariant(comm, comm.posted == comm.done, "RESET_EQUAL");
  comm.operation(sequence).ended = 0;  // who gave up what was under way gave up this, too; it has ended well
  start_afresh(comm, sequence);
  ++comm.epoch;
  return end;
}

}  // namespace tpfsdp::host
