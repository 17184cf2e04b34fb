/* SPDX-License-Identifier: Apache-2.0
 * Parameters from C: faces before and after sharding, gradients, callbacks and their drop. */
#include "tree.h"

static int dropped = 0, reduced = 0;

static void drop(void *user) { dropped += *(int *)user; }

static tpfsdp_status on_reduced(void *user, const tpfsdp_grad_reduced_args *args) {
  (void)user;
  CHECK_EQ(args->struct_size, sizeof(tpfsdp_grad_reduced_args));
  CHECK(args->param != NULL);
  ++reduced;
  return TPFSDP_OK;
}

static void test_faces(void) {
  tree t;
  tpfsdp_view view;
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  tpfsdp_shard_info place = TPFSDP_INIT(tpfsdp_shard_info);
  tree_make(&t);
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_FULL, &view, &error));
  CHECK(view.data == t.w_values); /* no copy before sharding */
  CHECK_EQ(view.size_bytes, 24);
  CHECK_OK(tpfsdp_param_get_shard_info(t.w, &place, &error));
  CHECK_EQ(place.shard_dim, -1);
  CHECK_EQ(place.local_shape[0], 3);
  CHECK(place.mesh == NULL);
  memset(&view, 7, sizeof view);
  CHECK_FAILS(tpfsdp_param_get_view(t.w, TPFSDP_FACE_SHARD, &view, &error), TPFSDP_ERR_STATE, "call fully_shard first");
  CHECK_FAILS(tpfsdp_param_get_view(t.w, TPFSDP_FACE_UNSPECIFIED, &view, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "face is 0");
  CHECK_FAILS(tpfsdp_param_get_view(t.w, 4, &view, &error), TPFSDP_ERR_INVALID_ARGUMENT, "face is 4");
  CHECK_EQ(view.ndim, 0x07070707); /* untouched */
  tree_shard(&t);
  CHECK_OK(tpfsdp_param_get_info(t.w, &info, &error));
  CHECK_TEXT(info.name, "a.w");
  CHECK_EQ(info.ndim, 2);
  CHECK_EQ(info.dtype, TPFSDP_DTYPE_F32);
  CHECK_EQ(info.compute_dtype, TPFSDP_DTYPE_F32);
  CHECK_EQ(info.reduce_dtype, TPFSDP_DTYPE_F32);
  CHECK_EQ(info.is_sharded, 1);
  CHECK_EQ(info.is_unsharded, 0);
  CHECK_EQ(info.has_grad, 0);
  CHECK_EQ(info.requires_grad, 1);
  CHECK_EQ(info.shard_dim, 0);
  CHECK_EQ(info.place_count, 1);
  CHECK(info.unit != NULL);
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_SHARD, &view, &error));
  CHECK(view.data != t.w_values); /* the host's memory is not needed any more */
  CHECK(((const float *)view.data)[5] == 5.0f);
  CHECK_OK(tpfsdp_param_get_shard_info(t.w, &place, &error));
  CHECK_EQ(place.shard_dim, 0);
  CHECK_EQ(place.flat_offset, -1);
  CHECK(place.mesh != NULL);
  tree_free(&t);
}

static void test_creation_is_checked(void) {
  int32_t integers[2] = {1, 2};
  const int64_t shape[1] = {2};
  tpfsdp_view view;
  tpfsdp_param *param = NULL;
  CHECK_OK(tpfsdp_tensor_view_init(&view, integers, TPFSDP_DTYPE_I32, shape, 1, &error));
  CHECK_FAILS(tpfsdp_param_create(&view, 1, &param, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "i32 cannot require gradients");
  CHECK_FAILS(tpfsdp_param_create(&view, 3, &param, &error), TPFSDP_ERR_INVALID_ARGUMENT, "requires_grad is 3");
  CHECK_FAILS(tpfsdp_param_create(NULL, 0, &param, &error), TPFSDP_ERR_INVALID_ARGUMENT, "values is NULL");
  CHECK_FAILS(tpfsdp_param_create_from_tensor(NULL, 0, &param, &error), TPFSDP_ERR_INVALID_HANDLE, "tensor is NULL");
  CHECK(param == NULL);
  CHECK_OK(tpfsdp_param_create(&view, 0, &param, &error));
  CHECK_FAILS(tpfsdp_param_set_requires_grad(param, 1, &error), TPFSDP_ERR_INVALID_ARGUMENT, "i32");
  CHECK_FAILS(tpfsdp_param_grad_ready(param, &error), TPFSDP_ERR_STATE, "call fully_shard first");
  CHECK_FAILS(tpfsdp_param_set_grad(param, &view, &error), TPFSDP_ERR_STATE, "call fully_shard first");
  tpfsdp_handle_release(param);
  CHECK_FAILS(tpfsdp_param_set_requires_grad(param, 0, &error), TPFSDP_ERR_INVALID_HANDLE, "param");
}

static void test_gradients(void) {
  tree t;
  tpfsdp_view grad, shard, view;
  float values[6] = {1, 2, 3, 4, 5, 6};
  double wide[2] = {0.5, 0.25};
  const int64_t shape[2] = {3, 2}, flat[1] = {2};
  tree_make(&t);
  tree_shard(&t);
  CHECK_OK(tpfsdp_tensor_view_init(&view, values, TPFSDP_DTYPE_F32, shape, 2, &error));
  CHECK_FAILS(tpfsdp_param_set_grad(t.w, &view, &error), TPFSDP_ERR_STATE, "tpfsdp_root_prepare first");
  CHECK_OK(tpfsdp_root_prepare(t.root, &error));
  CHECK_OK(tpfsdp_param_set_grad(t.w, &view, &error));
  values[5] = 0; /* it was copied */
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_GRAD, &grad, &error));
  CHECK(((const float *)grad.data)[5] == 6.0f);
  CHECK_OK(tpfsdp_param_set_grad(t.w, NULL, &error));
  CHECK_FAILS(tpfsdp_param_get_view(t.w, TPFSDP_FACE_GRAD, &grad, &error), TPFSDP_ERR_NOT_FOUND, "no gradient");
  CHECK_OK(tpfsdp_tensor_view_init(&view, wide, TPFSDP_DTYPE_F64, flat, 1, &error));
  CHECK_FAILS(tpfsdp_param_set_grad(t.w, &view, &error), TPFSDP_ERR_INVALID_ARGUMENT, "local shard (3, 2)");
  CHECK_OK(tpfsdp_param_set_grad(t.b, &view, &error)); /* cast */
  CHECK_OK(tpfsdp_param_get_view(t.b, TPFSDP_FACE_GRAD, &grad, &error));
  CHECK(((const float *)grad.data)[1] == 0.25f);
  CHECK_OK(tpfsdp_param_get_view(t.b, TPFSDP_FACE_SHARD, &shard, &error));
  CHECK_EQ(shard.dtype, grad.dtype);
  CHECK_FAILS(tpfsdp_param_get_grad_buffer(t.b, 2, &view, &error), TPFSDP_ERR_INVALID_ARGUMENT, "accumulate is 2");
  CHECK_FAILS(tpfsdp_param_get_grad_buffer(t.b, 0, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_view");
  CHECK_FAILS(tpfsdp_param_add_grad(t.b, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "grad is NULL");
  CHECK_OK(tpfsdp_param_set_requires_grad(t.b, 0, &error));
  CHECK_FAILS(tpfsdp_param_set_grad(t.b, &grad, &error), TPFSDP_ERR_STATE, "a.b is frozen");
  tree_free(&t);
}

static void test_callback_and_drop(void) {
  tree t;
  tpfsdp_grad_reduced_callback callback = {on_reduced, NULL, drop};
  int one = 1, ten = 10, hundred = 100;
  float values[2] = {1, 2};
  const int64_t flat[1] = {2};
  tpfsdp_view view;
  tree_make(&t);
  callback.user = &one;
  CHECK_FAILS(tpfsdp_param_set_grad_reduced_callback(t.b, &callback, &error), TPFSDP_ERR_STATE, "fully_shard");
  CHECK_EQ(dropped, 1); /* a registration that fails */
  tree_shard(&t);
  callback.user = &ten;
  CHECK_OK(tpfsdp_param_set_grad_reduced_callback(t.b, &callback, &error));
  callback.user = &hundred;
  CHECK_OK(tpfsdp_param_set_grad_reduced_callback(t.b, &callback, &error));
  CHECK_EQ(dropped, 11); /* the one before it */
  CHECK_OK(tpfsdp_module_pre_forward(t.root, &error));
  CHECK_OK(tpfsdp_module_pre_backward(t.a, &error));
  CHECK_OK(tpfsdp_tensor_view_init(&view, values, TPFSDP_DTYPE_F32, flat, 1, &error));
  CHECK_OK(tpfsdp_param_add_grad(t.b, &view, &error));
  CHECK_OK(tpfsdp_module_end_backward(t.root, &error));
  CHECK_EQ(reduced, 1);
  tree_free(&t);
  CHECK_EQ(dropped, 111);
  callback.call = NULL;
  callback.user = &one;
  CHECK_FAILS(tpfsdp_param_set_grad_reduced_callback(t.b, &callback, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "call is NULL");
  CHECK_EQ(dropped, 112);
}

static void test_tensors(void) {
  tree t;
  tpfsdp_tensor *tensor = NULL;
  tpfsdp_view view;
  tree_make(&t);
  tree_shard(&t);
  CHECK_FAILS(tpfsdp_param_to_tensor(t.w, TPFSDP_FACE_FULL, &tensor, &error), TPFSDP_ERR_STATE, "is sharded");
  CHECK_OK(tpfsdp_param_to_tensor(t.w, TPFSDP_FACE_SHARD, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &view, &error));
  ((float *)view.data)[0] = 42.0f; /* before the first gather the window is open */
  CHECK_OK(tpfsdp_param_set_tensor(t.w, tensor, &error));
  CHECK_FAILS(tpfsdp_param_set_tensor(t.b, tensor, &error), TPFSDP_ERR_INVALID_ARGUMENT, "the shard of a.b");
  CHECK_OK(tpfsdp_fsdp_module_unshard(t.a, NULL, &error));
  CHECK_OK(tpfsdp_param_get_view(t.w, TPFSDP_FACE_FULL, &view, &error));
  CHECK(((const float *)view.data)[0] == 42.0f);
  tpfsdp_handle_release(tensor);
  tree_free(&t);
}

int main(void) {
  test_faces();
  test_creation_is_checked();
  test_gradients();
  test_callback_and_drop();
  test_tensors();
  return check_end();
}
