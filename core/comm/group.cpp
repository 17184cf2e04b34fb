// SPDX-License-Identifier: Apache-2.0
#include "comm/group.hpp"

#include "comm/backend_call.hpp"
#include "comm/collective_log.hpp"
#include "tensor/dtype.hpp"

#include <algorithm>
#include <cstdint>

namespace tpfsdp {
namespace {

bool is_verdict(Status status) { return status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_MISMATCH; }

// Made once, so that giving up needs no memory.
const std::shared_ptr<const ErrorDetail> &given_up() {
  static const auto detail = [] {
    ErrorDetail made;
    made.status = TPFSDP_ERR_CANCELLED;
    made.message = "given up: a later call of this rank on the group failed, or the group was reset";
    return std::make_shared<const ErrorDetail>(std::move(made));
  }();
  return detail;
}

}  // namespace

Group::Group(std::shared_ptr<Rank> owner, std::string name, std::string key, std::vector<int32_t> global_ranks)
    : owner_(std::move(owner)),
      name_(std::move(name)),
      recorded_name_(owner_->recorder().intern(name_)),
      global_ranks_(std::move(global_ranks)),
      log_(std::make_unique<CollectiveLog>()) {
  const auto me = std::find(global_ranks_.begin(), global_ranks_.end(), owner_->rank());
  TPFSDP_CHECK(me != global_ranks_.end());
  rank_ = static_cast<int32_t>(me - global_ranks_.begin());
  if (size() > 1) {
    const RankOptions &settings = owner_->options();
    tpfsdp_backend_comm_options options{};
    options.struct_size = sizeof options;
    options.rank = rank_;
    options.world_size = size();
    options.arrival_timeout_ms = settings.arrival_timeout_ms;
    options.progress_timeout_ms = settings.progress_timeout_ms;
    options.join_timeout_ms = settings.join_timeout_ms;
    options.name = key.c_str();
    tpfsdp_backend_call call(*owner_);
    const Status status = backend().comm_create(&call, &options, &comm_);
    if (status != TPFSDP_OK) {
      ErrorDetail detail = failure_of(call, status);
      detail.operation = "join";
      detail.group = name_;
      throw Failure(std::move(detail));
    }
  }
  try {
    owner_->enrol(this);
  } catch (...) {
    if (comm_) backend().comm_destroy(comm_);
    throw;
  }
}

Group::~Group() {
  owner_->strike(this);
  if (comm_) backend().comm_destroy(comm_);
}

// ---- Steps -------------------------------------------------------------------------------------------------------

Status Group::submit(const tpfsdp_backend_op &op, int64_t wire_bytes, bool may_wait, int64_t *out_sequence) {
  const char *operation = collective_name(op.kind);
  require_usable(operation);
  const int64_t start_ns = monotonic_ns();
  for (;;) {
    tpfsdp_backend_call call(*owner_);
    int64_t sequence = 0;
    const Status status = backend().submit(&call, comm_, &op, may_wait, &sequence);
    if (status == TPFSDP_PENDING) return status;
    if (status == TPFSDP_OK) {
      posted_.store(sequence, std::memory_order_relaxed);
      has_told_failure_ = false;
      count(op, wire_bytes, start_ns);
      *out_sequence = sequence;
      return status;
    }
    const auto detail = note_failure(call, status, operation, owner_->unit_name(op.unit));
    if (!leave_to_pending(detail, INT64_MAX)) throw Failure(detail);
  }
}

namespace {

// What a transport that reads regions only copies of the caller's input; small inputs travel beside the call.
int64_t staged_bytes(const tpfsdp_backend_op &op, int32_t rank) {
  constexpr int64_t kInline = 64;
  int64_t elements = op.element_count;
  if (op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER) {
    elements = 0;
    for (int64_t i = 0; i < op.piece_count; ++i) {
      if (op.pieces[i].rank == rank) elements += op.pieces[i].count;
    }
  } else if (op.kind == TPFSDP_BACKEND_KIND_BARRIER ||
             (op.kind == TPFSDP_BACKEND_KIND_BROADCAST && op.source != rank)) {
    elements = 0;
  }
  const int64_t bytes = dtype_bytes(op.dtype, elements);
  return bytes > kInline ? bytes : 0;
}

}  // namespace

void Group::count(const tpfsdp_backend_op &op, int64_t wire_bytes, int64_t start_ns) {
  Recorder &recorder = owner_->recorder();
  Counters &counters = recorder.counters;
  switch (op.kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER:
    case TPFSDP_BACKEND_KIND_SHARED_GATHER:
    case TPFSDP_BACKEND_KIND_MAPPED_GATHER: ++counters.all_gathers; break;
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER: ++counters.reduce_scatters; break;
    case TPFSDP_BACKEND_KIND_ALL_REDUCE: ++counters.all_reduces; break;
    default: ++counters.other_collectives;
  }
  counters.wire_bytes += wire_bytes;
  if (!op.input_region && op.input && (backend().capabilities & TPFSDP_BACKEND_CAN_READ_CALLER) == 0) {
    const int64_t staged = staged_bytes(op, rank_);
    counters.copies += staged > 0;
    counters.copied_bytes += staged;
  }

  Event event;
  event.kind = EventKind::kCollective;
  event.op = op.op;
  event.dtype = op.reduce_dtype != 0 ? op.reduce_dtype : op.dtype;
  event.world_size = size();
  event.start_ns = start_ns;
  event.sequence = sequence();
  event.unit = owner_->unit_name(op.unit);
  event.group = recorded_name_;
  event.operation = collective_name(op.kind);
  event.count = event.output_count = op.element_count;
  const bool is_gather = op.kind == TPFSDP_BACKEND_KIND_ALL_GATHER || op.kind == TPFSDP_BACKEND_KIND_SHARED_GATHER ||
                         op.kind == TPFSDP_BACKEND_KIND_MAPPED_GATHER;
  if (recorder.is_on() && is_gather) {
    event.count = 0;
    for (int64_t i = 0; i < op.piece_count; ++i) event.count += op.pieces[i].rank == rank_ ? op.pieces[i].count : 0;
  } else if (recorder.is_on() && op.kind == TPFSDP_BACKEND_KIND_REDUCE_SCATTER) {
    event.output_count = 0;
    for (int64_t i = 0; i < op.piece_count; ++i) event.output_count += op.pieces[i].count;
  }

  CollectiveEntry entry;
  entry.sequence = event.sequence;
  entry.kind = op.kind;
  entry.op = op.op;
  entry.dtype = op.dtype;
  entry.element_count = op.element_count;
  entry.posted_ns = start_ns;
  entry.event = recorder.record(event);
  entry.unit = event.unit;
  log_->post(entry);
}

Status Group::complete(int64_t sequence, bool may_wait) {
  require_usable("complete");
  for (;;) {
    tpfsdp_backend_call call(*owner_);
    const Status status = backend().complete(&call, comm_, sequence, may_wait);
    if (status == TPFSDP_OK) settle(sequence);
    if (status >= 0) return status;
    const auto entry = log_->find(call.sequence < 0 ? sequence : call.sequence);
    const auto detail =
        note_failure(call, status, entry ? collective_name(entry->kind) : "complete", entry ? entry->unit : "");
    if (!leave_to_pending(detail, sequence)) throw Failure(detail);
  }
}

Status Group::wait_read(int64_t sequence, bool may_wait) {
  require_usable("wait_read");
  tpfsdp_backend_call call(*owner_);
  const Status status = backend().wait_read(&call, comm_, sequence, may_wait);
  if (status >= 0) return status;
  const auto entry = log_->find(sequence);
  throw Failure(
      note_failure(call, status, entry ? collective_name(entry->kind) : "wait_read", entry ? entry->unit : ""));
}

Status Group::create_common(int64_t size_bytes, bool may_wait, void **out_data, const void **out_readable,
                            tpfsdp_backend_region **out_region) {
  require_usable("common_region");
  for (;;) {
    tpfsdp_backend_call call(*owner_);
    const Status status =
        backend().region_create_common(&call, comm_, size_bytes, may_wait, out_data, out_readable, out_region);
    if (status == TPFSDP_PENDING) return status;
    if (status == TPFSDP_OK) {
      // Its sequences are no collectives of the library, but count.
      settle(sequence());
      note_posted();
      has_told_failure_ = false;
      return status;
    }
    const auto detail = note_failure(call, status, "common_region", "");
    if (!leave_to_pending(detail, INT64_MAX)) throw Failure(detail);
  }
}

void Group::note_posted() {
  tpfsdp_backend_peer self{};
  self.struct_size = sizeof self;
  if (backend().comm_get_peer(comm_, rank_, &self) == TPFSDP_OK) posted_.store(self.posted, std::memory_order_relaxed);
}

Status Group::wait_released(tpfsdp_backend_region *region, bool may_wait) {
  require_usable("wait_released");
  for (;;) {
    tpfsdp_backend_call call(*owner_);
    const Status status = backend().region_wait_released(&call, comm_, region, may_wait);
    if (status >= 0) return status;
    const auto detail = note_failure(call, status, "wait_released", "");
    if (!leave_to_pending(detail, INT64_MAX)) throw Failure(detail);
  }
}

void Group::publish_step() {
  require_usable("end_backward");
  backend().publish_step(comm_);
}

Status Group::wait_step(bool may_wait) {
  require_usable("end_backward");
  tpfsdp_backend_call call(*owner_);
  const Status status = backend().wait_step(&call, comm_, may_wait);
  if (status >= 0) return status;
  throw Failure(note_failure(call, status, "end_backward", ""));
}

void Group::post_failure(Status status, const std::string &message) noexcept {
  if (!comm_ || is_shut_down() || has_failed()) return;
  backend().post_failure(comm_, status, message.c_str());
  has_told_failure_ = true;
}

void Group::give_up() noexcept {
  if (!comm_ || is_shut_down()) return;
  backend().give_up(comm_);
  ++generation_;
  log_->fail_open(TPFSDP_ERR_CANCELLED, monotonic_ns());
  fail_pending(given_up());
}

void Group::post_reset(int64_t windows_opened) {
  require_usable("reset");
  backend().post_reset(comm_, windows_opened);
  give_up();
}

Status Group::wait_reset(bool may_wait, bool *out_all_reset) {
  require_usable("reset");
  tpfsdp_backend_call call(*owner_);
  tpfsdp_bool all_reset = 0;
  const Status status = backend().wait_reset(&call, comm_, may_wait, &all_reset);
  if (status < 0) throw Failure(note_failure(call, status, "reset", ""));
  if (status == TPFSDP_OK) *out_all_reset = all_reset != 0;
  if (status == TPFSDP_OK && all_reset != 0) {
    has_told_failure_ = false;
    note_posted();  // the last sequence is not one that failed any more
  }
  return status;
}

// ---- Asynchronous collectives ------------------------------------------------------------------------------------

void Group::keep(std::shared_ptr<PendingCollective> pending) { pending_.push_back(std::move(pending)); }

void Group::settle(int64_t sequence) noexcept {
  const int64_t now = monotonic_ns();
  Recorder &recorder = owner_->recorder();
  log_->complete(sequence, now, [&](const CollectiveEntry &entry) { recorder.end(entry.event, now); });
  std::erase_if(pending_, [&](const std::shared_ptr<PendingCollective> &pending) {
    if (pending->sequence > sequence) return false;
    pending->is_complete = true;
    pending->pieces.clear();
    return true;
  });
}

void Group::fail_pending(const std::shared_ptr<const ErrorDetail> &failure) noexcept {
  for (const auto &pending : pending_) pending->failure = failure;
  pending_.clear();
}

// Ranks disagreed at, or a peer failed in place of, an earlier asynchronous collective: its work tells, and the caller
// goes on to what it waits for.
bool Group::leave_to_pending(const std::shared_ptr<const ErrorDetail> &failure, int64_t before) {
  if (!is_verdict(failure->status) || failure->sequence >= before) return false;
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const auto &pending) { return pending->sequence == failure->sequence; });
  if (found == pending_.end()) return false;
  settle(failure->sequence - 1);
  pending_.front()->failure = failure;
  pending_.erase(pending_.begin());
  return true;
}

// ---- Failures ----------------------------------------------------------------------------------------------------

void Group::require_usable(const char *operation) {
  if (is_shut_down())
    fail(TPFSDP_ERR_STATE, operation, ": group \"", name_, "\" of ", owner_->describe(), " was shut down");
  if (has_failed()) repeat_failure(operation);
  TPFSDP_CHECK(comm_ != nullptr);
}

std::shared_ptr<const ErrorDetail> Group::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::shared_ptr<const ErrorDetail> Group::note_failure(const tpfsdp_backend_call &call, Status status,
                                                       const char *operation, const char *unit) {
  ErrorDetail made = failure_of(call, status);
  made.operation = operation;
  made.unit = unit;
  made.group = name_;
  made.origin = this;
  auto detail = std::make_shared<const ErrorDetail>(std::move(made));
  if (!is_sticky(status)) {
    if (is_verdict(status)) log_->fail(detail->sequence, status, monotonic_ns());
    return detail;
  }
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = detail;
  }
  has_failed_.store(true, std::memory_order_release);
  log_->fail_open(status, monotonic_ns());
  return detail;
}

void Group::repeat_failure(const char *operation) const {
  const std::shared_ptr<const ErrorDetail> first = failure();
  ErrorDetail again = *first;
  again.operation = operation;
  again.unit.clear();
  again.message =
      cat(owner_->describe(), ": ", operation, " on group \"", name_, "\", which failed before: ", first->message);
  again.cause = first;
  throw Failure(std::move(again));
}

void fail_collective(Group &group, const Failure &failure) {
  ErrorDetail detail = *failure.detail();
  const bool peers_know = is_sticky(detail.status) || is_verdict(detail.status);
  if (detail.group.empty()) {
    detail.group = group.name();
    detail.backend = group.owner().backend().name;
    detail.rank = group.rank();
    detail.message = cat(group.owner().describe(), ": ", detail.message);
  }
  const auto made = std::make_shared<const ErrorDetail>(std::move(detail));
  if (is_sticky(made->status)) group.fail_pending(made);
  if (!peers_know) {
    group.fail_pending(made);
    group.post_failure(made->status, made->message);
    group.give_up();
  }
  throw Failure(made);
}

}  // namespace tpfsdp
