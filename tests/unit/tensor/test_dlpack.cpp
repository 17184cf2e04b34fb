// SPDX-License-Identifier: Apache-2.0
// DLPack in and out: who owns when, and what is refused.
#include "tensor/dlpack.hpp"

#include "base/error.hpp"
#include "base/handle_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace tpfsdp::dlpack {
namespace {

using testing::HasSubstr;

// A record as another framework would make it, which counts its deletions.
template <class Form>
struct Foreign {
  float memory[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  int deleted = 0;
  Form managed{};

  Foreign() {
    if constexpr (std::is_same_v<Form, Managed>) managed.version = {1, 0};
    managed.manager_ctx = this;
    managed.deleter = [](Form *self) { ++static_cast<Foreign *>(self->manager_ctx)->deleted; };
    managed.dl_tensor.data = memory;
    managed.dl_tensor.device = {1, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {2, 32, 1};
    managed.dl_tensor.shape = shape;
  }
  Foreign(const Foreign &) = delete;
  Foreign &operator=(const Foreign &) = delete;

  Ref<Tensor> import() {
    if constexpr (std::is_same_v<Form, Managed>)
      return import_managed(managed);
    else
      return import_legacy(managed);
  }
  void expect_refusal(Status status, const char *text) {
    const int64_t living = HandleTable::live_count();
    try {
      import();
      ADD_FAILURE() << "was not refused: " << text;
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), status);
      EXPECT_THAT(failure.what(), HasSubstr(text));
    }
    EXPECT_EQ(deleted, 0) << "the caller still owns it";
    EXPECT_EQ(HandleTable::live_count(), living);
  }
};

template <class Form>
class Import : public testing::Test {};
using Forms = testing::Types<Managed, LegacyManaged>;
TYPED_TEST_SUITE(Import, Forms);

TYPED_TEST(Import, ConsumesAndDeletesOnceAfterTheLastUse) {
  Foreign<TypeParam> foreign;
  Ref<Tensor> tensor = foreign.import();
  EXPECT_EQ(tensor->view().data, foreign.memory);
  EXPECT_EQ(tensor->view().size_bytes, 24);
  EXPECT_EQ(tensor->dtype(), TPFSDP_DTYPE_F32);
  EXPECT_EQ(tensor->shape(), (Shape{2, 3}));
  EXPECT_EQ(tensor->view().read_only, 0);
  Ref<Tensor> second = tensor;
  tensor = nullptr;
  EXPECT_EQ(foreign.deleted, 0);
  std::thread([&] { second = nullptr; }).join();
  EXPECT_EQ(foreign.deleted, 1);
}

TYPED_TEST(Import, ANullDeleterIsAccepted) {
  Foreign<TypeParam> foreign;
  foreign.managed.deleter = nullptr;
  EXPECT_EQ(foreign.import()->view().data, foreign.memory);
}

TYPED_TEST(Import, TheByteOffsetCounts) {
  Foreign<TypeParam> foreign;
  foreign.managed.dl_tensor.byte_offset = 8;
  EXPECT_EQ(foreign.import()->view().data, foreign.memory + 2);
}

TYPED_TEST(Import, ScalarsAndEmptyTensors) {
  Foreign<TypeParam> scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = nullptr;
  EXPECT_EQ(scalar.import()->view().size_bytes, 4);
  Foreign<TypeParam> empty;
  empty.shape[0] = 0;
  empty.managed.dl_tensor.data = nullptr;
  empty.managed.dl_tensor.byte_offset = 64;
  EXPECT_EQ(empty.import()->view().data, nullptr);
  EXPECT_EQ(empty.deleted, 1);
  Foreign<TypeParam> pointing;
  pointing.shape[1] = 0;
  EXPECT_EQ(pointing.import()->view().data, nullptr);
}

TYPED_TEST(Import, WhatCannotBeUsedIsRefusedByName) {
  Foreign<TypeParam> foreign;
  DenseTensor &tensor = foreign.managed.dl_tensor;
  tensor.strides = foreign.strides;
  foreign.strides[0] = 1;
  foreign.strides[1] = 2;
  foreign.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "column-major");
  tensor.strides = nullptr;
  tensor.device.device_type = 8;
  foreign.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "Metal");
  tensor.device.device_type = 1000;
  foreign.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "1000");
  tensor.device.device_type = 1;
  tensor.dtype = {2, 128, 1};
  foreign.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "128 bits");
  tensor.dtype = {2, 32, 4};
  foreign.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "4 lanes");
  tensor.dtype = {2, 32, 1};
  foreign.shape[0] = -2;
  foreign.expect_refusal(TPFSDP_ERR_INVALID_ARGUMENT, "(-2, 3)");
  foreign.shape[0] = INT64_MAX;
  foreign.expect_refusal(TPFSDP_ERR_INVALID_ARGUMENT, "int64_t");
  foreign.shape[0] = 2;
  tensor.data = nullptr;
  foreign.expect_refusal(TPFSDP_ERR_INVALID_ARGUMENT, "NULL data");
  tensor.data = foreign.memory;
  tensor.ndim = -1;
  foreign.expect_refusal(TPFSDP_ERR_INVALID_ARGUMENT, "ndim -1");
  tensor.ndim = 2;
  EXPECT_EQ(foreign.import()->shape(), (Shape{2, 3})) << "after all that it is still good";
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(ImportManaged, AnotherMajorIsRefusedAndAnotherMinorIsNot) {
  Foreign<Managed> foreign;
  foreign.managed.version = {2, 0};
  foreign.expect_refusal(TPFSDP_ERR_ABI, "version 2.0");
  foreign.managed.version = {1, 99};
  EXPECT_EQ(foreign.import()->view().size_bytes, 24);
}

TEST(ImportManaged, FlagsAreHonoured) {
  Foreign<Managed> foreign;
  foreign.managed.flags = kReadOnly | 2;  // a copy: nothing to us
  EXPECT_EQ(foreign.import()->view().read_only, 1);
  Foreign<Managed> padded;
  padded.managed.dl_tensor.dtype = {17, 4, 1};
  padded.managed.flags = kSubbytePadded;
  padded.expect_refusal(TPFSDP_ERR_UNSUPPORTED, "f4_e2m1fn");
  padded.managed.flags = 0;
  EXPECT_EQ(padded.import()->view().size_bytes, 3);
}

Ref<Tensor> tensor_of(float *memory, Shape shape, bool read_only, int *kept) {
  tpfsdp_view view{};
  view.data = memory;
  view.size_bytes = dtype_bytes(TPFSDP_DTYPE_F32, element_count(shape));
  view.shape = shape.data();
  view.ndim = static_cast<int32_t>(shape.size());
  view.dtype = TPFSDP_DTYPE_F32;
  view.device_type = TPFSDP_DEVICE_CPU;
  view.read_only = read_only;
  return make<Tensor>(view, [kept] { ++*kept; });
}

TEST(Export, HoldsTheTensorUntilItsDeleterRunsOnAnyThread) {
  float memory[6] = {};
  int kept = 0;
  Managed *managed = export_managed(tensor_of(memory, {2, 3}, false, &kept));
  EXPECT_EQ(kept, 0);
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  const DenseTensor &out = managed->dl_tensor;
  EXPECT_EQ(out.data, memory);
  EXPECT_EQ(out.byte_offset, 0u);
  EXPECT_EQ(out.device.device_type, 1);
  EXPECT_EQ(out.ndim, 2);
  EXPECT_EQ(out.dtype.code, 2);
  EXPECT_EQ(out.dtype.bits, 32);
  EXPECT_EQ(out.dtype.lanes, 1);
  EXPECT_EQ(out.shape[0], 2);
  EXPECT_EQ(out.shape[1], 3);
  ASSERT_NE(out.strides, nullptr);
  EXPECT_EQ(out.strides[0], 3);
  EXPECT_EQ(out.strides[1], 1);
  std::thread([managed] { managed->deleter(managed); }).join();
  EXPECT_EQ(kept, 1);
}

TEST(Export, LegacyAndReadOnly) {
  float memory[2] = {};
  int kept = 0;
  const Ref<Tensor> writable = tensor_of(memory, {2}, false, &kept);
  LegacyManaged *legacy = export_legacy(writable);
  EXPECT_EQ(legacy->dl_tensor.data, memory);
  EXPECT_EQ(legacy->dl_tensor.strides[0], 1);
  legacy->deleter(legacy);
  EXPECT_EQ(kept, 0) << "the tensor itself still lives";
  const Ref<Tensor> read_only = tensor_of(memory, {2}, true, &kept);
  EXPECT_THROW(export_legacy(read_only), Failure);
  Managed *managed = export_managed(read_only);
  EXPECT_EQ(managed->flags, kReadOnly);
  managed->deleter(managed);
}

TEST(Export, EmptyScalarAndMeta) {
  int kept = 0;
  Managed *empty = export_managed(tensor_of(nullptr, {0, 4}, false, &kept));
  EXPECT_EQ(empty->dl_tensor.data, nullptr);
  EXPECT_EQ(empty->dl_tensor.shape[1], 4);
  empty->deleter(empty);
  float one = 1;
  Managed *scalar = export_managed(tensor_of(&one, {}, false, &kept));
  EXPECT_EQ(scalar->dl_tensor.ndim, 0);
  scalar->deleter(scalar);
  EXPECT_EQ(kept, 2);
  EXPECT_THROW(export_managed(Tensor::zeros({2}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_META)), Failure);
}

TEST(RoundTrip, AnExportCanBeImportedAgain) {
  float memory[6] = {};
  int kept = 0;
  Ref<Tensor> back = import_managed(*export_managed(tensor_of(memory, {3, 2}, true, &kept)));
  EXPECT_EQ(back->view().data, memory);
  EXPECT_EQ(back->view().read_only, 1);
  EXPECT_EQ(kept, 0);
  back = nullptr;
  EXPECT_EQ(kept, 1);
}

}  // namespace
}  // namespace tpfsdp::dlpack
