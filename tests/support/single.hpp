// SPDX-License-Identifier: Apache-2.0
// The smallest sharded tree: one parameter in a unit of its own.
#pragma once

#include "support/chain.hpp"

namespace chain {

// One parameter w of ones in a unit of its own, whose gradient the test writes.
struct Single {
  explicit Single(tpfsdp_context *context, int64_t rows = 4, tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO)
      : tree(context),
        w(tree.param(tree.root, "w", TPFSDP_DTYPE_F32, {rows}, Values(static_cast<size_t>(rows), 1))),
        rows_(rows) {
    tree.shard({tree.root}, reshard);
  }
  void forward() {
    API(tpfsdp_module_pre_forward, tree.root);
    API(tpfsdp_module_post_forward, tree.root);
  }
  void add(float value) {
    Values gradient(static_cast<size_t>(rows_), value);
    const std::vector<int64_t> shape{rows_};
    const tpfsdp_view view = api::view(gradient.data(), TPFSDP_DTYPE_F32, shape);
    API(tpfsdp_param_add_grad, w, &view);
  }
  void backward(float value) {
    API(tpfsdp_module_pre_backward, tree.root);
    add(value);
    API(tpfsdp_module_post_backward, tree.root);
  }
  void end() { API(tpfsdp_module_end_backward, tree.root); }
  Values gradient() const { return api::values_of<float>(api::face(w, TPFSDP_FACE_GRAD)); }
  Values local(float value) const {
    return Values(static_cast<size_t>(api::count_of(api::face(w, TPFSDP_FACE_SHARD))), value);
  }
  tpfsdp_sharded_state state() const { return api::unit_info(tree.root).sharded_state; }

  api::Tree tree;
  tpfsdp_param *w;

 private:
  int64_t rows_;
};

}  // namespace chain
