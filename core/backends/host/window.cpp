// SPDX-License-Identifier: Apache-2.0
#include "window.hpp"

#include "failure.hpp"
#include "invariant.hpp"
#include "progress.hpp"

namespace tpfsdp::host {

void publish_step(Comm &comm) {
  // Always checked: a step that peers would wait for in vain, or a torn one, is worse than an error.
  const bool failed = comm.failed_at != 0 && comm.failed_at == comm.posted;
  if (comm.done != comm.posted || failed) {
    static_cast<void>(violated(comm, "WINDOW_AGREED"));
    return;
  }
  set_step(comm, comm.posted);
}

Outcome wait_step(Comm &comm, tpfsdp_backend_call *call, bool may_wait) {
#if defined(TPFSDP_MUTANT_WINDOW_ON_DONE_COUNTS)
  Outcome end = await(comm, {Target::DONE, comm.step, true, call, may_wait});
#else
  Outcome end = await(comm, {Target::STEP, comm.step, true, call, may_wait});
#endif
  if (end.ok() &&
      !invariant(comm, [&] { return comm.done == comm.posted && step_by_all(comm) >= comm.posted; }, "WINDOW_AGREED"))
    return sticky(comm, Look::LAST);
  return end;
}

}  // namespace tpfsdp::host
