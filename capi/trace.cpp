// SPDX-License-Identifier: Apache-2.0
#include "comm/context.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "list.hpp"
#include "options.hpp"

#include <tpfsdp/trace.h>

namespace tpfsdp::capi {
namespace {

constexpr bool same(int32_t constant, EventKind kind) { return constant == static_cast<int32_t>(kind); }
static_assert(same(TPFSDP_EVENT_UNSHARD, EventKind::kUnshard) && same(TPFSDP_EVENT_RESHARD, EventKind::kReshard) &&
              same(TPFSDP_EVENT_POST_BACKWARD, EventKind::kPostBackward) &&
              same(TPFSDP_EVENT_REDUCE, EventKind::kReduce) && same(TPFSDP_EVENT_COLLECTIVE, EventKind::kCollective) &&
              same(TPFSDP_EVENT_HOOK, EventKind::kHook) && same(TPFSDP_EVENT_WRITE, EventKind::kWrite) &&
              same(TPFSDP_EVENT_MARK, EventKind::kMark) && same(TPFSDP_EVENT_WAIT_UNSHARD, EventKind::kWaitUnshard));

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_trace_get_counters(tpfsdp_context *context, tpfsdp_bool reset, tpfsdp_counters *out_counters,
                                        tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Recorder &recorder = entry.get<Context>(context, "context").rank().recorder();
    const bool restart = as_bool(reset, "reset");
    const Counters &counters = recorder.counters;
    tpfsdp_counters info{};
    info.events_lost = recorder.events_lost() ? 1 : 0;
    info.event_count = recorder.kept();
    info.all_gathers = counters.all_gathers;
    info.reduce_scatters = counters.reduce_scatters;
    info.all_reduces = counters.all_reduces;
    info.other_collectives = counters.other_collectives;
    info.gathered_bytes = counters.gathered_bytes;
    info.reduced_bytes = counters.reduced_bytes;
    info.wire_bytes = counters.wire_bytes;
    info.filled_bytes = counters.filled_bytes;
    info.copies = counters.copies;
    info.copied_bytes = counters.copied_bytes;
    info.prefetch_hits = counters.prefetch_hits;
    info.prefetch_misses = counters.prefetch_misses;
    info.spare_slots = counters.spare_slots;
    info.deferred_reshards = counters.deferred_reshards;
    info.waits = counters.waits;
    info.wait_ns = counters.wait_ns;
    info.allocations = counters.allocations;
    write_info(out_counters, info, "out_counters");
    if (restart) recorder.counters = Counters{};
  });
}

tpfsdp_status tpfsdp_trace_get_event(tpfsdp_context *context, int64_t position, tpfsdp_trace_event *out_event,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Event &event = entry.get<Context>(context, "context").rank().recorder().event_at(position);
    tpfsdp_trace_event info{};
    info.kind = static_cast<tpfsdp_event_kind>(event.kind);
    info.training_state = event.training_state;
    info.op = event.op;
    info.dtype = event.dtype;
    info.world_size = event.world_size;
    info.index = event.index;
    info.start_ns = event.start_ns;
    info.duration_ns = event.duration_ns;
    info.sharded_state = event.sharded_state;
    info.count = event.count;
    info.output_count = event.output_count;
    info.sequence = event.sequence;
    info.unit = event.unit;
    info.group = event.group;
    info.operation = event.operation;
    info.detail = event.detail;
    write_info(out_event, info, "out_event");
  });
}

tpfsdp_status tpfsdp_trace_clear(tpfsdp_context *context, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<Context>(context, "context").rank().recorder().clear();
  });
}

tpfsdp_status tpfsdp_trace_mark(tpfsdp_context *context, const char *name, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Recorder &recorder = entry.get<Context>(context, "context").rank().recorder();
    Event event;
    event.kind = EventKind::kMark;
    event.operation = recorder.is_on() ? recorder.intern(&required(name, "name")) : &required(name, "name");
    recorder.record(event);
  });
}

tpfsdp_status tpfsdp_trace_export_chrome(tpfsdp_context *context, tpfsdp_blob **out_json,
                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Rank &rank = entry.get<Context>(context, "context").rank();
    tpfsdp_blob *&out = required(out_json, "out_json");
    out = owned<tpfsdp_blob>(make<Blob>(rank.recorder().chrome_trace(rank.rank())).get());
  });
}

}  // extern "C"
