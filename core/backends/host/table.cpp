// SPDX-License-Identifier: Apache-2.0
// The table of backend.h over the engine: no slot throws, and every error reaches the call.
#include "table.hpp"

#include <cstddef>
#include <mutex>
#include <new>

#include "close.hpp"
#include "comm.hpp"
#include "complete.hpp"
#include "failure.hpp"
#include "making.hpp"
#include "post.hpp"
#include "region.hpp"
#include "release.hpp"
#include "reset.hpp"
#include "submit.hpp"
#include "text.hpp"
#include "window.hpp"

namespace tpfsdp::host {

namespace {

constexpr const char *VERSION = "0.1";

/// Set by the entry, copied by each comm; the tables of one library share one set of services.
class Lent {
 public:
  void set(const tpfsdp_backend_services &services) {
    const std::lock_guard<std::mutex> lock(mutex_);
    services_ = services;
  }
  tpfsdp_backend_services get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return services_;
  }

 private:
  std::mutex mutex_;
  tpfsdp_backend_services services_{};
};
Lent lent;

Comm &of(tpfsdp_backend_comm *comm) { return *reinterpret_cast<Comm *>(comm); }

/// Runs a slot that can fail, and reports how it ended.
template <class Body>
tpfsdp_status guarded(const tpfsdp_backend_services &services, tpfsdp_backend_call *call, Body body) noexcept {
  try {
    const Outcome end = body();
    if (end.failed()) services.set_error(call, end.status, end.rank, end.sequence, end.text.c_str());
    return end.status;
  } catch (const std::bad_alloc &) {
    services.set_error(call, TPFSDP_ERR_OUT_OF_MEMORY, -1, -1, "no memory in the host backend");
    return TPFSDP_ERR_OUT_OF_MEMORY;
  } catch (...) {
    services.set_error(call, TPFSDP_ERR_INTERNAL, -1, -1, "an exception in the host backend");
    return TPFSDP_ERR_INTERNAL;
  }
}

/// Runs a slot that has nobody to tell of a failure; what it had to publish is published before it can throw.
template <class Body>
void quietly(Body body) noexcept {
  try {
    body();
  } catch (...) {  // no memory for a text
  }
}

template <const Provider &(*provider)()>
tpfsdp_status comm_create(tpfsdp_backend_call *call, const tpfsdp_backend_comm_options *options,
                          tpfsdp_backend_comm **out_comm) {
  const tpfsdp_backend_services services = lent.get();
  return guarded(services, call, [&] {
    if (options->struct_size < sizeof *options) return Outcome::error(TPFSDP_ERR_ABI, "options of an older library");
    Comm *comm = nullptr;
    Outcome end = create(services, provider(), call, *options, nullptr, &comm);
    if (end.ok()) *out_comm = reinterpret_cast<tpfsdp_backend_comm *>(comm);
    return end;
  });
}

tpfsdp_status comm_shutdown(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm) {
  return guarded(of(comm).services, call, [&] { return shut_down(of(comm), call); });
}

void comm_abort(tpfsdp_backend_comm *comm, tpfsdp_status status, const char *reason) {
  quietly([&] { abort(of(comm), status, reason); });
}

tpfsdp_status comm_check(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm) {
  return guarded(of(comm).services, call, [&] { return sticky(of(comm), Look::ACQUIRE); });
}

void comm_destroy(tpfsdp_backend_comm *comm) { destroy(&of(comm)); }

tpfsdp_status comm_get_peer(tpfsdp_backend_comm *handle, int32_t rank, tpfsdp_backend_peer *out) {
  const Comm &comm = of(handle);
  if (rank < 0 || rank >= comm.world_size) return TPFSDP_ERR_INVALID_ARGUMENT;
  const Lane &lane = comm.layout.lane(rank);
  tpfsdp_backend_peer peer{};
  peer.struct_size = out->struct_size;
  peer.rank = rank;
  peer.posted = static_cast<int64_t>(last_posted(comm, rank));
  peer.done = static_cast<int64_t>(comm.words.see(lane.done, Look::ACQUIRE));
  peer.step = static_cast<int64_t>(comm.words.see(lane.step, Look::ACQUIRE));
  peer.moving = static_cast<int64_t>(comm.words.see(lane.moving, Look::ACQUIRE));
  peer.life = name_of(static_cast<Life>(comm.words.see(lane.life, Look::ACQUIRE)));
  if (out->struct_size < sizeof peer) return TPFSDP_ERR_ABI;
  *out = peer;
  return TPFSDP_OK;
}

tpfsdp_status submit_slot(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, const tpfsdp_backend_op *op,
                          tpfsdp_bool may_wait, int64_t *out_sequence) {
  return guarded(of(comm).services, call, [&] {
    uint64_t sequence = 0;
    Outcome end = submit(of(comm), call, *op, may_wait != 0, &sequence);
    if (end.ok()) *out_sequence = static_cast<int64_t>(sequence);
    return end;
  });
}

tpfsdp_status complete_slot(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t sequence,
                            tpfsdp_bool may_wait) {
  return guarded(of(comm).services, call,
                 [&] { return complete(of(comm), call, static_cast<uint64_t>(sequence), may_wait != 0); });
}

tpfsdp_status wait_read_slot(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t sequence,
                             tpfsdp_bool may_wait) {
  return guarded(of(comm).services, call,
                 [&] { return wait_read(of(comm), call, static_cast<uint64_t>(sequence), may_wait != 0); });
}

void post_failure_slot(tpfsdp_backend_comm *comm, tpfsdp_status status, const char *message) {
  quietly([&] { post_failure(of(comm), status, message); });
}

void give_up_slot(tpfsdp_backend_comm *comm) {
  quietly([&] { give_up(of(comm)); });
}

void post_reset_slot(tpfsdp_backend_comm *comm, int64_t windows_opened) {
  quietly([&] { post_reset(of(comm), windows_opened); });
}

tpfsdp_status wait_reset_slot(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, tpfsdp_bool may_wait,
                              tpfsdp_bool *out_all_reset) {
  return guarded(of(comm).services, call, [&] {
    bool all = false;
    Outcome end = wait_reset(of(comm), call, may_wait != 0, &all);
    if (end.ok()) *out_all_reset = all ? 1 : 0;
    return end;
  });
}

void publish_step_slot(tpfsdp_backend_comm *comm) {
  quietly([&] { publish_step(of(comm)); });
}

tpfsdp_status wait_step_slot(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, tpfsdp_bool may_wait) {
  return guarded(of(comm).services, call, [&] { return wait_step(of(comm), call, may_wait != 0); });
}

tpfsdp_status region_create(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t size_bytes, void **out_data,
                            tpfsdp_backend_region **out_region) {
  return guarded(of(comm).services, call, [&] {
    Region *region = nullptr;
    Outcome end = create_region(of(comm), size_bytes, out_data, &region);
    if (end.ok()) *out_region = reinterpret_cast<tpfsdp_backend_region *>(region);
    return end;
  });
}

tpfsdp_status region_protect(tpfsdp_backend_call *call, tpfsdp_backend_region *region, tpfsdp_bool read_only) {
  return guarded(lent.get(), call, [&] { return protect(*reinterpret_cast<Region *>(region), read_only != 0); });
}

tpfsdp_status region_create_common(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t size_bytes,
                                   tpfsdp_bool may_wait, void **out_data, const void **out_readable,
                                   tpfsdp_backend_region **out_region) {
  return guarded(of(comm).services, call, [&] {
    Region *region = nullptr;
    Outcome end = make_common(of(comm), call, size_bytes, may_wait != 0, &region);
    if (!end.ok()) return end;
    *out_data = region->common->data();
    *out_readable = region->common->readable();
    *out_region = reinterpret_cast<tpfsdp_backend_region *>(region);
    return end;
  });
}

void region_release(tpfsdp_backend_region *region) {
  if (const auto &common = reinterpret_cast<Region *>(region)->common) release(*common);
}

tpfsdp_status region_wait_released(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, tpfsdp_backend_region *handle,
                                   tpfsdp_bool may_wait) {
  return guarded(of(comm).services, call, [&] {
    const Region &region = *reinterpret_cast<Region *>(handle);
    if (!region.common || region.segment != of(comm).segment)
      return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "no common region of comm '" + of(comm).name + "'");
    return wait_released(of(comm), call, *region.common, may_wait != 0);
  });
}

void region_destroy(tpfsdp_backend_region *region) { destroy(reinterpret_cast<Region *>(region)); }

template <const Provider &(*provider)()>
int32_t probe(char *reason, int64_t reason_bytes) {
  return provider().probe(reason, reason_bytes);
}

template <const Provider &(*provider)()>
tpfsdp_status fill(const tpfsdp_backend_services *services, tpfsdp_backend_table *out_table) {
  if (services->head.major != TPFSDP_BACKEND_ABI_MAJOR || out_table->head.major != TPFSDP_BACKEND_ABI_MAJOR ||
      services->head.struct_size < sizeof *services || out_table->head.struct_size < sizeof *out_table)
    return TPFSDP_ERR_ABI;
  lent.set(*services);
  const tpfsdp_backend_head head = out_table->head;
  *out_table = {head,
                provider().name(),
                VERSION,
                "Apache-2.0",
                provider().capabilities(),
                probe<provider>,
                comm_create<provider>,
                comm_shutdown,
                comm_abort,
                comm_check,
                comm_destroy,
                comm_get_peer,
                submit_slot,
                complete_slot,
                wait_read_slot,
                post_failure_slot,
                give_up_slot,
                post_reset_slot,
                wait_reset_slot,
                publish_step_slot,
                wait_step_slot,
                region_create,
                region_protect,
                region_destroy,
                region_create_common,
                region_release,
                region_wait_released};
  return TPFSDP_OK;
}

}  // namespace

}  // namespace tpfsdp::host

tpfsdp_status tpfsdp_backend_threads_entry(const tpfsdp_backend_services *services, tpfsdp_backend_table *out_table) {
  return tpfsdp::host::fill<tpfsdp::host::threads_provider>(services, out_table);
}

tpfsdp_status tpfsdp_backend_shm_entry(const tpfsdp_backend_services *services, tpfsdp_backend_table *out_table) {
  return tpfsdp::host::fill<tpfsdp::host::shm_provider>(services, out_table);
}
