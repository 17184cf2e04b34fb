// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a golden's model, and the library's hooks in the order in which PyTorch's autograd reaches
// them: a module's pre-backward comes where its output needs a gradient, its post-backward where its input does, and a
// parameter gets its gradient once, when all its uses in a backward have theirs.
#pragma once

#include "goldens/low_precision.hpp"
#include "goldens/model.hpp"

namespace goldens {

template <class T>
class Host {
 public:
  Host(const Golden &golden, const Model &model)
      : model_(model),
        order_(model.forward_order()),
        rows_(golden.data.at("batch")),
        compute_dtype_(compute_dtype(golden)),
        input_dtype_(dtype_named(golden.setup.value("input_dtype", ""))),
        math_(compute_dtype_ == TPFSDP_DTYPE_BF16),
        input_requires_grad_(golden.setup.value("input_requires_grad", false)) {}

  size_t input_size() const { return static_cast<size_t>(rows_ * order_.at(0)->in); }

  // What the outputs of forward have.
  tpfsdp_dtype output_dtype() const {
    const tpfsdp_dtype wished = info().output_dtype;
    return wished != 0 ? wished : compute_dtype_;
  }

  // Remembered until backward.
  std::vector<T> forward(std::vector<T> x) {
    API(tpfsdp_module_pre_forward, model_.root());
    take_input(x);
    forwards_.emplace_back();
    bool needs_grad = input_requires_grad_;
    for (const Layer *layer : order_) {
      Use use{layer, x, {}, needs_grad, needs_grad || layer->weight->trains || (layer->bias && layer->bias->trains)};
      needs_grad = use.output_needs_grad;
      x = forward(use);
      forwards_.back().push_back(std::move(use));
    }
    API(tpfsdp_module_post_forward, model_.root());
    return x;
  }

  // Of all forwards since the last backward, whose outputs have the gradients `dys`. The latest comes first.
  void backward(std::vector<std::vector<T>> dys) {
    for (const std::vector<Use> &uses : forwards_) {
      for (const Use &use : uses) {
        if (!use.output_needs_grad) continue;
        for (const Param *param : {use.layer->weight, use.layer->bias}) {
          if (param && param->trains) ++pending_[param].uses;
        }
      }
    }
    for (; !forwards_.empty(); forwards_.pop_back(), dys.pop_back()) {
      math_.round(dys.back());  // the loss is in f32
      backward(forwards_.back(), dys.back());
    }
    pending_.clear();
    API(tpfsdp_module_end_backward, model_.root());
  }

  // Gradients of ignored parameters are the host's own; none: not here.
  std::map<std::string, std::vector<T>> own_gradients;

 private:
  // A layer in one forward.
  struct Use {
    const Layer *layer;
    std::vector<T> x, y;  // y before the residual
    bool input_needs_grad, output_needs_grad;
  };
  // A gradient that further uses add to.
  struct Sum {
    int uses = 0;
    std::vector<T> values;
  };

  static std::vector<T> full(const Param *param) {
    return param ? values_of<T>(api::face(param->handle, TPFSDP_FACE_FULL)) : std::vector<T>();
  }

  static tpfsdp_dtype compute_dtype(const Golden &golden) {
    const json policy = golden.setup.value("mp_policy", json::object());
    return policy.contains("param_dtype") ? dtype_named(policy.at("param_dtype")) : toy::dtype_of<T>();
  }

  tpfsdp_fsdp_module_info info() const {
    tpfsdp_fsdp_module_info info = TPFSDP_INIT(tpfsdp_fsdp_module_info);
    API(tpfsdp_fsdp_module_get_info, model_.root(), &info);
    return info;
  }

  // Cast as the library wishes; a host cannot multiply two dtypes.
  void take_input(std::vector<T> &x) const {
    tpfsdp_dtype dtype = input_dtype_ != 0 ? input_dtype_ : toy::dtype_of<T>();
    if (const tpfsdp_dtype wished = info().input_dtype; wished != 0) dtype = wished;
    if (dtype != compute_dtype_)
      throw api::Error(TPFSDP_ERR_STATE, -1, "an input of " + dtype_name(dtype) + " meets weights of another dtype");
    math_.round(x);
  }

  std::vector<T> forward(Use &use) const {
    const Layer &layer = *use.layer;
    for (tpfsdp_module *module : layer.modules) API(tpfsdp_module_pre_forward, module);
    use.y = math_.linear(use.x, full(layer.weight), full(layer.bias), rows_, layer.in, layer.out);
    if (layer.relu) {
      for (T &value : use.y) value = std::max(value, T{0});
    }
    std::vector<T> out = use.y;
    if (layer.residual) math_.add(out, use.x);
    for (size_t i = layer.modules.size(); i-- > 0;) API(tpfsdp_module_post_forward, layer.modules[i]);
    return out;
  }

  void backward(const std::vector<Use> &uses, std::vector<T> dy) {
    // The root's output is that of its last module, whose hook was there first.
    const std::vector<tpfsdp_module *> &last = uses.back().layer->modules;
    if (uses.back().output_needs_grad) {
      if (!last.empty()) API(tpfsdp_module_pre_backward, last.front());
      API(tpfsdp_module_pre_backward, model_.root());
    }
    for (size_t i = uses.size(); i-- > 0 && uses[i].output_needs_grad;) {
      const std::vector<tpfsdp_module *> &modules = uses[i].layer->modules;
      for (tpfsdp_module *module : modules) {
        if (i + 1 < uses.size() || module != last.front()) API(tpfsdp_module_pre_backward, module);
      }
      dy = gradients(uses[i], dy);
      for (size_t m = modules.size(); uses[i].input_needs_grad && m-- > 0;)
        API(tpfsdp_module_post_backward, modules[m]);
    }
    if (input_requires_grad_) API(tpfsdp_module_post_backward, model_.root());
  }

  // Hands over those of the parameters; gives that of the input.
  std::vector<T> gradients(const Use &use, const std::vector<T> &dout) {
    const Layer &layer = *use.layer;
    std::vector<T> dy = dout, dx(use.x.size());
    for (size_t i = 0; layer.relu && i < dy.size(); ++i) dy[i] = use.y[i] > 0 ? dy[i] : T{0};
    std::vector<T> dweight(static_cast<size_t>(layer.in * layer.out)), dbias(static_cast<size_t>(layer.out));
    math_.linear_backward(use.x, full(layer.weight), dy, dx, dweight, dbias, rows_, layer.in, layer.out);
    if (layer.residual) math_.add(dx, dout);
    take(layer.weight, dweight);
    take(layer.bias, dbias);
    return dx;
  }

  void take(const Param *param, const std::vector<T> &gradient) {
    if (!param || !param->trains) return;
    Sum &sum = pending_.at(param);
    sum.values.resize(gradient.size());
    math_.add(sum.values, gradient);
    if (--sum.uses > 0) return;
    if (!is_sharded(param->handle)) {
      std::vector<T> &own = own_gradients[param->name];
      own.resize(gradient.size());
      for (size_t i = 0; i < own.size(); ++i) own[i] += sum.values[i];
      return;
    }
    tpfsdp_view buffer{};
    API(tpfsdp_param_get_grad_buffer, param->handle, 0, &buffer);
    store(sum.values, buffer);
    API(tpfsdp_param_grad_ready, param->handle);
  }

  const Model &model_;
  std::vector<const Layer *> order_;
  int64_t rows_;
  tpfsdp_dtype compute_dtype_, input_dtype_;
  Arithmetic<T> math_;
  bool input_requires_grad_;
  std::vector<std::vector<Use>> forwards_;
  std::map<const Param *, Sum> pending_;
};

}  // namespace goldens
