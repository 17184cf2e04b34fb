// SPDX-License-Identifier: Apache-2.0
// The bridge to DLPack, 1.x and the form before it. The layout is declared here once more, privately, so that no header
// of another project can clash with the host's; a test holds it against a real dlpack.h.
#pragma once

#include "tensor/tensor.hpp"

#include <cstddef>

namespace tpfsdp::dlpack {

constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 2;  // strides are never NULL where ndim > 0
constexpr uint64_t kReadOnly = 1;
constexpr uint64_t kSubbytePadded = 4;

struct Version {
  uint32_t major;
  uint32_t minor;
};
struct Device {
  int32_t device_type;
  int32_t device_id;
};
struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DenseTensor {  // DLTensor
  void *data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
};
struct Managed {  // DLManagedTensorVersioned; everything up to flags is frozen over majors
  Version version;
  void *manager_ctx;
  void (*deleter)(Managed *self);
  uint64_t flags;
  DenseTensor dl_tensor;
};
struct LegacyManaged {  // DLManagedTensor
  DenseTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(LegacyManaged *self);
};

static_assert(sizeof(DataType) == 4 && sizeof(Device) == 8 && sizeof(DenseTensor) == 48);
static_assert(offsetof(DenseTensor, device) == 8 && offsetof(DenseTensor, ndim) == 16 &&
              offsetof(DenseTensor, dtype) == 20 && offsetof(DenseTensor, shape) == 24 &&
              offsetof(DenseTensor, strides) == 32 && offsetof(DenseTensor, byte_offset) == 40);
static_assert(offsetof(Managed, manager_ctx) == 8 && offsetof(Managed, deleter) == 16 &&
              offsetof(Managed, flags) == 24 && offsetof(Managed, dl_tensor) == 32 && sizeof(Managed) == 80);
static_assert(offsetof(LegacyManaged, manager_ctx) == 48 && offsetof(LegacyManaged, deleter) == 56 &&
              sizeof(LegacyManaged) == 64);

// Without a copy. When these throw, the caller still owns `managed` and its deleter has not run; else it runs once,
// after the last use of the tensor.
Ref<Tensor> import_managed(Managed &managed);
Ref<Tensor> import_legacy(LegacyManaged &managed);

// Without a copy: the result holds a reference to the tensor until its deleter is called, on any thread.
Managed *export_managed(const Ref<Tensor> &tensor);
LegacyManaged *export_legacy(const Ref<Tensor> &tensor);  // UNSUPPORTED for read-only memory, which it cannot mark

}  // namespace tpfsdp::dlpack
