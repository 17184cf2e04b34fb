// SPDX-License-Identifier: Apache-2.0
#include "close.hpp"

#include <string>

#include "complete.hpp"
#include "failure.hpp"
#include "post.hpp"

namespace tpfsdp::host {

Outcome shut_down(Comm &comm, tpfsdp_backend_call *call) {
  if (comm.closed) return {};
  if (!last_post_unread(comm, Post::CLOSE)) {
    Outcome end = sticky(comm, Look::ACQUIRE);
    if (end.ok() && comm.done < comm.posted) end = complete(comm, call, comm.posted, true);
    if (!end.ok()) return end;
    catch_up(comm);
    while (comm.posted - comm.read >= IN_FLIGHT) {
      end = await(comm, {Target::RECORD, comm.read + 1, false, call, true});
      if (!end.ok()) return end;
      ++comm.read;
    }
    Record::Body body{};
    body.post = Post::CLOSE;
    body.unit = -1;
    body.source = -1;
    body.epoch = comm.epoch;
    post(comm, body, nullptr);
  }
  Outcome end = complete(comm, call, comm.posted, true);
  if (!end.ok()) return end;
  comm.closed = true;
  comm.words.publish(comm.lane().life, static_cast<uint32_t>(Life::CLOSED), Point::LIFE);
  return {};
}

void abort(Comm &comm, tpfsdp_status status, const char *reason) {
  Outcome cause{status, comm.rank, -1, reason == nullptr ? "" : reason};
  if (!cause.sticky()) cause.status = TPFSDP_ERR_ABORTED;
  if (cause.status == TPFSDP_ERR_PEER_LOST) comm.lost.store(true);
  cause.text = "rank " + std::to_string(comm.rank) +
               (cause.status == TPFSDP_ERR_PEER_LOST ? " is lost to comm '" : " aborted comm '") + comm.name +
               "': " + cause.text + "; restart the group";
  static_cast<void>(raise(comm, std::move(cause)));
}

}  // namespace tpfsdp::host
