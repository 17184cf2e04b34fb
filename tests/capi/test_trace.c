/* SPDX-License-Identifier: Apache-2.0
 * The recorder through the C ABI: exact counts, exact events, the Chrome trace. */
#include "check.h"

static tpfsdp_status body(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_context *context = args->context;
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  CHECK_EQ(info.event_capacity, 3);

  float mine[2] = {0, 0}, all[4];
  const int64_t two = 2, four = 4;
  tpfsdp_view input, output;
  CHECK_OK(tpfsdp_tensor_view_init(&input, mine, TPFSDP_DTYPE_F32, &two, 1, &error));
  CHECK_OK(tpfsdp_tensor_view_init(&output, all, TPFSDP_DTYPE_F32, &four, 1, &error));
  CHECK_OK(tpfsdp_trace_mark(context, "step 1", &error));
  CHECK_OK(tpfsdp_group_all_gather(info.group, &input, &output, NULL, 0, NULL, NULL, &error));
  CHECK_OK(tpfsdp_group_reduce_scatter(info.group, &output, &input, TPFSDP_REDUCE_MAX, NULL, NULL, &error));

  tpfsdp_counters counters = TPFSDP_INIT(tpfsdp_counters);
  CHECK_OK(tpfsdp_trace_get_counters(context, 0, &counters, &error));
  CHECK_EQ(counters.event_count, 3);
  CHECK_EQ(counters.events_lost, 0);
  CHECK_EQ(counters.all_gathers, 1);
  CHECK_EQ(counters.reduce_scatters, 1);
  CHECK_EQ(counters.all_reduces, 0);
  CHECK_EQ(counters.wire_bytes, 16); /* two floats of the peer, twice */
  CHECK_EQ(counters.copies, 0);

  tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
  CHECK_OK(tpfsdp_trace_get_event(context, 0, &event, &error));
  CHECK_EQ(event.kind, TPFSDP_EVENT_MARK);
  CHECK_TEXT(event.operation, "step 1");
  CHECK_EQ(event.index, 0);
  const int64_t marked_ns = event.start_ns;
  CHECK_OK(tpfsdp_trace_get_event(context, 1, &event, &error));
  CHECK_EQ(event.kind, TPFSDP_EVENT_COLLECTIVE);
  CHECK_TEXT(event.operation, "all_gather");
  CHECK_TEXT(event.group, "world");
  CHECK_TEXT(event.unit, "");
  CHECK_TEXT(event.detail, "");
  CHECK_EQ(event.dtype, TPFSDP_DTYPE_F32);
  CHECK_EQ(event.op, 0);
  CHECK_EQ(event.world_size, 2);
  CHECK_EQ(event.count, 2);
  CHECK_EQ(event.output_count, 4);
  CHECK_EQ(event.sequence, 1);
  CHECK(event.start_ns >= marked_ns);
  CHECK(event.duration_ns > 0);
  CHECK_OK(tpfsdp_trace_get_event(context, 2, &event, &error));
  CHECK_TEXT(event.operation, "reduce_scatter");
  CHECK_EQ(event.op, TPFSDP_REDUCE_MAX);
  CHECK_EQ(event.count, 4);
  CHECK_EQ(event.output_count, 2);
  CHECK_EQ(event.sequence, 2);
  const tpfsdp_trace_event before = event;
  CHECK_FAILS(tpfsdp_trace_get_event(context, 3, &event, &error), TPFSDP_ERR_NOT_FOUND, "no event at position 3");
  CHECK_FAILS(tpfsdp_trace_get_event(context, -1, &event, &error), TPFSDP_ERR_NOT_FOUND, "no event at position -1");
  CHECK(memcmp(&before, &event, sizeof event) == 0);

  tpfsdp_blob *json = NULL;
  CHECK_OK(tpfsdp_trace_export_chrome(context, &json, &error));
  const void *text = NULL;
  int64_t size = 0;
  CHECK_OK(tpfsdp_blob_get(json, &text, &size, &error));
  CHECK_CONTAINS((const char *)text, "\"traceEvents\":[");
  CHECK_CONTAINS((const char *)text, args->rank ? "\"name\":\"rank 1\"" : "\"name\":\"rank 0\"");
  CHECK_CONTAINS((const char *)text, "\"name\":\"step 1\"");
  tpfsdp_handle_release(json);

  /* One more than fits: the oldest goes, and it is told. */
  CHECK_OK(tpfsdp_trace_mark(context, "step 2", &error));
  CHECK_OK(tpfsdp_trace_get_counters(context, 1, &counters, &error));
  CHECK_EQ(counters.events_lost, 1);
  CHECK_EQ(counters.event_count, 3);
  CHECK_OK(tpfsdp_trace_get_event(context, 0, &event, &error));
  CHECK_EQ(event.index, 1);
  CHECK_OK(tpfsdp_trace_clear(context, &error));
  CHECK_OK(tpfsdp_trace_get_counters(context, 0, &counters, &error));
  CHECK_EQ(counters.events_lost, 0);
  CHECK_EQ(counters.event_count, 0);
  CHECK_EQ(counters.all_gathers, 0); /* reset above */
  CHECK_EQ(counters.wire_bytes, 0);

  CHECK_FAILS(tpfsdp_trace_mark(context, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "name is NULL");
  CHECK_FAILS(tpfsdp_trace_get_counters(context, 2, &counters, &error), TPFSDP_ERR_INVALID_ARGUMENT, "reset is 2");
  CHECK_FAILS(tpfsdp_trace_get_counters(context, 1, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_counters is NULL");
  CHECK_FAILS(tpfsdp_trace_clear(NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "context is NULL");
  return TPFSDP_OK;
}

int main(void) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.event_capacity = 3;
  const tpfsdp_rank_callback callback = {body, NULL, NULL};
  CHECK_OK(tpfsdp_context_run_ranks(2, &options, &callback, &error));
  return check_end();
}
