/* SPDX-License-Identifier: Apache-2.0
 * Modules from C: records, ownership, lists, and what is refused without touching the outputs. */
#include "tree.h"

static void test_info(void) {
  tree t;
  tpfsdp_module_info info = TPFSDP_INIT(tpfsdp_module_info);
  tpfsdp_module_options options = TPFSDP_INIT(tpfsdp_module_options);
  const char *bases[2] = {"Layer", "Base"};
  tpfsdp_module *linear = NULL;
  int host = 0;
  tree_make(&t);
  options.class_name = "Linear";
  options.base_names = bases;
  options.base_name_count = 2;
  options.extra_repr = "in=2, out=3";
  options.has_forward = TPFSDP_TOGGLE_OFF;
  options.user = &host;
  CHECK_OK(tpfsdp_module_create(t.context, &options, &linear, &error));
  CHECK_OK(tpfsdp_module_add_module(t.a, "fc", linear, &error));
  CHECK_OK(tpfsdp_module_get_info(linear, &info, &error));
  CHECK_TEXT(info.class_name, "Linear");
  CHECK_TEXT(info.name, "a.fc");
  CHECK(info.user == &host);
  CHECK(info.context == t.context);
  CHECK_EQ(info.has_forward, 0);
  CHECK_EQ(info.training, 1);
  CHECK_EQ(info.grad_enabled, 1);
  CHECK_EQ(info.is_fsdp, 0);
  CHECK(info.id > 0);
  CHECK_OK(tpfsdp_module_train(t.root, 0, &error));
  CHECK_OK(tpfsdp_module_set_grad_enabled(t.a, 0, &error));
  CHECK_OK(tpfsdp_module_get_info(linear, &info, &error));
  CHECK_EQ(info.training, 0);
  CHECK_EQ(info.grad_enabled, 0);
  CHECK_OK(tpfsdp_module_get_info(t.root, &info, &error));
  CHECK_TEXT(info.name, "");
  CHECK_TEXT(info.class_name, "Module");
  CHECK_EQ(info.grad_enabled, 1);
  tpfsdp_handle_release(linear);
  tree_free(&t);
}

static void test_options_are_checked(void) {
  tree t;
  tpfsdp_module_options options = TPFSDP_INIT(tpfsdp_module_options);
  const char *bases[1] = {NULL};
  tpfsdp_module *module = NULL;
  tree_make(&t);
  options.struct_size = 0;
  CHECK_FAILS(tpfsdp_module_create(t.context, &options, &module, &error), TPFSDP_ERR_ABI, "struct_size");
  options = TPFSDP_INIT(tpfsdp_module_options);
  options.has_forward = 2;
  CHECK_FAILS(tpfsdp_module_create(t.context, &options, &module, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "has_forward is 2");
  options = TPFSDP_INIT(tpfsdp_module_options);
  options.base_name_count = -1;
  CHECK_FAILS(tpfsdp_module_create(t.context, &options, &module, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "base_name_count");
  options.base_name_count = 1;
  CHECK_FAILS(tpfsdp_module_create(t.context, &options, &module, &error), TPFSDP_ERR_INVALID_ARGUMENT, "NULL");
  options.base_names = bases;
  CHECK_FAILS(tpfsdp_module_create(t.context, &options, &module, &error), TPFSDP_ERR_INVALID_ARGUMENT, "base_names");
  CHECK_FAILS(tpfsdp_module_create(NULL, NULL, &module, &error), TPFSDP_ERR_INVALID_HANDLE, "context is NULL");
  CHECK_FAILS(tpfsdp_module_create(t.context, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_module");
  CHECK(module == NULL);
  tree_free(&t);
}

static void test_look_ups_are_borrowed(void) {
  tree t;
  tpfsdp_module *module = NULL;
  tpfsdp_param *param = NULL;
  tpfsdp_tensor *buffer = NULL, *made = NULL;
  const int64_t shape[1] = {4};
  tree_make(&t);
  CHECK_OK(tpfsdp_module_get_submodule(t.root, "a", &module, &error));
  CHECK(module == t.a);
  CHECK_OK(tpfsdp_module_get_submodule(t.root, "", &module, &error));
  CHECK(module == t.root);
  CHECK_OK(tpfsdp_module_get_parameter(t.root, "a.w", &param, &error));
  CHECK(param == t.w);
  CHECK_OK(tpfsdp_tensor_create(t.context, shape, 1, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 0, &made, &error));
  CHECK_OK(tpfsdp_module_register_buffer(t.a, "mean", made, 1, &error));
  CHECK_OK(tpfsdp_module_get_buffer(t.root, "a.mean", &buffer, &error));
  CHECK(buffer == made);
  tpfsdp_handle_release(made);
  CHECK_OK(tpfsdp_module_get_buffer(t.root, "a.mean", &buffer, &error)); /* the module keeps it */
  CHECK_OK(tpfsdp_module_register_buffer(t.a, "mean", NULL, 1, &error));
  CHECK_FAILS(tpfsdp_module_get_buffer(t.root, "a.mean", &buffer, &error), TPFSDP_ERR_NOT_FOUND, "\"mean\"");
  module = NULL;
  CHECK_FAILS(tpfsdp_module_get_submodule(t.root, "a.x", &module, &error), TPFSDP_ERR_NOT_FOUND,
              "module \"a\" (Module) has no module \"x\"");
  CHECK_FAILS(tpfsdp_module_get_submodule(t.root, NULL, &module, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "target is NULL");
  CHECK(module == NULL);
  tree_free(&t);
}

static void test_lists(void) {
  tree t;
  tpfsdp_list *list = NULL;
  const char *name = NULL;
  tpfsdp_param *param = NULL;
  tpfsdp_module *module = NULL;
  int64_t count = -1;
  tree_make(&t);
  CHECK_OK(tpfsdp_module_register_parameter(t.root, "tied", t.w, &error));
  CHECK_OK(tpfsdp_module_list_parameters(t.root, 1, &list, &error));
  CHECK_OK(tpfsdp_list_get_count(list, &count, &error));
  CHECK_EQ(count, 2);
  CHECK_OK(tpfsdp_list_get_name(list, 0, &name, &error));
  CHECK_TEXT(name, "tied");
  CHECK_OK(tpfsdp_list_get_param(list, 1, &param, &error));
  CHECK(param == t.b);
  tpfsdp_handle_release(list);
  CHECK_OK(tpfsdp_module_list_modules(t.root, "net", 1, &list, &error));
  CHECK_OK(tpfsdp_list_get_name(list, 1, &name, &error));
  CHECK_TEXT(name, "net.a");
  CHECK_OK(tpfsdp_list_get_module(list, 1, &module, &error));
  CHECK(module == t.a);
  tpfsdp_handle_release(list);
  CHECK_OK(tpfsdp_module_list_children(t.root, &list, &error));
  CHECK_OK(tpfsdp_list_get_count(list, &count, &error));
  CHECK_EQ(count, 1);
  tpfsdp_handle_release(list);
  CHECK_OK(tpfsdp_module_list_buffers(t.root, 1, &list, &error));
  CHECK_OK(tpfsdp_list_get_count(list, &count, &error));
  CHECK_EQ(count, 0);
  tpfsdp_handle_release(list);
  CHECK_FAILS(tpfsdp_module_list_parameters(t.root, 2, &list, &error), TPFSDP_ERR_INVALID_ARGUMENT, "recurse is 2");
  CHECK_FAILS(tpfsdp_module_list_modules(t.root, NULL, 1, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_list");
  CHECK_FAILS(tpfsdp_module_describe(t.root, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_text");
  tree_free(&t);
}

static void test_describe(void) {
  tree t;
  tpfsdp_blob *text = NULL;
  const void *data = NULL;
  int64_t size = 0;
  static const char expected[] = "Module()\n  (a): Module() w: f32(3, 2) b: f32(2)\n";
  tree_make(&t);
  CHECK_OK(tpfsdp_module_describe(t.root, &text, &error));
  CHECK_OK(tpfsdp_blob_get(text, &data, &size, &error));
  CHECK_EQ(size, (long long)strlen(expected));
  CHECK(data && memcmp(data, expected, strlen(expected)) == 0);
  tpfsdp_handle_release(text);
  tree_free(&t);
}

static void test_wrong_handles(void) {
  tree t;
  tpfsdp_module_info info = TPFSDP_INIT(tpfsdp_module_info);
  tpfsdp_module *other = NULL;
  tree_make(&t);
  CHECK_FAILS(tpfsdp_module_get_info((tpfsdp_module *)(void *)t.w, &info, &error), TPFSDP_ERR_INVALID_HANDLE,
              "another kind");
  CHECK_FAILS(tpfsdp_module_add_module(t.root, "x", (tpfsdp_module *)(void *)t.context, &error),
              TPFSDP_ERR_INVALID_HANDLE, "child");
  CHECK_OK(tpfsdp_module_create(t.context, NULL, &other, &error));
  tpfsdp_handle_release(other);
  CHECK_FAILS(tpfsdp_module_pre_forward(other, &error), TPFSDP_ERR_INVALID_HANDLE, "module");
  CHECK_FAILS(tpfsdp_module_get_info(t.root, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_info");
  CHECK_FAILS(tpfsdp_module_add_module(t.root, NULL, t.a, &error), TPFSDP_ERR_INVALID_ARGUMENT, "name is NULL");
  CHECK_FAILS(tpfsdp_module_train(t.root, -1, &error), TPFSDP_ERR_INVALID_ARGUMENT, "mode is -1");
  CHECK_EQ(tpfsdp_module_train(t.root, -1, NULL), TPFSDP_ERR_INVALID_ARGUMENT); /* nobody asks for the error */
  tree_free(&t);
}

static void test_two_ranks_do_not_mix(void) {
  tree t, u;
  tree_make(&t);
  tree_make(&u);
  CHECK_FAILS(tpfsdp_module_add_module(t.root, "x", u.a, &error), TPFSDP_ERR_INVALID_ARGUMENT, "two ranks");
  CHECK_FAILS(tpfsdp_module_register_parameter(t.root, "x", u.w, &error), TPFSDP_ERR_INVALID_ARGUMENT, "two ranks");
  tree_free(&u);
  tree_free(&t);
}

static void test_a_step(void) {
  tree t;
  tpfsdp_view buffer, grad;
  int i;
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_module_pre_forward(t.root, &error));
  CHECK_OK(tpfsdp_module_pre_forward(t.a, &error));
  CHECK_OK(tpfsdp_module_post_forward(t.a, &error));
  CHECK_OK(tpfsdp_module_post_forward(t.root, &error));
  CHECK_EQ(tpfsdp_module_try_pre_backward(t.a, NULL), TPFSDP_OK);
  CHECK_OK(tpfsdp_param_get_grad_buffer(t.w, 0, &buffer, &error));
  for (i = 0; i < 6; ++i) ((float *)buffer.data)[i] = 2.0f;
  CHECK_OK(tpfsdp_param_grad_ready(t.w, &error));
  CHECK_OK(tpfsdp_module_post_backward(t.a, &error));
  CHECK_OK(tpfsdp_module_end_backward(t.root, &error));
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_GRAD, &grad, &error));
  CHECK(((const float *)grad.data)[5] == 2.0f);
  CHECK_OK(tpfsdp_module_zero_grad(t.root, 0, &error));
  CHECK(((const float *)grad.data)[5] == 0.0f);
  CHECK_OK(tpfsdp_module_zero_grad(t.root, 1, &error));
  CHECK_FAILS(tpfsdp_param_get_view(t.w, TPFSDP_FACE_GRAD, &grad, &error), TPFSDP_ERR_NOT_FOUND, "a.w has no gradient");
  tree_free(&t);
}

int main(void) {
  test_info();
  test_options_are_checked();
  test_look_ups_are_borrowed();
  test_lists();
  test_describe();
  test_wrong_handles();
  test_two_ranks_do_not_mix();
  test_a_step();
  return check_end();
}
