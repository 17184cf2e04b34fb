// SPDX-License-Identifier: Apache-2.0
#include "release.hpp"

#include <string>

#include "complete.hpp"
#include "invariant.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

void publish(Common &common, uint64_t sequence) {
  if (common.has_left || sequence <= common.released) return;
  common.released = sequence;
  common.alarm->words.publish(common.released_by(common.alarm->rank), sequence, Point::RELEASE);
}

Outcome refuse(const Comm &comm, tpfsdp_backend_call *call, const Common &common, uint64_t sequence,
               const std::string &why) {
  return Outcome::error(TPFSDP_ERR_STATE, comm.rank, sequence,
                        "what was gathered at sequence " + std::to_string(sequence) +
                            unit_text(comm, call, common.unit) + " on comm '" + comm.name + "' " + why);
}

}  // namespace

void note_use(Common &common, uint64_t sequence, int32_t unit) {
  common.used = sequence;
  common.unit = unit;
}

void note_agreed(Comm &comm, uint64_t sequence) {
  Common *common = comm.operation(sequence).common.get();
  if (common == nullptr) return;
  common->agreed = sequence;
#if defined(TPFSDP_MUTANT_COMMON_GATHER_DONE_AT_VERDICT)
  publish(*common, sequence);
#endif
}

void release(Common &common) { publish(common, common.used); }

Outcome wait_released(Comm &comm, tpfsdp_backend_call *call, Common &common, bool may_wait) {
  if (common.used > comm.done) {
    Outcome own = complete(comm, call, common.used, may_wait);
    if (!own.ok()) return own;
  }
  if (common.given_up > common.agreed)
    return refuse(comm, call, common, common.given_up,
                  "was given up here, and peers may use it; reset on every rank, then go on");
  if (common.released < common.agreed)
    return refuse(comm, call, common, common.agreed, "is still in use on this rank; reshard it first");
#if !defined(TPFSDP_MUTANT_RELEASE_WORD_IGNORED)
#if defined(TPFSDP_MUTANT_RELEASE_WAIT_WATCHES_NO_ERROR)
  const bool watch_errors = false;
#else
  const bool watch_errors = true;
#endif
  Outcome end = await(comm, {Target::RELEASE, common.agreed, watch_errors, call, may_wait, &common});
  if (end.ok()) invariant(comm, [&] { return common.released_by_all() >= common.agreed; }, "SLOT_FREE");
  return end;
#else
  static_cast<void>(may_wait);
  return {};
#endif
}

void release_unused(Comm &comm, uint64_t sequence) {
#if !defined(TPFSDP_MUTANT_RESET_KEEPS_RELEASE_WORDS)
  for (const auto &common : comm.commons)
#if !defined(TPFSDP_MUTANT_RESET_RELEASES_WHAT_IS_IN_USE)
    if (!common->is_in_use())
#endif
      publish(*common, sequence);
#else
  static_cast<void>(comm), static_cast<void>(sequence);
#endif
}

void start_afresh(Comm &comm, uint64_t sequence) {
  release_unused(comm, sequence);
  for (const auto &common : comm.commons) common->used = common->agreed = sequence;
  for (const auto &common : comm.commons) common->given_up = 0;
}

void check_slot_free(Comm &comm, const Common &common) {
  invariant(
      comm, [&] { return common.released >= common.agreed && common.released_by_all() >= common.agreed; }, "SLOT_FREE");
}

}  // namespace tpfsdp::host
