// SPDX-License-Identifier: Apache-2.0
// Memory with a shape that the library keeps: borrowed from the host, exchanged by DLPack, or its own.
#pragma once

#include "base/object.hpp"
#include "tensor/shape.hpp"

#include <functional>
#include <optional>

namespace tpfsdp {

// Which part of which whole a tensor is; a plain tensor has none.
struct ShardPlace {
  Shape global_shape;
  Shape offsets;  // an empty shard starts at the end of its dimension
  int32_t shard_dim = -1;
  int64_t flat_offset = -1;  // of a run of elements of the whole; then without offsets
  Ref<Object> mesh;
};

class Tensor final : public Object {
 public:
  static constexpr Kind kKind = Kind::kTensor;

  // Over the memory of `view`, which is checked and copied (shape included). `keep` runs once, when the memory is
  // needed no more; it may be empty.
  Tensor(const tpfsdp_view &view, std::function<void()> keep, std::optional<ShardPlace> place = std::nullopt);
  ~Tensor() override;

  // Zero-filled memory of the library on CPU; no memory on META.
  static Ref<Tensor> zeros(const Shape &shape, tpfsdp_dtype dtype, tpfsdp_device_type device);

  // For memory that is taken over only when nothing can fail any more: `keep` as above, which was empty.
  void take_over(std::function<void()> keep) noexcept { keep_ = std::move(keep); }

  Kind kind() const override { return kKind; }
  const tpfsdp_view &view() const { return view_; }
  const Shape &shape() const { return shape_; }
  tpfsdp_dtype dtype() const { return view_.dtype; }
  const std::optional<ShardPlace> &place() const { return place_; }

 private:
  Shape shape_;
  tpfsdp_view view_;
  std::function<void()> keep_;
  std::optional<ShardPlace> place_;
};

}  // namespace tpfsdp
