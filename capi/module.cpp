// SPDX-License-Identifier: Apache-2.0
#include "module/module.hpp"

#include "fsdp/param_access.hpp"
#include "fsdp/state.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "list.hpp"
#include "options.hpp"

#include <tpfsdp/module.h>

namespace tpfsdp::capi {
namespace {

ModuleOptions options_of(const tpfsdp_module_options *given) {
  const auto read = read_options(given, "tpfsdp_module_options");
  ModuleOptions options;
  options.has_forward = as_bool(read.has_forward, true, "has_forward");
  if (read.class_name) options.class_name = read.class_name;
  const int64_t bases = as_count(read.base_name_count, read.base_names, "base_name_count");
  for (int64_t i = 0; i < bases; ++i) options.base_names.emplace_back(&required(read.base_names[i], "base_names[i]"));
  if (read.extra_repr) options.extra_repr = read.extra_repr;
  options.user = read.user;
  return options;
}

template <class Named>
tpfsdp_list *list_of(const std::vector<Named> &named) {
  std::vector<List::Entry> entries;
  for (const auto &[name, thing] : named) entries.emplace_back(name, Ref<Object>(thing));
  return owned<tpfsdp_list>(make<List>(std::move(entries)).get());
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_module_create(tpfsdp_context *context, const tpfsdp_module_options *options,
                                   tpfsdp_module **out_module, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    required(out_module, "out_module");
    const auto module = make<Module>(hold<Context>(context, "context"), options_of(options));
    *out_module = owned<tpfsdp_module>(module.get());
  });
}

tpfsdp_status tpfsdp_module_get_info(tpfsdp_module *module, tpfsdp_module_info *out_info,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    tpfsdp_module_info info{};
    info.training = m.training;
    info.grad_enabled = m.grad_enabled;
    info.has_forward = m.options().has_forward;
    info.is_fsdp = m.state != nullptr;
    info.id = m.id();
    info.context = borrowed<tpfsdp_context>(&m.context());
    info.class_name = m.options().class_name.c_str();
    info.name = m.path_for_caller();
    info.user = m.options().user;
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_module_describe(tpfsdp_module *module, tpfsdp_blob **out_text,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    required(out_text, "out_text");
    *out_text = owned<tpfsdp_blob>(make<Blob>(describe(m)).get());
  });
}

tpfsdp_status tpfsdp_module_add_module(tpfsdp_module *module, const char *name, tpfsdp_module *child,
                                       tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    m.add_module(&required(name, "name"), Ref<Module>(entry.get_or_null<Module>(child, "child")));
  });
}

tpfsdp_status tpfsdp_module_set_submodule(tpfsdp_module *module, const char *target, tpfsdp_module *child,
                                          tpfsdp_bool strict, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    m.set_submodule(&required(target, "target"), Ref<Module>(&entry.get<Module>(child, "child")),
                    as_bool(strict, "strict"));
  });
}

tpfsdp_status tpfsdp_module_get_submodule(tpfsdp_module *module, const char *target, tpfsdp_module **out_module,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &found = entry.get<Module>(module, "module").get_submodule(&required(target, "target"));
    required(out_module, "out_module") = borrowed<tpfsdp_module>(&found);
  });
}

tpfsdp_status tpfsdp_module_register_parameter(tpfsdp_module *module, const char *name, tpfsdp_param *param,
                                               tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    m.register_parameter(&required(name, "name"), Ref<Param>(entry.get_or_null<Param>(param, "param")));
  });
}

tpfsdp_status tpfsdp_module_get_parameter(tpfsdp_module *module, const char *target, tpfsdp_param **out_param,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Param &found = entry.get<Module>(module, "module").get_parameter(&required(target, "target"));
    required(out_param, "out_param") = borrowed<tpfsdp_param>(&found);
  });
}

tpfsdp_status tpfsdp_module_register_buffer(tpfsdp_module *module, const char *name, tpfsdp_tensor *tensor,
                                            tpfsdp_bool persistent, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    m.register_buffer(&required(name, "name"), tensor ? Ref<Tensor>(hold<Tensor>(tensor, "tensor")) : nullptr,
                      as_bool(persistent, "persistent"));
  });
}

tpfsdp_status tpfsdp_module_get_buffer(tpfsdp_module *module, const char *target, tpfsdp_tensor **out_tensor,
                                       tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Tensor &found = entry.get<Module>(module, "module").get_buffer(&required(target, "target"));
    required(out_tensor, "out_tensor") = borrowed<tpfsdp_tensor>(&found);
  });
}

tpfsdp_status tpfsdp_module_list_children(tpfsdp_module *module, tpfsdp_list **out_list,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    required(out_list, "out_list");
    *out_list = list_of(list_children(m));
  });
}

tpfsdp_status tpfsdp_module_list_modules(tpfsdp_module *module, const char *prefix, tpfsdp_bool remove_duplicates,
                                         tpfsdp_list **out_list, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    required(out_list, "out_list");
    *out_list = list_of(list_modules(m, prefix ? prefix : "", as_bool(remove_duplicates, "remove_duplicates")));
  });
}

tpfsdp_status tpfsdp_module_list_parameters(tpfsdp_module *module, tpfsdp_bool recurse, tpfsdp_list **out_list,
                                            tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    required(out_list, "out_list");
    *out_list = list_of(list_params(m, as_bool(recurse, "recurse")));
  });
}

tpfsdp_status tpfsdp_module_list_buffers(tpfsdp_module *module, tpfsdp_bool recurse, tpfsdp_list **out_list,
                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Module &m = entry.get<Module>(module, "module");
    required(out_list, "out_list");
    *out_list = list_of(list_buffers(m, as_bool(recurse, "recurse")));
  });
}

tpfsdp_status tpfsdp_module_train(tpfsdp_module *module, tpfsdp_bool mode, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    const bool training = as_bool(mode, "mode");
    for (const auto &[name, below] : list_modules(m, "", true)) below->training = training;
  });
}

tpfsdp_status tpfsdp_module_set_grad_enabled(tpfsdp_module *module, tpfsdp_bool enabled,
                                             tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    const bool grad_enabled = as_bool(enabled, "enabled");
    for (const auto &[name, below] : list_modules(m, "", true)) below->grad_enabled = grad_enabled;
  });
}

tpfsdp_status tpfsdp_module_set_requires_grad(tpfsdp_module *module, tpfsdp_bool requires_grad,
                                              tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    set_requires_grad(m, as_bool(requires_grad, "requires_grad"));
  });
}

tpfsdp_status tpfsdp_module_zero_grad(tpfsdp_module *module, tpfsdp_bool set_to_none,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Module &m = entry.get<Module>(module, "module");
    zero_gradients(m, as_bool(set_to_none, "set_to_none"));
  });
}

}  // extern "C"
