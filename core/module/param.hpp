// SPDX-License-Identifier: Apache-2.0
// One trainable tensor and its faces. Before sharding the host's full values; afterwards what core/fsdp hangs on it.
#pragma once

#include "tensor/tensor.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace tpfsdp {

class Module;

// The numbers of param.h.
enum class Face : int32_t { kShard = 1, kFull = 2, kGrad = 3 };

class Param final : public Object {
 public:
  static constexpr Kind kKind = Kind::kParam;

  Param(Ref<Tensor> values, bool requires_grad);

  Kind kind() const override { return kKind; }
  Gate *gate() const override;
  std::string describe_rank() const override;

  int64_t id() const { return id_; }
  const Shape &shape() const { return shape_; }
  tpfsdp_dtype dtype() const { return dtype_; }
  bool requires_grad() const { return requires_grad_; }
  void set_requires_grad(bool requires_grad) { requires_grad_ = requires_grad; }

  // Dotted, from the top of the tree by the first place it was registered at; "" while unregistered.
  std::string full_name() const;
  // full_name() kept for the caller: good until the next call.
  const char *name_for_caller();

  // Where it is registered: the same parameter in several places is tied.
  void add_place(Module *module, const std::string &name);
  void remove_place(Module *module, const std::string &name) noexcept;
  int32_t place_count() const { return static_cast<int32_t>(places_.size()); }

  // ---- Memory. A face is there while its view has a dtype; epochs change whenever a face moves or comes anew. ----

  const tpfsdp_view &view(Face face) const { return views_[index(face)]; }
  bool has(Face face) const { return views_[index(face)].dtype != 0; }
  struct Showing {
    tpfsdp_dtype dtype = 0;  // 0: the parameter's own
    tpfsdp_device_type device = TPFSDP_DEVICE_CPU;
    bool is_anew = false;  // other memory, even where the address is the same
    bool is_read_only = false;
  };
  // The shape is borrowed for as long as the face is shown.
  void show(Face face, void *data, const Shape &shape, Showing how);
  void show(Face face, void *data, const Shape &shape) { show(face, data, shape, {}); }
  void hide(Face face) { views_[index(face)].dtype = 0; }

  const Ref<Tensor> &values() const { return values_; }  // of the host, before sharding
  void set_values(Ref<Tensor> values);
  void drop_values() { values_ = nullptr; }

  // The unit that shards it, and its number there; -1: none. core/fsdp owns both.
  Object *unit = nullptr;
  int64_t index_in_unit = -1;

 private:
  static size_t index(Face face) { return static_cast<size_t>(face) - 1; }

  int64_t id_;
  Shape shape_;
  tpfsdp_dtype dtype_;
  bool requires_grad_;
  Ref<Tensor> values_;
  std::array<tpfsdp_view, 3> views_{};
  std::vector<std::pair<Module *, std::string>> places_;
  std::string name_for_caller_;
};

// Unique in the process and never used again: identities of modules and parameters.
int64_t next_identity() noexcept;

}  // namespace tpfsdp
