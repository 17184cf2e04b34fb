/* SPDX-License-Identifier: Apache-2.0
 * Meshes through the C ABI. */
#include "check.h"

static tpfsdp_status body(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_context_info context = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(args->context, &context, &error));
  const int32_t sizes[2] = {2, 2};
  const char *names[2] = {"dp", "tp"};
  tpfsdp_mesh *mesh = NULL;
  CHECK_OK(tpfsdp_mesh_create(context.group, sizes, 2, names, 2, &mesh, &error));

  tpfsdp_mesh_info info = TPFSDP_INIT(tpfsdp_mesh_info);
  CHECK_OK(tpfsdp_mesh_get_info(mesh, &info, &error));
  CHECK_EQ(info.ndim, 2);
  CHECK_EQ(info.rank_count, 4);
  CHECK_EQ(info.device_type, TPFSDP_DEVICE_CPU);
  CHECK_EQ(info.sizes[0], 2);
  CHECK_EQ(info.coordinates[0], args->rank / 2);
  CHECK_EQ(info.coordinates[1], args->rank % 2);
  CHECK_TEXT(info.names[1], "tp");

  tpfsdp_group *dp = NULL, *tp = NULL, *again = NULL;
  CHECK_OK(tpfsdp_mesh_get_group(mesh, 0, &dp, &error));
  CHECK_OK(tpfsdp_mesh_get_group(mesh, -1, &tp, &error));
  CHECK_OK(tpfsdp_mesh_get_group(mesh, 1, &again, &error));
  CHECK(tp == again && tp != dp); /* the one canonical handle */
  CHECK_FAILS(tpfsdp_mesh_get_group(mesh, 2, &again, &error), TPFSDP_ERR_INVALID_ARGUMENT, "dim is 2");
  CHECK_FAILS(tpfsdp_mesh_get_group(mesh, -3, &again, &error), TPFSDP_ERR_INVALID_ARGUMENT, "dim is -3");
  CHECK(tp == again);
  CHECK_OK(tpfsdp_group_barrier(dp, &error));

  tpfsdp_mesh *slice = NULL, *flat = NULL, *over = NULL;
  const char *wrong[1] = {"pp"};
  CHECK_FAILS(tpfsdp_mesh_slice(mesh, wrong, 1, &slice, &error), TPFSDP_ERR_NOT_FOUND, "it has \"dp\", \"tp\"");
  CHECK_FAILS(tpfsdp_mesh_slice(mesh, NULL, 1, &slice, &error), TPFSDP_ERR_INVALID_ARGUMENT, "name_count is 1");
  CHECK_OK(tpfsdp_mesh_slice(mesh, names + 1, 1, &slice, &error));
  CHECK_OK(tpfsdp_mesh_flatten(mesh, names, 2, "all", &flat, &error));
  CHECK_OK(tpfsdp_mesh_get_info(flat, &info, &error));
  CHECK_EQ(info.ndim, 1);
  CHECK_EQ(info.rank_count, 4);
  CHECK_EQ(info.coordinates[0], args->rank);
  CHECK_TEXT(info.names[0], "all");

  tpfsdp_group *const lines[2] = {dp, tp};
  CHECK_OK(tpfsdp_mesh_create_from_groups(lines, 2, NULL, 0, &over, &error));
  CHECK_OK(tpfsdp_mesh_get_info(over, &info, &error));
  CHECK(info.names == NULL);
  CHECK_EQ(info.coordinates[1], args->rank % 2);
  tpfsdp_group *const stale[1] = {NULL};
  CHECK_FAILS(tpfsdp_mesh_create_from_groups(stale, 1, NULL, 0, &over, &error), TPFSDP_ERR_INVALID_HANDLE, "NULL");
  CHECK_FAILS(tpfsdp_mesh_create_from_groups(NULL, 0, NULL, 0, &over, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "at least one group");

  /* A slice keeps its mesh, a mesh its groups. */
  tpfsdp_handle_release(mesh);
  CHECK_OK(tpfsdp_mesh_get_group(slice, 0, &again, &error));
  CHECK_OK(tpfsdp_group_barrier(again, &error));
  CHECK_OK(tpfsdp_group_barrier(context.group, &error)); /* nobody leaves a group that a peer still waits in */
  tpfsdp_handle_release(slice);
  tpfsdp_handle_release(flat);
  tpfsdp_handle_release(over);
  CHECK_FAILS(tpfsdp_mesh_get_info(over, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "mesh is not a living tpfsdp_mesh");
  return TPFSDP_OK;
}

static tpfsdp_status wrong_on_one(void *user, const tpfsdp_rank_args *args) {
  (void)user;
  tpfsdp_context_info context = TPFSDP_INIT(tpfsdp_context_info);
  CHECK_OK(tpfsdp_context_get_info(args->context, &context, &error));
  const int32_t sizes[1] = {2};
  const char *names[1] = {args->rank == 1 ? NULL : "dp"};
  tpfsdp_mesh *mesh = NULL;
  CHECK_FAILS(tpfsdp_mesh_create(context.group, sizes, 1, names, 1, &mesh, &error),
              args->rank == 1 ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_ERR_REMOTE, "names[0] is NULL");
  CHECK(mesh == NULL);
  return tpfsdp_group_reset(context.group, args->error);
}

int main(void) {
  const tpfsdp_rank_callback callback = {body, NULL, NULL};
  CHECK_OK(tpfsdp_context_run_ranks(4, NULL, &callback, &error));
  const tpfsdp_rank_callback wrong = {wrong_on_one, NULL, NULL};
  CHECK_OK(tpfsdp_context_run_ranks(2, NULL, &wrong, &error));
  return check_end();
}
