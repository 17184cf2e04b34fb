// SPDX-License-Identifier: Apache-2.0
// Every allocation of create, import and export fails once: nothing leaks, and what was not taken over is untouched.
#include "base/handle_table.hpp"
#include "support/allocation.hpp"
#include "tensor/dlpack.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tpfsdp {
namespace {

// The library's own tables, which stay, are made before anything is counted.
class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    const Ref<Tensor> first = Tensor::zeros({1}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU);
    HandleTable::expose(first.get(), false);
  }
};

// Runs `call` with its first, second, ... allocation failing until it succeeds. Returns how many failed.
template <class Call>
int fail_each(Call &&call) {
  for (int failed = 0;; ++failed) {
    const int64_t before = allocation::living();
    const int64_t handles = HandleTable::live_count();
    allocation::fail_after(failed);
    try {
      call();
      allocation::never_fail();
      return failed;
    } catch (const std::bad_alloc &) {
      EXPECT_TRUE(allocation::has_failed()) << "the fault is ours";
      allocation::never_fail();
    }
    EXPECT_EQ(allocation::living(), before) << "leaked when allocation " << failed << " failed";
    EXPECT_EQ(HandleTable::live_count(), handles);
    if (failed > 100) return failed;
  }
}

TEST_F(OutOfMemory, CreatingATensor) {
  const Shape shape{3, 4};
  const int failed = fail_each([&] { Tensor::zeros(shape, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU); });
  EXPECT_GE(failed, 3) << "memory, object, shape";
  EXPECT_LT(failed, 100);
}

TEST_F(OutOfMemory, ImportLeavesTheRecordToItsOwner) {
  float memory[6] = {};
  int64_t shape[2] = {2, 3};
  int deleted = 0;
  dlpack::Managed managed{};
  managed.version = {1, 0};
  managed.manager_ctx = &deleted;
  managed.deleter = [](dlpack::Managed *self) { ++*static_cast<int *>(self->manager_ctx); };
  managed.dl_tensor.data = memory;
  managed.dl_tensor.device = {1, 0};
  managed.dl_tensor.ndim = 2;
  managed.dl_tensor.dtype = {2, 32, 1};
  managed.dl_tensor.shape = shape;
  Ref<Tensor> imported;
  const int failed = fail_each([&] {
    EXPECT_EQ(deleted, 0);
    imported = dlpack::import_managed(managed);
  });
  EXPECT_GE(failed, 2) << "object, shape";
  EXPECT_LT(failed, 100);
  EXPECT_EQ(deleted, 0);
  imported = nullptr;
  EXPECT_EQ(deleted, 1);
}

// The handle of an imported tensor is made last; when the table cannot grow for it, nothing has been taken over.
TEST_F(OutOfMemory, ImportWithoutRoomForAHandle) {
  float memory[6] = {};
  int64_t shape[2] = {2, 3};
  int deleted = 0, refused = 0;
  dlpack::Managed managed{};
  managed.version = {1, 0};
  managed.manager_ctx = &deleted;
  managed.deleter = [](dlpack::Managed *self) { ++*static_cast<int *>(self->manager_ctx); };
  managed.dl_tensor = {memory, {1, 0}, 2, {2, 32, 1}, shape, nullptr, 0};
  // How many allocations an import has when the table does not grow: as many must succeed, the next one fails.
  int usual = 0;
  {
    Ref<Tensor> first;
    usual = fail_each([&] { first = dlpack::import_managed(managed); });
  }
  EXPECT_EQ(deleted, 1);
  std::vector<Ref<Tensor>> imported;
  imported.reserve(4096);
  while (refused == 0 && imported.size() < 4096) {
    allocation::fail_after(usual);
    try {
      imported.push_back(dlpack::import_managed(managed));
    } catch (const std::bad_alloc &) {
      ++refused;
      EXPECT_TRUE(allocation::has_failed());
    }
    allocation::never_fail();
    ASSERT_EQ(deleted, 1);
  }
  EXPECT_EQ(refused, 1) << "the table grew in chunks of 1024";
  const auto owned = static_cast<int>(imported.size());
  imported.clear();
  EXPECT_EQ(deleted, 1 + owned);
}

TEST_F(OutOfMemory, Export) {
  const Ref<Tensor> tensor = Tensor::zeros({2, 3}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU);
  dlpack::Managed *managed = nullptr;
  const int failed = fail_each([&] { managed = dlpack::export_managed(tensor); });
  EXPECT_GE(failed, 3) << "record, shape, strides";
  EXPECT_LT(failed, 100);
  ASSERT_NE(managed, nullptr);
  managed->deleter(managed);
}

}  // namespace
}  // namespace tpfsdp
