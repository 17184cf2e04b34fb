/* SPDX-License-Identifier: Apache-2.0
 * Scopes and segment mode from C. */
#include "tree.h"

static int is_full(tpfsdp_module *module) {
  tpfsdp_unit *unit = NULL;
  tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
  CHECK_OK(tpfsdp_fsdp_module_get_unit(module, 0, &unit, &error));
  CHECK_OK(tpfsdp_unit_get_info(unit, &info, &error));
  return info.sharded_state == TPFSDP_SHARDED_UNSHARDED;
}

static void test_open_and_close(void) {
  tree t;
  tpfsdp_scope *outer = NULL, *inner = NULL;
  tpfsdp_scope_options options = TPFSDP_INIT(tpfsdp_scope_options);
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_scope_open(&t.root, 1, NULL, &outer, &error));
  CHECK(is_full(t.a));
  CHECK_OK(tpfsdp_scope_open(&t.a, 1, NULL, &inner, &error));
  CHECK_OK(tpfsdp_scope_close(outer, &error));
  CHECK(is_full(t.a));
  CHECK_FAILS(tpfsdp_scope_close(outer, &error), TPFSDP_ERR_STATE, "closed already");
  tpfsdp_handle_release(outer);
  CHECK(is_full(t.a));
  tpfsdp_handle_release(inner);
  CHECK(!is_full(t.a));
  CHECK_FAILS(tpfsdp_scope_close(inner, &error), TPFSDP_ERR_INVALID_HANDLE, "scope");
  options.recurse = TPFSDP_TOGGLE_OFF;
  CHECK_OK(tpfsdp_scope_open(&t.root, 1, &options, &outer, &error));
  CHECK(!is_full(t.a)); /* the root itself has no parameters */
  tpfsdp_handle_release(outer);
  tree_free(&t);
}

static void test_arguments(void) {
  tree t;
  tpfsdp_scope *scope = NULL;
  tpfsdp_scope_options options = TPFSDP_INIT(tpfsdp_scope_options);
  tree_make(&t);
  CHECK_FAILS(tpfsdp_scope_open(&t.root, 1, NULL, &scope, &error), TPFSDP_ERR_STATE, "not sharded");
  tree_shard(&t);
  CHECK_FAILS(tpfsdp_scope_open(&t.root, 0, NULL, &scope, &error), TPFSDP_ERR_INVALID_ARGUMENT, "at least one module");
  CHECK_FAILS(tpfsdp_scope_open(NULL, 1, NULL, &scope, &error), TPFSDP_ERR_INVALID_ARGUMENT, "array is NULL");
  CHECK_FAILS(tpfsdp_scope_open(&t.root, 1, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_scope");
  options.recurse = 3;
  CHECK_FAILS(tpfsdp_scope_open(&t.root, 1, &options, &scope, &error), TPFSDP_ERR_INVALID_ARGUMENT, "recurse is 3");
  CHECK(scope == NULL);
  CHECK(!is_full(t.a));
  tree_free(&t);
}

static void test_segment(void) {
  tree t;
  tpfsdp_scope *scope = NULL;
  tpfsdp_view buffer, grad;
  int i;
  tree_make(&t);
  tree_shard(&t);
  CHECK_FAILS(tpfsdp_param_get_grad_buffer(t.w, 0, &buffer, &error), TPFSDP_ERR_STATE, "inside a scope");
  CHECK_OK(tpfsdp_scope_open(&t.a, 1, NULL, &scope, &error));
  CHECK_OK(tpfsdp_param_get_grad_buffer(t.w, 1, &buffer, &error));
  for (i = 0; i < 6; ++i) ((float *)buffer.data)[i] += (float)i;
  CHECK_OK(tpfsdp_param_grad_ready(t.w, &error));
  CHECK_OK(tpfsdp_grad_reduce(t.a, &error));
  CHECK_OK(tpfsdp_scope_close(scope, &error));
  tpfsdp_handle_release(scope);
  CHECK_OK(tpfsdp_module_end_backward(t.root, &error));
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_GRAD, &grad, &error));
  CHECK(((const float *)grad.data)[4] == 4.0f);
  CHECK_FAILS(tpfsdp_grad_reduce(NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "module is NULL");
  tree_free(&t);
}

/* A scope that is released holds its modules until then. */
static void test_a_scope_keeps_its_modules(void) {
  tree t;
  tpfsdp_scope *scope = NULL;
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_scope_open(&t.root, 1, NULL, &scope, &error));
  tree_free(&t);
  CHECK_OK(tpfsdp_scope_close(scope, &error));
  tpfsdp_handle_release(scope);
}

int main(void) {
  test_open_and_close();
  test_arguments();
  test_segment();
  test_a_scope_keeps_its_modules();
  return check_end();
}
