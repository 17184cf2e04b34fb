// SPDX-License-Identifier: Apache-2.0
// Our private declaration of DLPack against the real one, of the version that tools/requirements.txt pins.
#include "tensor/dlpack.hpp"
#include "tensor/dtype.hpp"

#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace tpfsdp::dlpack {
namespace {

static_assert(DLPACK_MAJOR_VERSION == kMajor && DLPACK_MINOR_VERSION >= static_cast<int>(kMinor));
static_assert(DLPACK_FLAG_BITMASK_READ_ONLY == kReadOnly);
static_assert(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED == kSubbytePadded);

template <class Ours, class Theirs>
constexpr bool same_memory = sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);

static_assert(same_memory<Version, DLPackVersion> && offsetof(Version, minor) == offsetof(DLPackVersion, minor));
static_assert(same_memory<Device, DLDevice> && offsetof(Device, device_id) == offsetof(DLDevice, device_id));
static_assert(same_memory<DataType, DLDataType> && offsetof(DataType, bits) == offsetof(DLDataType, bits) &&
              offsetof(DataType, lanes) == offsetof(DLDataType, lanes));
static_assert(same_memory<DenseTensor, DLTensor> && offsetof(DenseTensor, device) == offsetof(DLTensor, device) &&
              offsetof(DenseTensor, ndim) == offsetof(DLTensor, ndim) &&
              offsetof(DenseTensor, dtype) == offsetof(DLTensor, dtype) &&
              offsetof(DenseTensor, shape) == offsetof(DLTensor, shape) &&
              offsetof(DenseTensor, strides) == offsetof(DLTensor, strides) &&
              offsetof(DenseTensor, byte_offset) == offsetof(DLTensor, byte_offset));
static_assert(same_memory<Managed, DLManagedTensorVersioned> &&
              offsetof(Managed, manager_ctx) == offsetof(DLManagedTensorVersioned, manager_ctx) &&
              offsetof(Managed, deleter) == offsetof(DLManagedTensorVersioned, deleter) &&
              offsetof(Managed, flags) == offsetof(DLManagedTensorVersioned, flags) &&
              offsetof(Managed, dl_tensor) == offsetof(DLManagedTensorVersioned, dl_tensor));
static_assert(same_memory<LegacyManaged, DLManagedTensor> &&
              offsetof(LegacyManaged, manager_ctx) == offsetof(DLManagedTensor, manager_ctx) &&
              offsetof(LegacyManaged, deleter) == offsetof(DLManagedTensor, deleter));

static_assert(TPFSDP_DEVICE_CPU == static_cast<int>(kDLCPU) && TPFSDP_DEVICE_CUDA == static_cast<int>(kDLCUDA) &&
              TPFSDP_DEVICE_CUDA_HOST == static_cast<int>(kDLCUDAHost) &&
              TPFSDP_DEVICE_ROCM == static_cast<int>(kDLROCM) &&
              TPFSDP_DEVICE_ROCM_HOST == static_cast<int>(kDLROCMHost) &&
              TPFSDP_DEVICE_CUDA_MANAGED == static_cast<int>(kDLCUDAManaged));

struct Numbered {
  tpfsdp_dtype dtype;
  DLDataTypeCode code;
  uint8_t bits;
};
constexpr Numbered kNumbered[] = {
    {TPFSDP_DTYPE_F32, kDLFloat, 32},
    {TPFSDP_DTYPE_F64, kDLFloat, 64},
    {TPFSDP_DTYPE_F16, kDLFloat, 16},
    {TPFSDP_DTYPE_BF16, kDLBfloat, 16},
    {TPFSDP_DTYPE_I8, kDLInt, 8},
    {TPFSDP_DTYPE_I16, kDLInt, 16},
    {TPFSDP_DTYPE_I32, kDLInt, 32},
    {TPFSDP_DTYPE_I64, kDLInt, 64},
    {TPFSDP_DTYPE_U8, kDLUInt, 8},
    {TPFSDP_DTYPE_U16, kDLUInt, 16},
    {TPFSDP_DTYPE_U32, kDLUInt, 32},
    {TPFSDP_DTYPE_U64, kDLUInt, 64},
    {TPFSDP_DTYPE_BOOL, kDLBool, 8},
    {TPFSDP_DTYPE_C64, kDLComplex, 64},
    {TPFSDP_DTYPE_C128, kDLComplex, 128},
    {TPFSDP_DTYPE_F8_E3M4, kDLFloat8_e3m4, 8},
    {TPFSDP_DTYPE_F8_E4M3, kDLFloat8_e4m3, 8},
    {TPFSDP_DTYPE_F8_E4M3B11FNUZ, kDLFloat8_e4m3b11fnuz, 8},
    {TPFSDP_DTYPE_F8_E4M3FN, kDLFloat8_e4m3fn, 8},
    {TPFSDP_DTYPE_F8_E4M3FNUZ, kDLFloat8_e4m3fnuz, 8},
    {TPFSDP_DTYPE_F8_E5M2, kDLFloat8_e5m2, 8},
    {TPFSDP_DTYPE_F8_E5M2FNUZ, kDLFloat8_e5m2fnuz, 8},
    {TPFSDP_DTYPE_F8_E8M0FNU, kDLFloat8_e8m0fnu, 8},
    {TPFSDP_DTYPE_F6_E2M3FN, kDLFloat6_e2m3fn, 6},
    {TPFSDP_DTYPE_F6_E3M2FN, kDLFloat6_e3m2fn, 6},
    {TPFSDP_DTYPE_F4_E2M1FN, kDLFloat4_e2m1fn, 4},
};

TEST(DlpackHeader, NumbersOfElementTypesAreTheirs) {
  for (const Numbered &row : kNumbered) {
    const DlpackCode code = dlpack_code(row.dtype);
    EXPECT_EQ(code.code, row.code) << dtype_name(row.dtype);
    EXPECT_EQ(code.bits, row.bits) << dtype_name(row.dtype);
    EXPECT_EQ(dtype_from_dlpack(static_cast<uint8_t>(row.code), row.bits), row.dtype);
  }
  EXPECT_EQ(std::size(kNumbered), static_cast<size_t>(TPFSDP_DTYPE_F4_E2M1FN)) << "every type of ours";
}

// What they fill in, we read; what we fill in, they read.
TEST(DlpackHeader, RecordsCrossBothWays) {
  float memory[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
  int deleted = 0;
  DLManagedTensorVersioned theirs{};
  theirs.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  theirs.manager_ctx = &deleted;
  theirs.deleter = [](DLManagedTensorVersioned *self) { ++*static_cast<int *>(self->manager_ctx); };
  theirs.dl_tensor = {memory, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  Ref<Tensor> tensor = import_managed(reinterpret_cast<Managed &>(theirs));
  EXPECT_EQ(tensor->view().data, memory);
  EXPECT_EQ(tensor->view().dtype, TPFSDP_DTYPE_F32);

  auto *ours = reinterpret_cast<DLManagedTensorVersioned *>(export_managed(tensor));
  tensor = nullptr;
  EXPECT_EQ(ours->version.major, static_cast<uint32_t>(DLPACK_MAJOR_VERSION));
  EXPECT_EQ(ours->dl_tensor.data, memory);
  EXPECT_EQ(ours->dl_tensor.device.device_type, kDLCPU);
  EXPECT_EQ(ours->dl_tensor.dtype.code, kDLFloat);
  EXPECT_EQ(ours->dl_tensor.dtype.bits, 32);
  EXPECT_EQ(ours->dl_tensor.shape[1], 3);
  EXPECT_EQ(ours->dl_tensor.strides[0], 3);
  EXPECT_EQ(deleted, 0);
  ours->deleter(ours);
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace tpfsdp::dlpack
