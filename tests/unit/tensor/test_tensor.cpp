// SPDX-License-Identifier: Apache-2.0
// A tensor's memory: kept once, described truly, aligned, zero.
#include "tensor/tensor.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace tpfsdp {
namespace {

tpfsdp_view view_over(void *data, const int64_t *shape, int32_t ndim, int64_t size_bytes) {
  tpfsdp_view view{};
  view.data = data;
  view.size_bytes = size_bytes;
  view.shape = shape;
  view.ndim = ndim;
  view.dtype = TPFSDP_DTYPE_F32;
  view.device_type = TPFSDP_DEVICE_CPU;
  return view;
}

TEST(Tensor, CopiesTheDescriptionAndKeepsTheMemory) {
  float memory[6] = {};
  int64_t shape[2] = {2, 3};
  const int64_t strides[2] = {3, 1};
  tpfsdp_view view = view_over(memory, shape, 2, sizeof memory);
  view.strides = strides;
  view.epoch = 7;
  view.read_only = 1;
  int kept = 0;
  {
    const auto tensor = make<Tensor>(view, [&kept] { ++kept; });
    shape[0] = 99;  // the caller's array may go
    EXPECT_EQ(tensor->shape(), (Shape{2, 3}));
    EXPECT_EQ(tensor->view().data, memory);
    EXPECT_EQ(tensor->view().shape[0], 2);
    EXPECT_EQ(tensor->view().strides, nullptr);
    EXPECT_EQ(tensor->view().epoch, 7);
    EXPECT_EQ(tensor->view().read_only, 1);
    EXPECT_EQ(kept, 0);
  }
  EXPECT_EQ(kept, 1);
}

TEST(Tensor, ARefusedViewDoesNotRunKeep) {
  const int64_t shape[1] = {4};
  float memory[4] = {};
  int kept = 0;
  EXPECT_THROW(make<Tensor>(view_over(memory, shape, 1, 15), [&kept] { ++kept; }), Failure);
  EXPECT_EQ(kept, 0);
}

TEST(Tensor, ScalarsAndEmptyOnes) {
  float one = 1;
  const auto scalar = make<Tensor>(view_over(&one, nullptr, 0, 4), nullptr);
  EXPECT_EQ(scalar->view().shape, nullptr);
  const int64_t shape[2] = {0, 5};
  const auto empty = make<Tensor>(view_over(&one, shape, 2, 0), nullptr);
  EXPECT_EQ(empty->view().data, nullptr) << "NULL exactly when there are no elements";
  EXPECT_EQ(empty->shape(), (Shape{0, 5}));
}

TEST(Tensor, ZerosAreZeroAndAligned) {
  for (const int64_t count : {1, 17, 16384, 100000}) {
    const auto tensor = Tensor::zeros({count}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU);
    EXPECT_EQ(tensor->view().size_bytes, 4 * count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->view().data) % (4 * count >= 65536 ? 256 : 64), 0u);
    const auto *bytes = static_cast<const unsigned char *>(tensor->view().data);
    int64_t set = 0;
    for (int64_t i = 0; i < 4 * count; ++i) set += bytes[i] != 0;
    EXPECT_EQ(set, 0);
  }
}

TEST(Tensor, ZerosWithoutMemory) {
  const auto meta = Tensor::zeros({1 << 20, 1 << 20}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_META);
  EXPECT_EQ(meta->view().data, nullptr);
  EXPECT_EQ(meta->view().size_bytes, int64_t{1} << 42);
  EXPECT_EQ(Tensor::zeros({0}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU)->view().data, nullptr);
  EXPECT_THROW(Tensor::zeros({1}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CUDA), Failure);
}

TEST(Tensor, MemoryThatCannotBeHadIsBadAlloc) {
  EXPECT_THROW(Tensor::zeros({INT64_MAX / 8}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU), std::bad_alloc);
}

}  // namespace
}  // namespace tpfsdp
