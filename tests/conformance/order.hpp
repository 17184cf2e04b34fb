// SPDX-License-Identifier: Apache-2.0
// Exact orders of events: a host without arithmetic that calls the hooks in a given order, and the log as one string.
#pragma once

#include "support/chain.hpp"

#include <map>

namespace order {

// "U b0 F, R b0 F, P b0 B": what happened since the last call, of the kinds asked for, with the training state.
inline std::string take(tpfsdp_context *context, const std::string &kinds) {
  const std::map<int32_t, char> letters{
      {TPFSDP_EVENT_UNSHARD, 'U'}, {TPFSDP_EVENT_RESHARD, 'R'}, {TPFSDP_EVENT_POST_BACKWARD, 'P'}};
  constexpr const char *kStates[] = {"?", "I", "F", "B", "p"};
  std::string text;
  const int64_t count = api::counters(context).event_count;
  for (int64_t i = 0; i < count; ++i) {
    tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
    API(tpfsdp_trace_get_event, context, i, &event);
    const auto letter = letters.find(event.kind);
    if (letter == letters.end() || kinds.find(letter->second) == std::string::npos) continue;
    if (!text.empty()) text += ", ";
    text += std::string(1, letter->second) + " " + event.unit;
    if (letter->second != 'P') text += std::string(" ") + kStates[event.training_state];
  }
  API(tpfsdp_trace_clear, context);
  return text;
}

// Modules by dotted name, each with one parameter of 4 elements; the root has one if it is asked to.
class Host {
 public:
  Host(tpfsdp_context *context, bool root_has_parameter) : tree_(context) {
    modules_[""] = tree_.root;
    if (root_has_parameter) add_param("");
  }

  void add(const std::string &path, bool has_parameter = true) {
    const size_t dot = path.rfind('.');
    tpfsdp_module *above = modules_.at(dot == std::string::npos ? "" : path.substr(0, dot));
    modules_[path] = tree_.child(above, dot == std::string::npos ? path : path.substr(dot + 1));
    if (has_parameter) add_param(path);
  }
  void shard(const std::vector<std::string> &paths, tpfsdp_reshard_kind reshard) {
    std::vector<tpfsdp_module *> modules;
    for (const std::string &path : paths) modules.push_back(at(path));
    tree_.shard(modules, reshard);
  }
  tpfsdp_module *at(const std::string &path) const { return modules_.at(path); }

  void forward(const std::string &path) const {
    API(tpfsdp_module_pre_forward, at(path));
    API(tpfsdp_module_post_forward, at(path));
  }
  // All its gradients are one.
  void backward(const std::string &path) const {
    before(path);
    after(path);
  }
  void before(const std::string &path) const { API(tpfsdp_module_pre_backward, at(path)); }
  void after(const std::string &path) const {
    give_gradient(path);
    API(tpfsdp_module_post_backward, at(path));
  }
  void give_gradient(const std::string &path) const {
    const auto param = params_.find(path);
    if (param == params_.end()) return;
    tpfsdp_view grad{};
    API(tpfsdp_param_get_grad_buffer, param->second, 1, &grad);
    for (int64_t i = 0; i < api::count_of(grad); ++i) static_cast<float *>(grad.data)[i] += 1;
    API(tpfsdp_param_grad_ready, param->second);
  }
  void prefetch_in_backward(const std::string &path, const std::vector<std::string> &paths) const {
    std::vector<tpfsdp_module *> list;
    for (const std::string &other : paths) list.push_back(at(other));
    API(tpfsdp_fsdp_module_set_modules_to_backward_prefetch, at(path), list.data(), static_cast<int64_t>(list.size()));
  }
  tpfsdp_param *param(const std::string &path) const { return params_.at(path); }

 private:
  void add_param(const std::string &path) {
    params_[path] = tree_.param<float>(at(path), "p", TPFSDP_DTYPE_F32, {4}, {1, 2, 3, 4});
  }

  api::Tree tree_;
  std::map<std::string, tpfsdp_module *> modules_;
  std::map<std::string, tpfsdp_param *> params_;
};

}  // namespace order
