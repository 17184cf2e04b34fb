// SPDX-License-Identifier: Apache-2.0
#include "reset.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "failure.hpp"
#include "invariant.hpp"
#include "post.hpp"
#include "record.hpp"
#include "verdict.hpp"

namespace tpfsdp::host {

void post_reset(Comm &comm, int64_t windows_opened) {
  if (last_post_unread(comm, Post::RESET)) return;
  give_up(comm);
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

  bool equal_epochs = true;
  for (int32_t rank = 0; rank < comm.world_size; ++rank)
    equal_epochs = equal_epochs && comm.layout.record(rank, sequence).body.epoch == comm.epoch;
  end = reset_verdict(comm, call, sequence);
  comm.read = sequence;
  comm.done = sequence;
  comm.words.publish(comm.lane().done, sequence, Point::DONE);
  if (end.sticky()) return raise(comm, std::move(end));
  *out_all_reset = end.status != TPFSDP_PENDING;
  if (!*out_all_reset) return {};
  invariant(comm, equal_epochs, "RESET_EQUAL");
  ++comm.epoch;
  return end;
}

}  // namespace tpfsdp::host
