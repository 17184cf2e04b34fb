/* SPDX-License-Identifier: Apache-2.0
 * Groups and works through the C ABI: infos, every collective, splits, faults, the dump. */
#include "check.h"

static tpfsdp_group *group_of(tpfsdp_context *context) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(context, &info, &error));
  return info.group;
}

static tpfsdp_view floats(float *data, const int64_t *count) {
  tpfsdp_view view;
  CHECK_OK(tpfsdp_tensor_view_init(&view, data, TPFSDP_DTYPE_F32, count, 1, &error));
  return view;
}

static void check_info(tpfsdp_group *group, int32_t rank, int64_t sequence) {
  tpfsdp_group_info info = TPFSDP_INIT(tpfsdp_group_info);
  CHECK_OK(tpfsdp_group_get_info(group, &info, &error));
  CHECK_EQ(info.rank, rank);
  CHECK_EQ(info.world_size, 3);
  CHECK_EQ(info.local_rank, rank);
  CHECK_EQ(info.local_world_size, 3);
  CHECK_EQ(info.has_failed, 0);
  CHECK_EQ(info.sequence, sequence);
  for (int32_t i = 0; i < 3; ++i) CHECK_EQ(info.global_ranks[i], i);
  CHECK_TEXT(info.backend, "threads");
  CHECK_TEXT(info.name, "world");
}

static void check_collectives(tpfsdp_group *group, int32_t rank) {
  const int64_t one = 1, two = 2, three = 3, six = 6;
  float mine[2] = {(float)rank, (float)rank + 10}, all[6] = {0};

  tpfsdp_view input = floats(mine, &two), output = floats(all, &six);
  CHECK_OK(tpfsdp_group_all_gather(group, &input, &output, NULL, 0, NULL, NULL, &error));
  for (int i = 0; i < 3; ++i) CHECK(all[2 * i] == (float)i && all[2 * i + 1] == (float)(i + 10));

  /* Unequal parts: 1, 0 and 2 elements. */
  const int64_t counts[3] = {1, 0, 2};
  input = floats(mine, &counts[rank]);
  float uneven[3] = {-1, -1, -1};
  output = floats(uneven, &three);
  CHECK_OK(tpfsdp_group_all_gather(group, &input, &output, counts, 3, NULL, NULL, &error));
  CHECK(uneven[0] == 0 && uneven[1] == 2 && uneven[2] == 12);

  /* 0+1+2 = 3, times its own index. */
  float parts[3] = {0, 1.0f * (float)rank, 2.0f * (float)rank}, part = -1;
  input = floats(parts, &three);
  output = floats(&part, &one);
  CHECK_OK(tpfsdp_group_reduce_scatter(group, &input, &output, TPFSDP_REDUCE_SUM, NULL, NULL, &error));
  CHECK(part == 3.0f * (float)rank);

  float value = (float)(rank + 1);
  tpfsdp_view view = floats(&value, &one);
  CHECK_OK(tpfsdp_group_all_reduce(group, &view, &view, TPFSDP_REDUCE_AVG, NULL, NULL, &error));
  CHECK(value == 6.0f * (float)(1.0 / 3.0));

  value = (float)rank;
  tpfsdp_work *work = NULL;
  const tpfsdp_stream stream = {TPFSDP_DEVICE_CPU, 0, NULL};
  CHECK_OK(tpfsdp_group_broadcast(group, &view, 2, &stream, &work, &error));
  CHECK(work != NULL);
  CHECK_OK(tpfsdp_work_wait(work, &stream, &error));
  CHECK_EQ(tpfsdp_work_test(work, NULL), TPFSDP_OK);
  CHECK(value == 2.0f);
  const tpfsdp_stream other = {TPFSDP_DEVICE_CUDA, 0, NULL};
  CHECK_FAILS(tpfsdp_work_wait(work, &other, &error), TPFSDP_ERR_UNSUPPORTED, "device type 2");
  tpfsdp_handle_release(work);
  CHECK_FAILS(tpfsdp_work_wait(work, NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "work is not a living tpfsdp_work");
  CHECK_FAILS(tpfsdp_work_test(NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "work is NULL");
}

static void check_split(tpfsdp_group *group, int32_t rank) {
  tpfsdp_group *part = (tpfsdp_group *)group;
  CHECK_OK(tpfsdp_group_split(group, rank == 1 ? -3 : 5, -rank, "ends", &part, &error));
  if (rank == 1) {
    CHECK(part == NULL);
    return;
  }
  tpfsdp_group_info info = TPFSDP_INIT(tpfsdp_group_info);
  CHECK_OK(tpfsdp_group_get_info(part, &info, &error));
  CHECK_EQ(info.world_size, 2);
  CHECK_EQ(info.rank, rank == 2 ? 0 : 1);
  CHECK_EQ(info.global_ranks[0], 2);
  CHECK_EQ(info.global_ranks[1], 0);
  CHECK_TEXT(info.name, "ends");
  CHECK_OK(tpfsdp_group_barrier(part, &error));
  CHECK_OK(tpfsdp_group_shutdown(part, &error));
  CHECK_FAILS(tpfsdp_group_barrier(part, &error), TPFSDP_ERR_STATE, "group \"ends\" of rank");
  CHECK_FAILS(tpfsdp_group_shutdown(part, &error), TPFSDP_ERR_STATE, "was shut down before");
  tpfsdp_handle_release(part);
}

static void check_faults(tpfsdp_group *group, int32_t rank) {
  /* A NULL out is a mistake of rank 0; the others hear it. */
  tpfsdp_group *part = NULL;
  CHECK_FAILS(tpfsdp_group_split(group, 0, 0, NULL, rank == 0 ? NULL : &part, &error),
              rank == 0 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_ERR_REMOTE, "out_group is NULL");
  CHECK(part == NULL);
  CHECK_OK(tpfsdp_group_check(group, &error));
  CHECK_OK(tpfsdp_group_reset(group, &error));
  CHECK_OK(tpfsdp_group_barrier(group, &error));

  tpfsdp_blob *dump = NULL;
  CHECK_OK(tpfsdp_group_dump_recorder(group, &dump, &error));
  const void *text = NULL;
  int64_t size = 0;
  CHECK_OK(tpfsdp_blob_get(dump, &text, &size, &error));
  CHECK_CONTAINS((const char *)text, "\"operation\": \"all_gather\"");
  CHECK_CONTAINS((const char *)text, "\"peers\"");
  CHECK_EQ((int64_t)strlen((const char *)text), size);
  tpfsdp_handle_release(dump);
  CHECK_FAILS(tpfsdp_group_dump_recorder(group, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_text is NULL");
}

static tpfsdp_status body(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_group *group = group_of(args->context);
  check_info(group, args->rank, 0);
  check_collectives(group, args->rank);
  check_info(group, args->rank, 5);
  check_split(group, args->rank);
  check_faults(group, args->rank);
  return tpfsdp_group_barrier(group, args->error);
}

static tpfsdp_status aborts(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_group *group = group_of(args->context);
  if (args->rank == 1) tpfsdp_group_abort(group, "out of patience");
  CHECK_FAILS(tpfsdp_group_barrier(group, &error), TPFSDP_ERR_ABORTED, "out of patience");
  tpfsdp_group_info info = TPFSDP_INIT(tpfsdp_group_info);
  CHECK_OK(tpfsdp_group_get_info(group, &info, &error));
  CHECK_EQ(info.has_failed, 1);
  return TPFSDP_ERR_ABORTED;
}

static void test_bad_handles(void) {
  const int64_t one = 1;
  float value = 0;
  tpfsdp_view view = floats(&value, &one);
  tpfsdp_group *group = NULL;
  tpfsdp_group_info info = TPFSDP_INIT(tpfsdp_group_info);
  tpfsdp_blob *blob = NULL;
  int on_stack = 0;
  tpfsdp_group *const bad[] = {NULL, (tpfsdp_group *)(void *)&on_stack, (tpfsdp_group *)0x1234};
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(tpfsdp_group_get_info(bad[i], &info, NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_check(bad[i], NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_shutdown(bad[i], NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_reset(bad[i], NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_barrier(bad[i], NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_split(bad[i], 0, 0, NULL, &group, NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_dump_recorder(bad[i], &blob, NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_all_gather(bad[i], &view, &view, NULL, 0, NULL, NULL, NULL), TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_reduce_scatter(bad[i], &view, &view, TPFSDP_REDUCE_SUM, NULL, NULL, NULL),
             TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_all_reduce(bad[i], &view, &view, TPFSDP_REDUCE_SUM, NULL, NULL, NULL),
             TPFSDP_ERR_INVALID_HANDLE);
    CHECK_EQ(tpfsdp_group_broadcast(bad[i], &view, 0, NULL, NULL, NULL), TPFSDP_ERR_INVALID_HANDLE);
    tpfsdp_group_abort(bad[i], "nobody");
  }
  CHECK(group == NULL && blob == NULL);
}

int main(void) {
  const tpfsdp_rank_callback callback = {body, NULL, NULL};
  CHECK_OK(tpfsdp_context_run_ranks(3, NULL, &callback, &error));
  const tpfsdp_rank_callback aborting = {aborts, NULL, NULL};
  CHECK_FAILS(tpfsdp_context_run_ranks(3, NULL, &aborting, &error), TPFSDP_ERR_ABORTED, "returned status -403");
  test_bad_handles();
  return check_end();
}
