/* SPDX-License-Identifier: Apache-2.0
 * Contexts through the C ABI: joining, infos, logs, interrupts, ranks as threads, shutdown and abort. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include "check.h"

#include <stdlib.h>

static int drops;
static void count_drop(void *user) { ++*(int *)user; }

static tpfsdp_group *group_of(tpfsdp_context *context) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  return info.group;
}

static void test_world_of_one(void) {
  tpfsdp_context *context = NULL;
  CHECK_OK(tpfsdp_context_create(NULL, &context, &error));
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  CHECK_EQ(info.rank, 0);
  CHECK_EQ(info.world_size, 1);
  CHECK_EQ(info.local_rank, 0);
  CHECK_EQ(info.local_world_size, 1);
  CHECK_EQ(info.arrival_timeout_ms, 1800000);
  CHECK_EQ(info.progress_timeout_ms, 60000);
  CHECK_EQ(info.event_capacity, 0);
  CHECK_TEXT(info.backend, "threads");
  CHECK_CONTAINS(info.backend_report, "threads (built in): taken");
  CHECK(info.backend_version[0] != '\0');
  CHECK_OK(tpfsdp_group_barrier(info.group, &error));
  CHECK_OK(tpfsdp_context_shutdown(context, &error));
  CHECK_FAILS(tpfsdp_context_shutdown(context, &error), TPFSDP_ERR_STATE, "rank 0 of 1 was shut down");
  CHECK_FAILS(tpfsdp_group_check(info.group, &error), TPFSDP_ERR_STATE, "was shut down");
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  tpfsdp_handle_release(context);
  CHECK_FAILS(tpfsdp_context_get_info(context, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "context is not a living");
  CHECK_FAILS(tpfsdp_group_check(info.group, &error), TPFSDP_ERR_INVALID_HANDLE, "group");
}

static void test_options(void) {
  tpfsdp_context *const untouched = (tpfsdp_context *)0x10;
  tpfsdp_context *context = untouched;
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  CHECK_FAILS(tpfsdp_context_create(&options, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_context is NULL");
  options.struct_size = 3;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_ABI, "tpfsdp_context_options");
  options.struct_size = sizeof options;
  options.rank = 2;
  options.world_size = 2;
  options.store = "local:options";
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT, "rank is 2");
  options.rank = 0;
  options.store = "udp:x";
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT, "\"udp:x\"");
  options = TPFSDP_INIT(tpfsdp_context_options);
  options.backend = "carrier pigeons";
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_BACKEND_UNAVAILABLE, "carrier pigeons");
  options.backend = NULL;
  options.log_level = 17;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT, "log_level is 17");
  CHECK(context == untouched);

  /* Callbacks are dropped once, also when the call fails, also when only one of them is at fault. */
  const tpfsdp_log_callback log = {NULL, &drops, count_drop};
  const tpfsdp_interrupt_callback interrupt = {NULL, &drops, count_drop};
  options = TPFSDP_INIT(tpfsdp_context_options);
  options.log = &log;
  options.interrupt = &interrupt;
  drops = 0;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT, ".call is NULL");
  CHECK_EQ(drops, 2);
}

static tpfsdp_status never_asked(void *user, const tpfsdp_interrupt_args *args) {
  (void)user;
  (void)args;
  CHECK(!"a world of one waits for nobody");
  return TPFSDP_OK;
}

static void test_interrupt_is_dropped_once(void) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  const tpfsdp_interrupt_callback interrupt = {never_asked, &drops, count_drop};
  options.interrupt = &interrupt;
  drops = 0;
  tpfsdp_context *context = NULL;
  CHECK_OK(tpfsdp_context_create(&options, &context, &error));
  CHECK_EQ(drops, 0);
  CHECK_OK(tpfsdp_context_set_interrupt(context, &interrupt, &error));
  CHECK_EQ(drops, 1);
  CHECK_OK(tpfsdp_context_set_interrupt(context, NULL, &error));
  CHECK_EQ(drops, 2);
  const tpfsdp_interrupt_callback broken = {NULL, &drops, count_drop};
  CHECK_FAILS(tpfsdp_context_set_interrupt(context, &broken, &error), TPFSDP_ERR_INVALID_ARGUMENT, ".call is NULL");
  CHECK_EQ(drops, 3);
  CHECK_FAILS(tpfsdp_context_set_interrupt(NULL, &interrupt, &error), TPFSDP_ERR_INVALID_HANDLE, "context is NULL");
  CHECK_EQ(drops, 4);
  tpfsdp_handle_release(context);
  CHECK_EQ(drops, 4); /* two registered, two refused */
}

static tpfsdp_status never_told(void *user, const tpfsdp_listening_args *args) {
  (void)user;
  (void)args;
  CHECK(!"no store listens");
  return TPFSDP_OK;
}

static tpfsdp_status refuse(void *user, const tpfsdp_listening_args *args) {
  (void)user;
  CHECK_EQ(args->struct_size, sizeof *args);
  CHECK(args->port > 0);
  char store[64];
  snprintf(store, sizeof store, "tcp:127.0.0.1:%d", args->port);
  CHECK_TEXT(args->store, store);
  return -17;
}

static void test_listening(void) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  tpfsdp_listening_callback listening = {never_told, &drops, count_drop};
  const tpfsdp_log_callback broken = {NULL, &drops, count_drop};
  options.listening = &listening;
  drops = 0;
  tpfsdp_context *context = NULL;
  CHECK_OK(tpfsdp_context_create(&options, &context, &error));
  CHECK_EQ(drops, 1); /* nobody can be told later */
  tpfsdp_handle_release(context);
  options.log = &broken;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT, "log.call is NULL");
  CHECK_EQ(drops, 3);
  options.log = NULL;

  setenv("TPFSDP_TOKEN", "a token of at least sixteen bytes", 1);
  options.world_size = 2;
  options.store = "tcp:127.0.0.1:0";
  listening.call = refuse;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_CALLBACK,
              "listening callback of rank 0 failed with status -17");
  CHECK_EQ(drops, 4);
  options.rank = 1;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "only rank 0 may leave the port open");
  options.rank = 0;
  options.listening = NULL;
  CHECK_FAILS(tpfsdp_context_create(&options, &context, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "a free port is found only for a `listening` callback");
  unsetenv("TPFSDP_TOKEN");
}

typedef struct {
  int ran, fail_rank, leaves_error, log_lines;
} job;

static tpfsdp_status work(void *user, const tpfsdp_rank_args *args) {
  job *mine = (job *)user;
  __atomic_fetch_add(&mine->ran, 1, __ATOMIC_RELAXED);
  CHECK_EQ(args->world_size, 4);
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(args->context, &info, &error));
  CHECK_EQ(info.rank, args->rank);
  CHECK_EQ(info.world_size, 4);
  CHECK_EQ(info.arrival_timeout_ms, 5000);
  if (args->rank != mine->fail_rank) return tpfsdp_group_barrier(info.group, args->error);
  if (!mine->leaves_error) return TPFSDP_ERR_IO;
  return tpfsdp_group_all_gather(info.group, NULL, NULL, NULL, 0, NULL, NULL, args->error);
}

static void test_run_ranks(void) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.arrival_timeout_ms = 5000;
  options.rank = 77; /* ignored, like world_size and store */
  options.world_size = 3;
  options.store = "nonsense";
  job all = {0, -1, 0, 0};
  tpfsdp_rank_callback callback = {work, &all, NULL};
  CHECK_OK(tpfsdp_context_run_ranks(4, &options, &callback, &error));
  CHECK_EQ(all.ran, 4);

  all.fail_rank = 2;
  CHECK_FAILS(tpfsdp_context_run_ranks(4, &options, &callback, &error), TPFSDP_ERR_IO,
              "rank 2 of 4: its function returned status -202");
  all.leaves_error = 1;
  tpfsdp_error *failure = NULL;
  CHECK_EQ(tpfsdp_context_run_ranks(4, &options, &callback, &failure), TPFSDP_ERR_INVALID_ARGUMENT);
  CHECK_CONTAINS(tpfsdp_error_message(failure), "input is NULL");
  tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
  CHECK_EQ(tpfsdp_error_get_info(failure, &info), TPFSDP_OK);
  CHECK_EQ(info.rank, 2);
  CHECK_TEXT(info.group, "world");
  tpfsdp_handle_release(failure);
  CHECK_EQ(all.ran, 12);

  CHECK_FAILS(tpfsdp_context_run_ranks(0, NULL, &callback, &error), TPFSDP_ERR_INVALID_ARGUMENT, "rank_count is 0");
  CHECK_FAILS(tpfsdp_context_run_ranks(2, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "callback is NULL");
  drops = 0;
  const tpfsdp_rank_callback broken = {NULL, &drops, count_drop};
  CHECK_FAILS(tpfsdp_context_run_ranks(2, NULL, &broken, &error), TPFSDP_ERR_INVALID_ARGUMENT, ".call is NULL");
  CHECK_EQ(drops, 1);
  callback.user = &all;
  callback.drop = count_drop;
  all.fail_rank = -1;
  CHECK_OK(tpfsdp_context_run_ranks(4, &options, &callback, &error));
  CHECK_EQ(all.ran, 12 + 4 + 1); /* the drop counts in the first field of job */
}

static tpfsdp_status calls_back(void *user, const tpfsdp_interrupt_args *args) {
  tpfsdp_context *context = (tpfsdp_context *)user;
  CHECK_TEXT(args->operation, "barrier");
  CHECK(args->waited_ms >= 100);
  tpfsdp_counters counters = TPFSDP_INIT(tpfsdp_counters);
  CHECK_FAILS(tpfsdp_trace_get_counters(context, 0, &counters, &error), TPFSDP_ERR_BUSY, "callback called back");
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  return -5;
}

static tpfsdp_status interrupted(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_group *group = group_of(args->context);
  if (args->rank == 1) {
    const tpfsdp_interrupt_callback callback = {calls_back, args->context, NULL};
    CHECK_OK(tpfsdp_context_set_interrupt(args->context, &callback, &error));
    CHECK_FAILS(tpfsdp_group_barrier(group, &error), TPFSDP_ERR_CANCELLED, "interrupted in barrier");
    CHECK_OK(tpfsdp_context_set_interrupt(args->context, NULL, &error));
    tpfsdp_context_abort(args->context, NULL);
  }
  while (tpfsdp_group_check(group, NULL) == TPFSDP_OK) {
  }
  CHECK_FAILS(tpfsdp_group_barrier(group, &error), TPFSDP_ERR_ABORTED, "no reason given");
  return TPFSDP_ERR_ABORTED;
}

static void test_interrupt(void) {
  const tpfsdp_rank_callback callback = {interrupted, NULL, NULL};
  CHECK_FAILS(tpfsdp_context_run_ranks(2, NULL, &callback, &error), TPFSDP_ERR_ABORTED, "rank ");
}

static tpfsdp_status count_line(void *user, const tpfsdp_log_args *args) {
  (void)args;
  __atomic_fetch_add((int *)user, 1, __ATOMIC_RELAXED);
  return TPFSDP_OK;
}

static void test_log_is_dropped_once(void) {
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  const tpfsdp_log_callback log = {count_line, &drops, count_drop};
  options.log = &log;
  options.log_level = TPFSDP_LOG_DEBUG;
  drops = 0;
  tpfsdp_context *context = NULL;
  CHECK_OK(tpfsdp_context_create(&options, &context, &error));
  CHECK_EQ(drops, 0);
  tpfsdp_handle_release(context);
  CHECK_EQ(drops, 1);
  tpfsdp_context_abort(context, "released");
  tpfsdp_context_abort(NULL, NULL);
}

int main(void) {
  test_world_of_one();
  test_options();
  test_interrupt_is_dropped_once();
  test_listening();
  test_run_ranks();
  test_interrupt();
  test_log_is_dropped_once();
  return check_end();
}
