// SPDX-License-Identifier: Apache-2.0
#include "goldens/calls.hpp"

namespace goldens {
namespace {

struct Call {
  tpfsdp_module *on;
  tpfsdp_bool value, recurse;
  std::vector<tpfsdp_module *> modules;
  int64_t count() const { return static_cast<int64_t>(modules.size()); }
};
using Method = void (*)(const Call &call);

const std::map<std::string, Method> kMethods{
    {"set_requires_gradient_sync",
     [](const Call &c) { API(tpfsdp_fsdp_module_set_requires_gradient_sync, c.on, c.value, c.recurse); }},
    {"set_is_last_backward", [](const Call &c) { API(tpfsdp_fsdp_module_set_is_last_backward, c.on, c.value); }},
    {"set_reshard_after_forward",
     [](const Call &c) {
       API(tpfsdp_fsdp_module_set_reshard_after_forward, c.on, c.value ? TPFSDP_RESHARD_ALWAYS : TPFSDP_RESHARD_NEVER,
           c.recurse);
     }},
    {"set_reshard_after_backward",
     [](const Call &c) { API(tpfsdp_fsdp_module_set_reshard_after_backward, c.on, c.value, c.recurse); }},
    {"set_unshard_in_backward", [](const Call &c) { API(tpfsdp_fsdp_module_set_unshard_in_backward, c.on, c.value); }},
    {"set_reduce_scatter_unused_params",
     [](const Call &c) { API(tpfsdp_fsdp_module_set_reduce_scatter_unused_params, c.on, c.value, c.recurse); }},
    {"set_modules_to_forward_prefetch",
     [](const Call &c) { API(tpfsdp_fsdp_module_set_modules_to_forward_prefetch, c.on, c.modules.data(), c.count()); }},
    {"set_modules_to_backward_prefetch",
     [](const Call &c) {
       API(tpfsdp_fsdp_module_set_modules_to_backward_prefetch, c.on, c.modules.data(), c.count());
     }},
};

}  // namespace

bool is_known(const json &call) { return kMethods.count(call.at("method")) > 0; }

void call(const json &described, const Model &model, bool is_last) {
  const json on = described.value("on", json("")), value = described.value("value", json(false));
  Call call{nullptr, value == "last" ? is_last : value.get<bool>(), described.value("recurse", true), {}};
  for (const std::string path : described.value("modules", json::array())) call.modules.push_back(model.module(path));
  for (const std::string path : on.is_array() ? on : json::array({on})) {
    call.on = model.module(path);
    kMethods.at(described.at("method"))(call);
  }
}

}  // namespace goldens
