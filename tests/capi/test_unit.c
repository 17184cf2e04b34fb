/* SPDX-License-Identifier: Apache-2.0
 * Units from C: what they hold and cost, and pins. */
#include "tree.h"

static void test_info(void) {
  tree t;
  tpfsdp_unit *unit = NULL, *again = NULL;
  tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_fsdp_module_get_unit(t.a, 0, &unit, &error));
  CHECK_OK(tpfsdp_fsdp_module_get_unit(t.a, 0, &again, &error));
  CHECK(unit == again);
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_TEXT(info.name, "a");
  CHECK_EQ(info.param_count, 2);
  CHECK_EQ(info.sharded_state, TPFSDP_SHARDED_SHARDED);
  CHECK_EQ(info.training_state, TPFSDP_TRAINING_IDLE);
  CHECK_EQ(info.storage, TPFSDP_STORAGE_LIBRARY);
  CHECK_EQ(info.slot, -1); /* no plan yet */
  CHECK_EQ(info.shard_bytes, 64 + 8);
  CHECK_EQ(info.full_bytes, 64 + 8);
  CHECK_EQ(info.logical_bytes, 24 + 8);
  CHECK_EQ(info.grad_bytes, 64 + 8);
  CHECK_EQ(info.wire_bytes, 0);
  CHECK_EQ(info.unshards, 0);
  CHECK_EQ(info.version, 0);
  CHECK(info.module == t.a);
  CHECK(info.mesh != NULL);
  CHECK_OK(tpfsdp_module_pre_forward(t.root, &error));
  CHECK_OK(tpfsdp_module_pre_forward(t.a, &error));
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_EQ(info.sharded_state, TPFSDP_SHARDED_UNSHARDED);
  CHECK_EQ(info.training_state, TPFSDP_TRAINING_FORWARD);
  CHECK_EQ(info.slot, 0);
  CHECK_EQ(info.unshards, 1);
  CHECK_EQ(info.version, 1);
  CHECK_OK(tpfsdp_module_post_forward(t.a, &error));
  CHECK_OK(tpfsdp_module_post_forward(t.root, &error));
  CHECK_FAILS(tpfsdp_unit_get_info(unit, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_info");
  CHECK_FAILS(tpfsdp_unit_get_info(NULL, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "unit is NULL");
  tree_free(&t);
  CHECK_FAILS(tpfsdp_unit_get_info(unit, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "unit");
}

static void test_pins(void) {
  tree t;
  tpfsdp_unit *unit = NULL;
  tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_fsdp_module_get_unit(t.a, 0, &unit, &error));
  CHECK_FAILS(tpfsdp_unit_pin(unit, &error), TPFSDP_ERR_STATE, "not full");
  CHECK_FAILS(tpfsdp_unit_unpin(unit, &error), TPFSDP_ERR_STATE, "unit a is not pinned");
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, NULL, &error));
  CHECK_OK(tpfsdp_unit_pin(unit, &error));
  CHECK_OK(tpfsdp_fsdp_module_reshard(t.a, &error));
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_EQ(info.pin_count, 1);
  CHECK_EQ(info.deferred_reshards, 1);
  CHECK_EQ(info.sharded_state, TPFSDP_SHARDED_UNSHARDED);
  CHECK_OK(tpfsdp_unit_unpin(unit, &error));
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_EQ(info.pin_count, 0);
  CHECK_EQ(info.sharded_state, TPFSDP_SHARDED_SHARDED);
  CHECK_FAILS(tpfsdp_unit_unpin(NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "unit is NULL");
  tree_free(&t);
}

/* A unit's handle keeps its module, and with it the tree below, alive. */
static void test_a_handle_keeps_the_module(void) {
  tree t;
  tpfsdp_unit *unit = NULL;
  tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_fsdp_module_get_unit(t.a, 0, &unit, &error));
  CHECK(tpfsdp_handle_retain(unit) == unit);
  tree_free(&t);
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  CHECK_EQ(info.param_count, 2);
  CHECK(info.module == t.a);
  tpfsdp_handle_release(unit);
  CHECK_FAILS(tpfsdp_unit_get_info(unit, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "unit");
}

int main(void) {
  test_info();
  test_pins();
  test_a_handle_keeps_the_module();
  return check_end();
}
