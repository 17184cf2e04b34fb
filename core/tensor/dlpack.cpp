// SPDX-License-Identifier: Apache-2.0
#include "tensor/dlpack.hpp"

#include "base/error.hpp"
#include "base/handle_table.hpp"

#include <memory>

namespace tpfsdp::dlpack {
namespace {

static_assert(TPFSDP_DEVICE_CPU == 1 && TPFSDP_DEVICE_CUDA == 2 && TPFSDP_DEVICE_CUDA_HOST == 3 &&
              TPFSDP_DEVICE_ROCM == 10 && TPFSDP_DEVICE_ROCM_HOST == 11 && TPFSDP_DEVICE_CUDA_MANAGED == 13);

const char *device_name(int32_t device_type) {
  switch (device_type) {
    case 4: return "OpenCL";
    case 7: return "Vulkan";
    case 8: return "Metal";
    case 9: return "VPI";
    case 12: return "an extension device";
    case 14: return "oneAPI";
    case 15: return "WebGPU";
    case 16: return "Hexagon";
    case 17: return "MAIA";
    case 18: return "Trainium";
    default: return "unknown";
  }
}

tpfsdp_view view_of(const DenseTensor &tensor, uint64_t flags) {
  if (!is_known_device(tensor.device.device_type) || tensor.device.device_type == TPFSDP_DEVICE_META)
    fail(TPFSDP_ERR_UNSUPPORTED, "the DLPack tensor is on device type ", tensor.device.device_type, " (",
         device_name(tensor.device.device_type), "); CPU, CUDA and ROCm memory can be used");
  const DataType type = tensor.dtype;
  const tpfsdp_dtype dtype = dtype_from_dlpack(type.code, type.bits);
  if (dtype == TPFSDP_DTYPE_UNKNOWN || type.lanes != 1)
    fail(TPFSDP_ERR_UNSUPPORTED, "the DLPack tensor has elements of type code ", type.code + 0, ", ", type.bits + 0,
         " bits, ", type.lanes, " lanes, which is no dtype of this library");
  if (dtype_bits(dtype) < 8 && (flags & kSubbytePadded) != 0)
    fail(TPFSDP_ERR_UNSUPPORTED, "the DLPack tensor pads each element of ", dtype_name(dtype),
         " to a byte; only packed ones can be used");
  tpfsdp_view view{};
  view.shape = tensor.shape;
  view.strides = tensor.strides;
  view.ndim = tensor.ndim;
  view.dtype = dtype;
  view.device_type = tensor.device.device_type;
  view.device_id = tensor.device.device_id;
  view.read_only = (flags & kReadOnly) != 0 ? 1 : 0;
  view.size_bytes = dtype_bytes(dtype, element_count(checked_shape(tensor.shape, tensor.ndim, "the DLPack tensor")));
  if (view.size_bytes > 0 && tensor.data) view.data = static_cast<char *>(tensor.data) + tensor.byte_offset;
  check_view(view, "the DLPack tensor");
  return view;
}

template <class Form>
Ref<Tensor> import_form(Form &managed, uint64_t flags) {
  Ref<Tensor> tensor = make<Tensor>(view_of(managed.dl_tensor, flags), nullptr);
  // The handle too: it is the last thing that can fail, and then the caller still owns the record.
  HandleTable::expose(tensor.get(), false);
  tensor->take_over([&managed] {
    if (managed.deleter) managed.deleter(&managed);
  });
  return tensor;
}

// What an export owns: the tensor, and the arrays that the record points to.
template <class Form>
struct Export {
  Form managed{};
  Ref<Tensor> tensor;
  Shape shape;
  Shape strides;

  explicit Export(const Ref<Tensor> &source) : tensor(source), shape(source->shape()), strides(dense_strides(shape)) {
    const tpfsdp_view &view = tensor->view();
    if (view.device_type == TPFSDP_DEVICE_META)
      fail(TPFSDP_ERR_UNSUPPORTED, "a tensor on META has no memory that DLPack could hand over");
    const DlpackCode code = dlpack_code(view.dtype);
    DenseTensor &out = managed.dl_tensor;
    out.data = view.data;
    out.device = {view.device_type, view.device_id};
    out.ndim = view.ndim;
    out.dtype = {code.code, code.bits, 1};
    out.shape = shape.data();
    out.strides = strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](Form *self) { delete static_cast<Export *>(self->manager_ctx); };
  }
};

}  // namespace

Ref<Tensor> import_managed(Managed &managed) {
  if (managed.version.major != kMajor)
    fail(TPFSDP_ERR_ABI, "the DLPack tensor is of version ", managed.version.major, ".", managed.version.minor,
         "; this library reads ", kMajor, ".x: ask its maker for max_version (", kMajor, ", ", kMinor, ")");
  return import_form(managed, managed.flags);
}

Ref<Tensor> import_legacy(LegacyManaged &managed) { return import_form(managed, 0); }

Managed *export_managed(const Ref<Tensor> &tensor) {
  auto made = std::make_unique<Export<Managed>>(tensor);
  made->managed.version = {kMajor, kMinor};
  made->managed.flags = tensor->view().read_only ? kReadOnly : 0;
  return &made.release()->managed;
}

LegacyManaged *export_legacy(const Ref<Tensor> &tensor) {
  if (tensor->view().read_only)
    fail(TPFSDP_ERR_UNSUPPORTED, "the tensor is read-only, which DLPack before 1.0 cannot say: export it as 1.x");
  auto made = std::make_unique<Export<LegacyManaged>>(tensor);
  return &made.release()->managed;
}

}  // namespace tpfsdp::dlpack
