/* SPDX-License-Identifier: Apache-2.0
 * Tensors through the C ABI: views, ownership, DLPack, copies with casts. */
#include "check.h"

/* DLPack as its own header declares it. */
typedef struct {
  uint32_t major, minor;
} dl_version;
typedef struct {
  int32_t device_type, device_id;
} dl_device;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} dl_type;
typedef struct {
  void *data;
  dl_device device;
  int32_t ndim;
  dl_type dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
struct DLManagedTensorVersioned {
  dl_version version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  dl_tensor tensor;
};
struct DLManagedTensor {
  dl_tensor tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
};

static tpfsdp_context *context;
static const int64_t shape23[] = {2, 3};

static void count_drop(void *user) { ++*(int *)user; }

static void test_dtypes(void) {
  CHECK_TEXT(tpfsdp_tensor_dtype_name(TPFSDP_DTYPE_BF16), "bf16");
  CHECK_TEXT(tpfsdp_tensor_dtype_name(TPFSDP_DTYPE_DEFAULT), "unknown");
  CHECK_TEXT(tpfsdp_tensor_dtype_name(-7), "unknown");
  CHECK_EQ(tpfsdp_tensor_dtype_bits(TPFSDP_DTYPE_F4_E2M1FN), 4);
  CHECK_EQ(tpfsdp_tensor_dtype_bits(27), 0);
}

static void test_view_init(void) {
  float memory[6];
  const int64_t huge[] = {INT64_MAX / 2, 4}, negative[] = {-1}, b017[] = {2147483656}, empty[] = {0, 7};
  tpfsdp_view view, untouched;
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, shape23, 2, &error));
  CHECK(view.data == memory && view.shape == shape23 && view.strides == NULL);
  CHECK_EQ(view.size_bytes, 24);
  CHECK_EQ(view.ndim, 2);
  CHECK_EQ(view.dtype, TPFSDP_DTYPE_F32);
  CHECK_EQ(view.device_type, TPFSDP_DEVICE_CPU);
  CHECK_EQ(view.device_id, 0);
  CHECK_EQ(view.epoch, 0);
  CHECK_EQ(view.read_only, 0);
  CHECK_EQ(view.reserved, 0);
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, NULL, 0, &error));
  CHECK_EQ(view.size_bytes, 4);
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, b017, 1, &error));
  CHECK_EQ(view.size_bytes, 8589934624LL);
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, empty, 2, &error));
  CHECK(view.data == NULL);

  memset(&untouched, 0x5a, sizeof untouched);
  view = untouched;
  CHECK_FAILS(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, huge, 2, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "int64_t");
  CHECK_FAILS(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, negative, 1, &error),
              TPFSDP_ERR_INVALID_ARGUMENT, "(-1)");
  CHECK_FAILS(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, NULL, 2, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "shape is NULL");
  CHECK_FAILS(tpfsdp_tensor_view_init(&view, NULL, TPFSDP_DTYPE_F32, shape23, 2, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "NULL data");
  CHECK_FAILS(tpfsdp_tensor_view_init(&view, memory, 99, shape23, 2, &error), TPFSDP_ERR_INVALID_ARGUMENT, "dtype 99");
  CHECK_FAILS(tpfsdp_tensor_view_init(NULL, memory, TPFSDP_DTYPE_F32, shape23, 2, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "out_view");
  CHECK_EQ(memcmp(&view, &untouched, sizeof view), 0);
}

static void test_create(void) {
  tpfsdp_tensor *tensor = NULL;
  tpfsdp_view view;
  int i;
  CHECK_OK(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_DEFAULT, 0, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &view, &error));
  CHECK_EQ(view.size_bytes, 24);
  CHECK_EQ((uintptr_t)view.data % 64, 0);
  CHECK_EQ(view.shape[0], 2);
  CHECK_EQ(view.shape[1], 3);
  for (i = 0; i < 6; ++i) CHECK(((const float *)view.data)[i] == 0.0f);
  tpfsdp_handle_release(tensor);
  CHECK_FAILS(tpfsdp_tensor_get_view(tensor, &view, &error), TPFSDP_ERR_INVALID_HANDLE, "tpfsdp_tensor");

  CHECK_OK(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_BF16, TPFSDP_DEVICE_META, 0, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &view, &error));
  CHECK(view.data == NULL);
  CHECK_EQ(view.size_bytes, 12);
  tpfsdp_handle_release(tensor);

  tensor = NULL;
  CHECK_FAILS(tpfsdp_tensor_create(NULL, shape23, 2, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 0, &tensor, &error),
              TPFSDP_ERR_INVALID_HANDLE, "context is NULL");
  CHECK_FAILS(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CUDA, 0, &tensor, &error),
              TPFSDP_ERR_UNSUPPORTED, "device type 2");
  CHECK_FAILS(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 3, &tensor, &error),
              TPFSDP_ERR_UNSUPPORTED, "device_id is 3");
  CHECK_FAILS(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_DEFAULT, TPFSDP_DEVICE_CPU, 0, &tensor, &error),
              TPFSDP_ERR_INVALID_ARGUMENT, "dtype 0");
  CHECK(tensor == NULL);
}

static void test_borrowed(void) {
  float memory[6] = {1, 2, 3, 4, 5, 6};
  int drops = 0;
  tpfsdp_owner owner, bad_owner;
  tpfsdp_tensor *tensor = NULL;
  tpfsdp_view view, seen;
  const int64_t column_major[] = {1, 2};
  owner.user = &drops;
  owner.drop = count_drop;
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, shape23, 2, &error));
  CHECK_OK(tpfsdp_tensor_create_borrowed(&view, &owner, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &seen, &error));
  CHECK(seen.data == memory);
  CHECK_EQ(drops, 0);
  CHECK(tpfsdp_handle_retain(tensor) == tensor);
  tpfsdp_handle_release(tensor);
  CHECK_EQ(drops, 0);
  tpfsdp_handle_release(tensor);
  CHECK_EQ(drops, 1);

  CHECK_OK(tpfsdp_tensor_create_borrowed(&view, NULL, &tensor, &error));
  tpfsdp_handle_release(tensor);

  /* As for every record with a drop: it runs also when the call fails. */
  view.strides = column_major;
  tensor = NULL;
  CHECK_FAILS(tpfsdp_tensor_create_borrowed(&view, &owner, &tensor, &error), TPFSDP_ERR_UNSUPPORTED, "column-major");
  CHECK_EQ(drops, 2);
  CHECK_FAILS(tpfsdp_tensor_create_borrowed(NULL, &owner, &tensor, &error), TPFSDP_ERR_INVALID_ARGUMENT, "view");
  CHECK_EQ(drops, 3);
  view.strides = NULL;
  bad_owner.user = &drops;
  bad_owner.drop = NULL;
  CHECK_FAILS(tpfsdp_tensor_create_borrowed(&view, &bad_owner, &tensor, &error), TPFSDP_ERR_INVALID_ARGUMENT, "drop");
  CHECK(tensor == NULL);
}

static void delete_versioned(struct DLManagedTensorVersioned *self) { ++*(int *)self->manager_ctx; }
static void delete_legacy(struct DLManagedTensor *self) { ++*(int *)self->manager_ctx; }

static void fill_dl(dl_tensor *tensor, void *memory, int64_t *shape) {
  memset(tensor, 0, sizeof *tensor);
  tensor->data = memory;
  tensor->device.device_type = 1;
  tensor->ndim = 2;
  tensor->dtype.code = 2;
  tensor->dtype.bits = 32;
  tensor->dtype.lanes = 1;
  tensor->shape = shape;
}

static void test_dlpack_in(void) {
  float memory[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[] = {2, 3};
  int deleted = 0;
  tpfsdp_tensor *tensor = NULL;
  tpfsdp_view view;
  struct DLManagedTensorVersioned versioned;
  struct DLManagedTensor legacy;
  fill_dl(&versioned.tensor, memory, shape);
  versioned.version.major = 2;
  versioned.version.minor = 0;
  versioned.manager_ctx = &deleted;
  versioned.deleter = delete_versioned;
  versioned.flags = 1;
  CHECK_FAILS(tpfsdp_tensor_from_dlpack(&versioned, &tensor, &error), TPFSDP_ERR_ABI, "version 2.0");
  versioned.version.major = 1;
  versioned.tensor.device.device_type = 8;
  CHECK_FAILS(tpfsdp_tensor_from_dlpack(&versioned, &tensor, &error), TPFSDP_ERR_UNSUPPORTED, "Metal");
  versioned.tensor.device.device_type = 1;
  CHECK_FAILS(tpfsdp_tensor_from_dlpack(&versioned, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_tensor");
  CHECK_FAILS(tpfsdp_tensor_from_dlpack(NULL, &tensor, &error), TPFSDP_ERR_INVALID_ARGUMENT, "managed");
  CHECK_EQ(deleted, 0); /* on any error the caller still owns it */
  CHECK(tensor == NULL);
  CHECK_OK(tpfsdp_tensor_from_dlpack(&versioned, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &view, &error));
  CHECK(view.data == memory);
  CHECK_EQ(view.read_only, 1);
  tpfsdp_handle_release(tensor);
  CHECK_EQ(deleted, 1);

  fill_dl(&legacy.tensor, memory, shape);
  legacy.manager_ctx = &deleted;
  legacy.deleter = delete_legacy;
  legacy.tensor.byte_offset = 4;
  CHECK_OK(tpfsdp_tensor_from_dlpack_legacy(&legacy, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_view(tensor, &view, &error));
  CHECK(view.data == memory + 1);
  CHECK_EQ(view.read_only, 0);
  tpfsdp_handle_release(tensor);
  CHECK_EQ(deleted, 2);
}

static void test_dlpack_out(void) {
  float memory[6] = {0};
  int drops = 0;
  tpfsdp_owner owner;
  tpfsdp_view view;
  tpfsdp_tensor *tensor = NULL;
  struct DLManagedTensorVersioned *versioned = NULL;
  struct DLManagedTensor *legacy = NULL;
  owner.user = &drops;
  owner.drop = count_drop;
  CHECK_OK(tpfsdp_tensor_view_init(&view, memory, TPFSDP_DTYPE_F32, shape23, 2, &error));
  CHECK_OK(tpfsdp_tensor_create_borrowed(&view, &owner, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_to_dlpack(tensor, &versioned, &error));
  CHECK_OK(tpfsdp_tensor_to_dlpack_legacy(tensor, &legacy, &error));
  tpfsdp_handle_release(tensor);
  CHECK_EQ(drops, 0);
  CHECK_EQ(versioned->version.major, 1);
  CHECK_EQ(versioned->flags, 0);
  CHECK(versioned->tensor.data == memory && legacy->tensor.data == memory);
  CHECK_EQ(versioned->tensor.strides[0], 3);
  CHECK_EQ(legacy->tensor.strides[1], 1);
  CHECK_EQ(legacy->tensor.shape[1], 3);
  versioned->deleter(versioned);
  CHECK_EQ(drops, 0);
  legacy->deleter(legacy);
  CHECK_EQ(drops, 1);

  view.read_only = 1;
  CHECK_OK(tpfsdp_tensor_create_borrowed(&view, NULL, &tensor, &error));
  legacy = NULL;
  CHECK_FAILS(tpfsdp_tensor_to_dlpack_legacy(tensor, &legacy, &error), TPFSDP_ERR_UNSUPPORTED, "read-only");
  CHECK(legacy == NULL);
  CHECK_FAILS(tpfsdp_tensor_to_dlpack(tensor, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_managed");
  tpfsdp_handle_release(tensor);
  CHECK_FAILS(tpfsdp_tensor_to_dlpack(tensor, &versioned, &error), TPFSDP_ERR_INVALID_HANDLE, "tpfsdp_tensor");
}

static void test_shard_info(void) {
  tpfsdp_tensor *tensor = NULL;
  tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
  CHECK_OK(tpfsdp_tensor_create(context, shape23, 2, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 0, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_shard_info(tensor, &info, &error));
  CHECK_EQ(info.ndim, 2);
  CHECK_EQ(info.global_shape[1], 3);
  CHECK_EQ(info.local_shape[0], 2);
  CHECK_EQ(info.offsets[0], 0);
  CHECK_EQ(info.offsets[1], 0);
  CHECK_EQ(info.shard_dim, -1);
  CHECK_EQ(info.is_ragged, 0);
  CHECK_EQ(info.flat_offset, -1);
  CHECK(info.mesh == NULL);
  tpfsdp_handle_release(tensor);
  CHECK_OK(tpfsdp_tensor_create(context, NULL, 0, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU, 0, &tensor, &error));
  CHECK_OK(tpfsdp_tensor_get_shard_info(tensor, &info, &error));
  CHECK_EQ(info.ndim, 0);
  CHECK(info.global_shape == NULL && info.local_shape == NULL && info.offsets == NULL);
  CHECK_FAILS(tpfsdp_tensor_get_shard_info(tensor, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "out_info");
  tpfsdp_handle_release(tensor);
}

static void test_copy(void) {
  const float values[3] = {1.0f, 1.005859375f,
                           -65520.0f}; /* the second is three quarters of the way to the next bf16 */
  const int64_t shape[] = {3}, other[] = {2};
  uint16_t bf16[3] = {9, 9, 9}, f16[3];
  int32_t integers[3];
  tpfsdp_view from, to;
  tpfsdp_stream stream;
  CHECK_OK(tpfsdp_tensor_view_init(&from, (void *)values, TPFSDP_DTYPE_F32, shape, 1, &error));
  CHECK_OK(tpfsdp_tensor_view_init(&to, bf16, TPFSDP_DTYPE_BF16, shape, 1, &error));
  from.read_only = 1;
  CHECK_OK(tpfsdp_tensor_copy(context, &from, &to, NULL, &error));
  CHECK_EQ(bf16[0], 0x3f80);
  CHECK_EQ(bf16[1], 0x3f81);
  CHECK_EQ(bf16[2], 0xc780);
  memset(&stream, 0, sizeof stream);
  stream.device_type = TPFSDP_DEVICE_CPU;
  CHECK_OK(tpfsdp_tensor_view_init(&to, f16, TPFSDP_DTYPE_F16, shape, 1, &error));
  CHECK_OK(tpfsdp_tensor_copy(context, &from, &to, &stream, &error));
  CHECK_EQ(f16[1], 0x3c06);
  CHECK_EQ(f16[2], 0xfc00);
  CHECK_OK(tpfsdp_tensor_view_init(&to, integers, TPFSDP_DTYPE_I32, shape, 1, &error));
  CHECK_OK(tpfsdp_tensor_copy(context, &from, &to, NULL, &error));
  CHECK_EQ(integers[1], 1);
  CHECK_EQ(integers[2], -65520);

  stream.device_type = TPFSDP_DEVICE_CUDA;
  CHECK_FAILS(tpfsdp_tensor_copy(context, &from, &to, &stream, &error), TPFSDP_ERR_UNSUPPORTED, "stream");
  to.read_only = 1;
  CHECK_FAILS(tpfsdp_tensor_copy(context, &from, &to, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "read-only");
  CHECK_OK(tpfsdp_tensor_view_init(&to, integers, TPFSDP_DTYPE_I32, other, 1, &error));
  CHECK_FAILS(tpfsdp_tensor_copy(context, &from, &to, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "(3), but target (2)");
  CHECK_OK(tpfsdp_tensor_view_init(&to, integers, TPFSDP_DTYPE_F8_E4M3FN, shape, 1, &error));
  CHECK_FAILS(tpfsdp_tensor_copy(context, &from, &to, NULL, &error), TPFSDP_ERR_UNSUPPORTED, "from f32 to f8_e4m3fn");
  CHECK_FAILS(tpfsdp_tensor_copy(NULL, &from, &to, NULL, &error), TPFSDP_ERR_INVALID_HANDLE, "context");
  CHECK_FAILS(tpfsdp_tensor_copy(context, NULL, &to, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "source");
}

int main(void) {
  CHECK_OK(tpfsdp_context_create(NULL, &context, &error));
  test_dtypes();
  test_view_init();
  test_create();
  test_borrowed();
  test_dlpack_in();
  test_dlpack_out();
  test_shard_info();
  test_copy();
  tpfsdp_handle_release(context);
  return check_end();
}
