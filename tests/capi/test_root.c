/* SPDX-License-Identifier: Apache-2.0
 * Roots from C: settling, memory, write windows, reported failures. */
#include "tree.h"

static void test_prepare_and_memory(void) {
  tree t;
  tpfsdp_memory_info info = TPFSDP_INIT(tpfsdp_memory_info);
  tree_make(&t);
  CHECK_FAILS(tpfsdp_root_prepare(t.root, &error), TPFSDP_ERR_STATE, "not sharded");
  tree_shard(&t);
  CHECK_FAILS(tpfsdp_root_prepare(t.a, &error), TPFSDP_ERR_STATE, "\"a\" is not, the root is \"<root>\"");
  CHECK_OK(tpfsdp_root_prepare(t.root, &error));
  CHECK_OK(tpfsdp_root_prepare(t.root, &error));
  CHECK_OK(tpfsdp_root_get_memory_info(t.root, &info, &error));
  CHECK_EQ(info.slot_count, 1);
  CHECK_EQ(info.grad_slot_count, 1);
  CHECK_EQ(info.spare_slot_count, 0);
  CHECK_EQ(info.shard_bytes, 72);
  CHECK_EQ(info.grad_shard_bytes, 72);
  CHECK_EQ(info.slot_bytes, 72);
  CHECK_EQ(info.grad_slot_bytes, 72);
  CHECK_EQ(info.total_bytes, 288);
  CHECK_EQ(info.planned_peak_bytes, 288);
  CHECK_EQ(info.peak_bytes, 288);
  CHECK_FAILS(tpfsdp_root_get_memory_info(t.root, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_info");
  CHECK_FAILS(tpfsdp_root_get_memory_info(t.a, &info, &error), TPFSDP_ERR_STATE, "is for the root");
  tree_free(&t);
}

static void test_windows(void) {
  tree t;
  tpfsdp_view shard;
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_root_prepare(t.root, &error));
  CHECK_FAILS(tpfsdp_shards_end_write(t.root, &error), TPFSDP_ERR_STATE, "begin_write first");
  CHECK_OK(tpfsdp_shards_begin_write(t.root, &error));
  CHECK_FAILS(tpfsdp_shards_begin_write(t.root, &error), TPFSDP_ERR_STATE, "end_write first");
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_SHARD, &shard, &error));
  ((float *)shard.data)[1] = -1.0f;
  CHECK_FAILS(tpfsdp_fsdp_module_unshard(t.a, NULL, &error), TPFSDP_ERR_STATE, "end_write first");
  CHECK_OK(tpfsdp_shards_end_write(t.root, &error));
  CHECK_OK(tpfsdp_fsdp_module_reset_iter_state(t.root, &error));
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, NULL, &error));
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_FULL, &shard, &error));
  CHECK(((const float *)shard.data)[1] == -1.0f);
  CHECK_FAILS(tpfsdp_shards_begin_write(t.a, &error), TPFSDP_ERR_STATE, "the root is \"<root>\"");
  tree_free(&t);
}

static void test_fail(void) {
  tree t;
  tree_make(&t);
  tree_shard(&t);
  CHECK_FAILS(tpfsdp_root_fail(t.root, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "why is NULL");
  CHECK_OK(tpfsdp_module_pre_forward(t.root, &error));
  CHECK_OK(tpfsdp_root_fail(t.root, "the tokenizer broke", &error));
  CHECK_FAILS(tpfsdp_module_pre_forward(t.a, &error), TPFSDP_ERR_STATE, "the tokenizer broke");
  CHECK_FAILS(tpfsdp_root_fail(t.root, "again", &error), TPFSDP_ERR_STATE, "reset_iter_state");
  CHECK_OK(tpfsdp_fsdp_module_reset_iter_state(t.root, &error));
  CHECK_OK(tpfsdp_module_pre_forward(t.root, &error));
  CHECK_OK(tpfsdp_module_post_forward(t.root, &error));
  tree_free(&t);
}

int main(void) {
  test_prepare_and_memory();
  test_windows();
  test_fail();
  return check_end();
}
