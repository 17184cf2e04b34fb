// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.hpp"

#include "base/error.hpp"

#include <cstring>
#include <new>

namespace tpfsdp {
namespace {

// The alignment that hosts want without copying: 64 bytes, large tensors 256.
constexpr int64_t kLargeBytes = 64 * 1024;
std::align_val_t alignment_of(int64_t size_bytes) { return std::align_val_t(size_bytes >= kLargeBytes ? 256 : 64); }

struct AlignedDelete {
  int64_t size_bytes;
  void operator()(void *data) const noexcept { ::operator delete(data, alignment_of(size_bytes)); }
};

}  // namespace

Tensor::Tensor(const tpfsdp_view &view, std::function<void()> keep, std::optional<ShardPlace> place)
    : view_(view), place_(std::move(place)) {
  check_view(view, "the tensor");
  shape_ = shape_of(view);
  view_.shape = shape_.empty() ? nullptr : shape_.data();
  view_.strides = nullptr;
  if (view_.size_bytes == 0) view_.data = nullptr;
  keep_ = std::move(keep);
}

Tensor::~Tensor() {
  if (keep_) keep_();
}

Ref<Tensor> Tensor::zeros(const Shape &shape, tpfsdp_dtype dtype, tpfsdp_device_type device) {
  if (device != TPFSDP_DEVICE_CPU && device != TPFSDP_DEVICE_META)
    fail(TPFSDP_ERR_UNSUPPORTED, "memory on device type ", device, " cannot be made; CPU and META can");
  tpfsdp_view view{};
  view.shape = shape.data();
  view.ndim = static_cast<int32_t>(shape.size());
  view.dtype = dtype;
  view.device_type = device;
  view.size_bytes = dtype_bytes(dtype, element_count(shape));
  if (device == TPFSDP_DEVICE_META || view.size_bytes == 0) return make<Tensor>(view, nullptr);
  const auto size = static_cast<size_t>(view.size_bytes);
  std::unique_ptr<void, AlignedDelete> memory(::operator new(size, alignment_of(view.size_bytes)),
                                              AlignedDelete{view.size_bytes});
  view.data = std::memset(memory.get(), 0, size);
  Ref<Tensor> tensor = make<Tensor>(view, [data = view.data, free = memory.get_deleter()] { free(data); });
  (void)memory.release();
  return tensor;
}

}  // namespace tpfsdp
