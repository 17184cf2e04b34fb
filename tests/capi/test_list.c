/* SPDX-License-Identifier: Apache-2.0
 * Lists and blobs, as modules make them: snapshots that can be walked, and bytes. */
#include "check.h"

static tpfsdp_context *context;

static tpfsdp_module *make_module(const char *class_name) {
  tpfsdp_module *module = NULL;
  tpfsdp_module_options options = TPFSDP_INIT(tpfsdp_module_options);
  options.class_name = class_name;
  CHECK_OK(tpfsdp_module_create(context, &options, &module, &error));
  return module;
}

/* A module "net" with children "a" and "b", and one parameter "w" and one buffer "mean" of its own. */
static tpfsdp_module *make_net(float *values) {
  static const int64_t shape[] = {2};
  tpfsdp_module *net = make_module("Net"), *a = make_module("Linear"), *b = make_module("Linear");
  tpfsdp_param *param = NULL;
  tpfsdp_tensor *buffer = NULL;
  tpfsdp_view view;
  CHECK_OK(tpfsdp_tensor_view_init(&view, values, TPFSDP_DTYPE_F32, shape, 1, &error));
  CHECK_OK(tpfsdp_param_create(&view, 1, &param, &error));
  CHECK_OK(tpfsdp_tensor_create(context, shape, 1, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 0, &buffer, &error));
  CHECK_OK(tpfsdp_module_add_module(net, "a", a, &error));
  CHECK_OK(tpfsdp_module_add_module(net, "b", b, &error));
  CHECK_OK(tpfsdp_module_register_parameter(net, "w", param, &error));
  CHECK_OK(tpfsdp_module_register_buffer(net, "mean", buffer, 1, &error));
  tpfsdp_handle_release(a);
  tpfsdp_handle_release(b);
  tpfsdp_handle_release(param);
  tpfsdp_handle_release(buffer);
  return net;
}

static void test_modules(tpfsdp_module *net) {
  tpfsdp_list *list = NULL;
  tpfsdp_module *module = NULL, *again = NULL, *untouched = net;
  const char *name = NULL;
  int64_t count = -1;
  CHECK_OK(tpfsdp_module_list_children(net, &list, &error));
  CHECK_OK(tpfsdp_list_get_count(list, &count, &error));
  CHECK_EQ(count, 2);
  CHECK_OK(tpfsdp_list_get_name(list, 1, &name, &error));
  CHECK_TEXT(name, "b");
  CHECK_OK(tpfsdp_list_get_module(list, 1, &module, &error));
  CHECK_OK(tpfsdp_module_get_submodule(net, "b", &again, &error));
  CHECK(module != NULL && module == again); /* the one canonical handle */

  CHECK_FAILS(tpfsdp_list_get_module(list, 2, &untouched, &error), TPFSDP_ERR_INVALID_ARGUMENT, "index is 2");
  CHECK_FAILS(tpfsdp_list_get_module(list, -1, &untouched, &error), TPFSDP_ERR_INVALID_ARGUMENT, "has 2 entries");
  CHECK_FAILS(tpfsdp_list_get_module(list, 0, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "NULL");
  CHECK_FAILS(tpfsdp_list_get_name(list, 2, &name, &error), TPFSDP_ERR_INVALID_ARGUMENT, "index is 2");
  CHECK_TEXT(name, "b");
  CHECK(untouched == net);
  tpfsdp_handle_release(list);
  CHECK_FAILS(tpfsdp_list_get_count(list, &count, &error), TPFSDP_ERR_INVALID_HANDLE, "tpfsdp_list");
  CHECK_EQ(count, 2);
}

static void test_other_things(tpfsdp_module *net) {
  tpfsdp_list *list = NULL;
  tpfsdp_module *module = NULL;
  tpfsdp_param *param = NULL;
  tpfsdp_tensor *tensor = NULL;
  CHECK_OK(tpfsdp_module_list_parameters(net, 1, &list, &error));
  CHECK_OK(tpfsdp_list_get_param(list, 0, &param, &error));
  CHECK(param != NULL);
  CHECK_FAILS(tpfsdp_list_get_module(list, 0, &module, &error), TPFSDP_ERR_NOT_FOUND,
              "(\"w\") of the list holds no module");
  CHECK_FAILS(tpfsdp_list_get_tensor(list, 0, &tensor, &error), TPFSDP_ERR_NOT_FOUND, "holds no tensor");
  CHECK(module == NULL && tensor == NULL);
  tpfsdp_handle_release(list);

  list = NULL;
  CHECK_OK(tpfsdp_module_list_buffers(net, 1, &list, &error));
  CHECK_OK(tpfsdp_list_get_tensor(list, 0, &tensor, &error));
  CHECK(tensor != NULL);
  CHECK_FAILS(tpfsdp_list_get_param(list, 0, &param, &error), TPFSDP_ERR_NOT_FOUND, "holds no parameter");
  tpfsdp_handle_release(list);
}

/* The list keeps its entries alive. */
static void test_snapshot(float *values) {
  tpfsdp_module *net = make_net(values), *child = NULL;
  tpfsdp_module_info info = TPFSDP_INIT(tpfsdp_module_info);
  tpfsdp_list *list = NULL;
  CHECK_OK(tpfsdp_module_list_children(net, &list, &error));
  tpfsdp_handle_release(net);
  CHECK_OK(tpfsdp_list_get_module(list, 0, &child, &error));
  CHECK_OK(tpfsdp_module_get_info(child, &info, &error));
  CHECK_TEXT(info.class_name, "Linear");
  tpfsdp_handle_release(list);
  CHECK_FAILS(tpfsdp_module_get_info(child, &info, &error), TPFSDP_ERR_INVALID_HANDLE, "tpfsdp_module");
}

static void test_blob(tpfsdp_module *net) {
  tpfsdp_blob *blob = NULL;
  const void *data = NULL;
  int64_t size_bytes = -1;
  CHECK_OK(tpfsdp_module_describe(net, &blob, &error));
  CHECK_OK(tpfsdp_blob_get(blob, &data, &size_bytes, &error));
  CHECK(size_bytes > 0);
  CHECK_EQ(strlen((const char *)data), size_bytes);
  CHECK_CONTAINS((const char *)data, "Net");
  CHECK_FAILS(tpfsdp_blob_get(blob, NULL, &size_bytes, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_data");
  CHECK_FAILS(tpfsdp_blob_get(blob, &data, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_size_bytes");
  CHECK_FAILS(tpfsdp_blob_get((const tpfsdp_blob *)net, &data, &size_bytes, &error), TPFSDP_ERR_INVALID_HANDLE,
              "tpfsdp_blob");
  tpfsdp_handle_release(blob);
}

int main(void) {
  float values[2] = {1, 2};
  tpfsdp_module *net;
  CHECK_OK(tpfsdp_context_create(NULL, &context, &error));
  net = make_net(values);
  test_modules(net);
  test_other_things(net);
  test_snapshot(values);
  test_blob(net);
  tpfsdp_handle_release(net);
  tpfsdp_handle_release(context);
  return check_end();
}
