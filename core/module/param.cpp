// SPDX-License-Identifier: Apache-2.0
#include "module/param.hpp"

#include "base/handle_table.hpp"
#include "module/module.hpp"

#include <algorithm>
#include <atomic>

namespace tpfsdp {

int64_t next_identity() noexcept {
  static std::atomic<int64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Param::Param(Ref<Tensor> values, bool requires_grad)
    : id_(next_identity()), shape_(values->shape()), dtype_(values->dtype()), requires_grad_(requires_grad) {
  if (requires_grad && !is_floating(dtype_))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a parameter of dtype ", dtype_name(dtype_),
         " cannot require gradients; only f64, f32, f16 and bf16 can");
  set_values(std::move(values));
}

Gate *Param::gate() const { return places_.empty() ? nullptr : places_.front().first->gate(); }

std::string Param::describe_rank() const {
  return places_.empty() ? Object::describe_rank() : places_.front().first->describe_rank();
}

std::string Param::full_name() const {
  if (places_.empty()) return "";
  const std::string path = places_.front().first->path();
  return path.empty() ? places_.front().second : cat(path, ".", places_.front().second);
}

const char *Param::name_for_caller() {
  name_for_caller_ = full_name();
  return name_for_caller_.c_str();
}

void Param::add_place(Module *module, const std::string &name) {
  places_.emplace_back(module, name);
  if (places_.size() == 1) HandleTable::set_gate(this);
}

void Param::remove_place(Module *module, const std::string &name) noexcept {
  const auto place = std::find(places_.begin(), places_.end(), std::pair(module, name));
  if (place != places_.end()) places_.erase(place);
  if (places_.empty()) HandleTable::set_gate(this);
}

void Param::show(Face face, void *data, const Shape &shape, Showing how) {
  tpfsdp_view &view = views_[index(face)];
  if (how.is_anew || view.data != data || view.epoch == 0) ++view.epoch;
  view.dtype = how.dtype != 0 ? how.dtype : dtype_;
  view.size_bytes = dtype_bytes(view.dtype, element_count(shape));
  view.data = view.size_bytes > 0 ? data : nullptr;
  view.shape = shape.empty() ? nullptr : shape.data();
  view.strides = nullptr;
  view.ndim = static_cast<int32_t>(shape.size());
  view.device_type = how.device;
  view.device_id = 0;
  view.read_only = how.is_read_only ? 1 : 0;
}

void Param::set_values(Ref<Tensor> values) {
  if (values->shape() != shape_ || values->dtype() != dtype_)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "parameter ", full_name(), " is ", dtype_name(dtype_), " ", shape_text(shape_),
         ", the tensor ", dtype_name(values->dtype()), " ", shape_text(values->shape()));
  values_ = std::move(values);
  const tpfsdp_view &view = values_->view();
  show(Face::kFull, view.data, shape_, {.device = view.device_type});
}

}  // namespace tpfsdp
