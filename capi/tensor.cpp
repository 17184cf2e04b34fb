// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.hpp"

#include "comm/context.hpp"
#include "device/kernels.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"
#include "tensor/dlpack.hpp"

#include <tpfsdp/tensor.h>

#include <array>
#include <utility>

namespace tpfsdp::capi {
namespace {

// The offsets of a plain tensor, which is its own whole.
constexpr std::array<int64_t, kMaxNdim> kNoOffsets{};

const int64_t *array_or_null(const Shape &shape) { return shape.empty() ? nullptr : shape.data(); }

void check_copy(const tpfsdp_view &source, const tpfsdp_view &target, const tpfsdp_stream *stream) {
  check_view(source, "source");
  check_view(target, "target");
  if (stream && stream->device_type != TPFSDP_DEVICE_CPU)
    fail(TPFSDP_ERR_UNSUPPORTED, "the stream is of device type ", stream->device_type,
         "; this build copies on the CPU only: pass NULL");
  for (const tpfsdp_view *view : {&source, &target}) {
    if (view->device_type != TPFSDP_DEVICE_CPU)
      fail(TPFSDP_ERR_UNSUPPORTED, view == &source ? "source" : "target", " is on device type ", view->device_type,
           "; this build copies between CPU tensors only");
  }
  if (shape_of(source) != shape_of(target))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "source has shape ", shape_text(shape_of(source)), ", but target ",
         shape_text(shape_of(target)), "; a copy needs equal ones");
  if (target.read_only) fail(TPFSDP_ERR_INVALID_ARGUMENT, "target is read-only; copy into memory that may be written");
}

// The host's owner record: dropped in every case, also when the call fails.
class OwnerDrop {
 public:
  explicit OwnerDrop(const tpfsdp_owner *owner) : owner_(owner ? *owner : tpfsdp_owner{}) {}
  OwnerDrop(const OwnerDrop &) = delete;
  OwnerDrop &operator=(const OwnerDrop &) = delete;
  ~OwnerDrop() {
    if (owner_.drop) owner_.drop(owner_.user);
  }
  tpfsdp_owner release() { return std::exchange(owner_, {}); }

 private:
  tpfsdp_owner owner_;
};

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

const char *tpfsdp_tensor_dtype_name(tpfsdp_dtype dtype) TPFSDP_NOEXCEPT { return dtype_name(dtype); }

int32_t tpfsdp_tensor_dtype_bits(tpfsdp_dtype dtype) TPFSDP_NOEXCEPT { return dtype_bits(dtype); }

tpfsdp_status tpfsdp_tensor_view_init(tpfsdp_view *out_view, void *data, tpfsdp_dtype dtype, const int64_t *shape,
                                      int32_t ndim, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    tpfsdp_view view{};
    view.size_bytes = dtype_bytes(dtype, element_count(checked_shape(shape, ndim, "the view")));
    view.data = view.size_bytes > 0 ? data : nullptr;
    view.shape = ndim > 0 ? shape : nullptr;
    view.ndim = ndim;
    view.dtype = dtype;
    view.device_type = TPFSDP_DEVICE_CPU;
    check_view(view, "the view");
    required(out_view, "out_view") = view;
  });
}

tpfsdp_status tpfsdp_tensor_create(tpfsdp_context *context, const int64_t *shape, int32_t ndim, tpfsdp_dtype dtype,
                                   tpfsdp_device_type device_type, int32_t device_id, tpfsdp_tensor **out_tensor,
                                   tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    hold<Context>(context, "context");
    tpfsdp_tensor *&out = required(out_tensor, "out_tensor");
    const tpfsdp_device_type device = device_type == TPFSDP_DEVICE_DEFAULT ? TPFSDP_DEVICE_CPU : device_type;
    if (device_id != 0)
      fail(TPFSDP_ERR_UNSUPPORTED, "device_id is ", device_id, " on device type ", device, ", which has only device 0");
    out = owned<tpfsdp_tensor>(Tensor::zeros(checked_shape(shape, ndim, "the tensor"), dtype, device).get());
  });
}

tpfsdp_status tpfsdp_tensor_create_borrowed(const tpfsdp_view *view, const tpfsdp_owner *owner,
                                            tpfsdp_tensor **out_tensor, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    OwnerDrop drop(owner);
    if (owner && !owner->drop) fail(TPFSDP_ERR_INVALID_ARGUMENT, "owner.drop is NULL; pass no owner instead");
    tpfsdp_tensor *&out = required(out_tensor, "out_tensor");
    const auto tensor = make<Tensor>(required(view, "view"), nullptr);
    tpfsdp_tensor *handle = owned<tpfsdp_tensor>(tensor.get());
    if (owner) tensor->take_over([record = drop.release()] { record.drop(record.user); });
    out = handle;
  });
}

tpfsdp_status tpfsdp_tensor_from_dlpack(struct DLManagedTensorVersioned *managed, tpfsdp_tensor **out_tensor,
                                        tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    tpfsdp_tensor *&out = required(out_tensor, "out_tensor");
    auto &record = reinterpret_cast<dlpack::Managed &>(required(managed, "managed"));
    out = owned<tpfsdp_tensor>(dlpack::import_managed(record).get());
  });
}

tpfsdp_status tpfsdp_tensor_to_dlpack(tpfsdp_tensor *tensor, struct DLManagedTensorVersioned **out_managed,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    auto *&out = required(out_managed, "out_managed");
    out = reinterpret_cast<DLManagedTensorVersioned *>(dlpack::export_managed(hold<Tensor>(tensor, "tensor")));
  });
}

tpfsdp_status tpfsdp_tensor_from_dlpack_legacy(struct DLManagedTensor *managed, tpfsdp_tensor **out_tensor,
                                               tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    tpfsdp_tensor *&out = required(out_tensor, "out_tensor");
    auto &record = reinterpret_cast<dlpack::LegacyManaged &>(required(managed, "managed"));
    out = owned<tpfsdp_tensor>(dlpack::import_legacy(record).get());
  });
}

tpfsdp_status tpfsdp_tensor_to_dlpack_legacy(tpfsdp_tensor *tensor, struct DLManagedTensor **out_managed,
                                             tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    auto *&out = required(out_managed, "out_managed");
    out = reinterpret_cast<DLManagedTensor *>(dlpack::export_legacy(hold<Tensor>(tensor, "tensor")));
  });
}

tpfsdp_status tpfsdp_tensor_get_view(const tpfsdp_tensor *tensor, tpfsdp_view *out_view,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Tensor>(tensor, "tensor");
    required(out_view, "out_view") = held->view();
  });
}

tpfsdp_status tpfsdp_tensor_get_shard_info(const tpfsdp_tensor *tensor, tpfsdp_shard_info *out_info,
                                           tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Tensor>(tensor, "tensor");
    tpfsdp_shard_info info{};
    info.ndim = held->view().ndim;
    info.local_shape = array_or_null(held->shape());
    info.global_shape = info.local_shape;
    info.offsets = info.ndim > 0 ? kNoOffsets.data() : nullptr;
    info.shard_dim = -1;
    info.flat_offset = -1;
    if (const auto &place = held->place()) {
      info.global_shape = array_or_null(place->global_shape);
      info.offsets = array_or_null(place->offsets);
      info.shard_dim = place->shard_dim;
      info.is_ragged = place->flat_offset >= 0;
      info.flat_offset = place->flat_offset;
      info.mesh = borrowed<tpfsdp_mesh>(place->mesh.get());
    }
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_tensor_copy(tpfsdp_context *context, const tpfsdp_view *source, const tpfsdp_view *target,
                                 const tpfsdp_stream *stream, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    hold<Context>(context, "context");
    check_copy(required(source, "source"), required(target, "target"), stream);
    cast(target->data, target->dtype, source->data, source->dtype, element_count(shape_of(*source)));
  });
}

}  // extern "C"
