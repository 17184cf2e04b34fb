/* SPDX-License-Identifier: Apache-2.0
 * fully_shard and the methods it adds, from C: options, host memory and its drop, infos. */
#include "tree.h"

#include <stdlib.h>

static int dropped = 0, lent = 0;

static tpfsdp_status memory(void *user, const tpfsdp_memory_args *args) {
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  (void)user;
  CHECK_EQ(args->struct_size, sizeof(tpfsdp_memory_args));
  CHECK_OK(tpfsdp_param_get_info(args->param, &info, &error));
  CHECK_EQ(args->alignment_bytes, 64);
  CHECK(args->stream != NULL && args->stream->device_type == TPFSDP_DEVICE_CPU);
  if (args->op == TPFSDP_MEMORY_ACQUIRE) {
    *args->data = malloc((size_t)args->size_bytes);
    ++lent;
  } else {
    free(*args->data);
    --lent;
  }
  return TPFSDP_OK;
}

static void drop(void *user) {
  (void)user;
  ++dropped;
}

static void test_options(void) {
  tree t;
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  tpfsdp_module_info info = TPFSDP_INIT(tpfsdp_module_info);
  tpfsdp_module *none = NULL;
  tree_make(&t);
  options.struct_size = 0;
  CHECK_FAILS(tpfsdp_fully_shard(&t.a, 1, NULL, &options, &error), TPFSDP_ERR_ABI, "struct_size");
  CHECK_OK(tpfsdp_module_get_info(t.a, &info, &error));
  CHECK_EQ(info.is_fsdp, 0);
  CHECK_OK(tpfsdp_fully_shard(&t.a, 1, NULL, NULL, &error));
  CHECK_OK(tpfsdp_module_get_info(t.a, &info, &error));
  CHECK_EQ(info.is_fsdp, 1);
  options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  options.ignored_param_count = -1;
  CHECK_FAILS(tpfsdp_fully_shard(&t.root, 1, NULL, &options, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "ignored_param_count is -1");
  options.ignored_param_count = 1;
  CHECK_FAILS(tpfsdp_fully_shard(&t.root, 1, NULL, &options, &error), TPFSDP_ERR_INVALID_ARGUMENT, "array is NULL");
  CHECK_FAILS(tpfsdp_fully_shard(NULL, 1, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "module_count is 1");
  CHECK_FAILS(tpfsdp_fully_shard(&t.root, -1, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "module_count is -1");
  CHECK_FAILS(tpfsdp_fully_shard(&t.root, 0, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "at least one module");
  CHECK_FAILS(tpfsdp_fully_shard(&none, 1, NULL, NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "modules[i] is NULL");
  CHECK_FAILS(tpfsdp_fully_shard(&t.root, 1, (tpfsdp_mesh *)(void *)t.root, NULL, &error), TPFSDP_ERR_INVALID_HANDLE,
              "mesh");
  CHECK_OK(tpfsdp_fully_shard(&t.root, 1, NULL, NULL, &error));
  tree_free(&t);
}

static void test_host_memory(void) {
  tree t;
  tpfsdp_memory_callback callback = {memory, NULL, drop};
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  tpfsdp_unit *unit = NULL;
  tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
  tree_make(&t);
  options.host_memory = &callback;
  options.init = 17;
  CHECK_FAILS(tpfsdp_fully_shard(&t.a, 1, NULL, &options, &error), TPFSDP_ERR_INVALID_ARGUMENT, "init is 17");
  CHECK_EQ(dropped, 1); /* a call that fails gives the record back */
  options.init = TPFSDP_INIT_DEFAULT;
  CHECK_OK(tpfsdp_fully_shard(&t.a, 1, NULL, &options, &error));
  CHECK_OK(tpfsdp_fully_shard(&t.root, 1, NULL, NULL, &error));
  CHECK_OK(tpfsdp_fsdp_module_get_unit(t.a, 0, &unit, &error));
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_EQ(info.storage, TPFSDP_STORAGE_HOST);
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, NULL, &error));
  CHECK_EQ(lent, 2);
  CHECK_OK(tpfsdp_fsdp_module_reshard(t.a, &error));
  CHECK_EQ(lent, 0);
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, NULL, &error));
  tree_free(&t);
  CHECK_EQ(lent, 0);
  CHECK_EQ(dropped, 2);
}

static void test_methods(void) {
  tree t;
  tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
  tpfsdp_unit *unit = NULL;
  tpfsdp_work *work = NULL;
  tree_make(&t);
  CHECK_FAILS(tpfsdp_fsdp_module_get_info(t.a, &info, &error), TPFSDP_ERR_STATE, "module \"a\" is not sharded");
  CHECK_FAILS(tpfsdp_fsdp_module_unshard(t.a, NULL, &error), TPFSDP_ERR_STATE, "call fully_shard on it first");
  CHECK_FAILS(tpfsdp_fsdp_module_reshard(t.a, &error), TPFSDP_ERR_STATE, "not sharded");
  CHECK_FAILS(tpfsdp_fsdp_module_reset_iter_state(t.a, &error), TPFSDP_ERR_STATE, "not sharded");
  CHECK_FAILS(tpfsdp_fsdp_module_get_unit(t.a, 0, &unit, &error), TPFSDP_ERR_STATE, "not sharded");
  tree_shard(&t);
  CHECK_OK(tpfsdp_fsdp_module_get_info(t.a, &info, &error));
  CHECK_EQ(info.unit_count, 1);
  CHECK_EQ(info.is_root, -1);
  CHECK_EQ(info.module_count, 1);
  CHECK_EQ(info.training_state, TPFSDP_TRAINING_IDLE);
  CHECK_EQ(info.reshard_after_forward.kind, TPFSDP_RESHARD_AUTO);
  CHECK_OK(tpfsdp_fsdp_module_get_info(t.root, &info, &error));
  CHECK_EQ(info.unit_count, 0); /* all parameters are in a's */
  CHECK_FAILS(tpfsdp_fsdp_module_get_unit(t.root, 0, &unit, &error), TPFSDP_ERR_NOT_FOUND, "0 unit(s)");
  CHECK_FAILS(tpfsdp_fsdp_module_get_unit(t.a, 1, &unit, &error), TPFSDP_ERR_NOT_FOUND, "index 1");
  CHECK_FAILS(tpfsdp_fsdp_module_get_unit(t.a, -1, &unit, &error), TPFSDP_ERR_NOT_FOUND, "index -1");
  CHECK(unit == NULL);
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, &work, &error));
  CHECK(work != NULL);
  CHECK_OK(tpfsdp_work_wait(work, NULL, &error));
  CHECK_EQ(tpfsdp_work_test(work, NULL), TPFSDP_OK);
  tpfsdp_handle_release(work);
  CHECK_OK(tpfsdp_fsdp_module_get_info(t.root, &info, &error));
  CHECK_EQ(info.is_root, 1);
  CHECK_OK(tpfsdp_fsdp_module_reset_iter_state(t.root, &error));
  CHECK_FAILS(tpfsdp_fsdp_module_reset_iter_state(t.a, &error), TPFSDP_ERR_STATE, "the root is \"<root>\"");
  tree_free(&t);
}

int main(void) {
  test_options();
  test_host_memory();
  test_methods();
  return check_end();
}
