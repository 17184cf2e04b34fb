// SPDX-License-Identifier: Apache-2.0
// The C ABI for tests in C++: statuses become exceptions that carry code, rank and text; handles release themselves.
#pragma once

#include "support/processes.hpp"

#include <tpfsdp/tpfsdp.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace api {

struct Error : std::runtime_error {
  Error(tpfsdp_status code, int32_t at, const std::string &text) : std::runtime_error(text), status(code), rank(at) {}
  tpfsdp_status status;
  int32_t rank;  // at fault, -1 unknown
};

// Called, where a test sets it, before and after every call of the library on this thread.
inline thread_local void (*around_call)(bool begins) = nullptr;

// check([&](tpfsdp_error **e) { return tpfsdp_x(..., e); }): the status, which is not negative.
template <class Call>
tpfsdp_status check(Call &&call) {
  tpfsdp_error *error = nullptr;
  if (around_call) around_call(true);
  const tpfsdp_status status = call(&error);
  if (around_call) around_call(false);
  if (status >= 0) return status;
  tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
  const int32_t rank = tpfsdp_error_get_info(error, &info) == TPFSDP_OK ? info.rank : -1;
  Error failure(status, rank, tpfsdp_error_message(error));
  tpfsdp_handle_release(error);
  throw failure;
}

template <class Handle>
struct Release {
  void operator()(Handle *handle) const { tpfsdp_handle_release(handle); }
};
template <class Handle>
using Owned = std::unique_ptr<Handle, Release<Handle>>;

#define API(function, ...) ::api::check([&](tpfsdp_error **api_error) { return function(__VA_ARGS__, api_error); })

// The shape is borrowed.
inline tpfsdp_view view(void *data, tpfsdp_dtype dtype, std::vector<int64_t> &&shape) = delete;
inline tpfsdp_view view(void *data, tpfsdp_dtype dtype, const std::vector<int64_t> &shape) {
  tpfsdp_view out{};
  API(tpfsdp_tensor_view_init, &out, data, dtype, shape.data(), static_cast<int32_t>(shape.size()));
  return out;
}

inline void run_processes(int32_t world, const std::function<void(tpfsdp_context *, int32_t)> &body,
                          const tpfsdp_context_options &options) {
  const auto run = [&](tpfsdp_context *context, int32_t rank) -> processes::Ending {
    try {
      body(context, rank);
      return {};
    } catch (const Error &error) {
      return {error.status, error.rank, error.what()};
    }
  };
  const processes::Ending end = processes::run(world, options, run, processes::OnFailure::kAbort);
  if (end.status < 0) throw Error(end.status, end.at_fault, end.text);
}

// Runs `body(context, rank)` as `world` ranks, which are threads or processes. What a body throws is thrown again here:
// an Error of the library as such, others with their text.
inline void run_ranks(int32_t world, const std::function<void(tpfsdp_context *, int32_t)> &body,
                      tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options)) {
  if (ranks_are_processes()) return run_processes(world, body, options);
  struct Job {
    const std::function<void(tpfsdp_context *, int32_t)> &body;
    std::vector<std::exception_ptr> thrown;
  } job{body, std::vector<std::exception_ptr>(static_cast<size_t>(world))};
  tpfsdp_rank_callback callback{};
  callback.user = &job;
  callback.call = [](void *user, const tpfsdp_rank_args *args) -> tpfsdp_status {
    auto *all = static_cast<Job *>(user);
    try {
      all->body(args->context, args->rank);
      return TPFSDP_OK;
    } catch (const Error &error) {
      all->thrown[static_cast<size_t>(args->rank)] = std::current_exception();
      return error.status;
    } catch (...) {
      all->thrown[static_cast<size_t>(args->rank)] = std::current_exception();
      return TPFSDP_ERR_CALLBACK;
    }
  };
  tpfsdp_error *error = nullptr;
  const tpfsdp_status status = tpfsdp_context_run_ranks(world, &options, &callback, &error);
  tpfsdp_handle_release(error);
  if (status >= 0) return;
  for (const std::exception_ptr &thrown : job.thrown) {
    // Others were aborted by the first failure: prefer what started it.
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error &failure) {
      if (failure.status != TPFSDP_ERR_ABORTED && failure.status != TPFSDP_ERR_PEER_LOST) throw;
    }
  }
  throw std::runtime_error("run_ranks failed with status " + std::to_string(status));
}

// What TPFSDP_TEST_MODE asks of every tree whose test does not say how it unshards: the suites "shared" and "mapped".
inline tpfsdp_unshard_mode unshard_mode_of_suite() {
  const char *const mode = std::getenv("TPFSDP_TEST_MODE");
  if (!mode || *mode == '\0' || std::string(mode) == "private") return TPFSDP_UNSHARD_AUTO;
  if (std::string(mode) == "shared") return TPFSDP_UNSHARD_SHARED;
  if (std::string(mode) == "mapped") return TPFSDP_UNSHARD_MAPPED;
  throw std::runtime_error("TPFSDP_TEST_MODE is " + std::string(mode) + "; shared or mapped is needed");
}

// Where full values are mapped there are none.
inline int32_t slots_of_suite(int64_t otherwise) {
  return unshard_mode_of_suite() == TPFSDP_UNSHARD_MAPPED ? 0 : static_cast<int32_t>(otherwise);
}

// Of tests that are about a copy per rank, in every suite.
inline tpfsdp_fully_shard_options privately() {
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  options.unshard_mode = TPFSDP_UNSHARD_PRIVATE;
  return options;
}

// One tree of modules on one rank.
class Tree {
 public:
  explicit Tree(tpfsdp_context *context) : context_(context), root(module()) {}

  tpfsdp_module *module(const char *class_name = "Module", bool has_forward = true) {
    tpfsdp_module_options options = TPFSDP_INIT(tpfsdp_module_options);
    options.class_name = class_name;
    options.has_forward = has_forward ? TPFSDP_TOGGLE_ON : TPFSDP_TOGGLE_OFF;
    tpfsdp_module *made = nullptr;
    API(tpfsdp_module_create, context_, &options, &made);
    modules_.emplace_back(made);
    return made;
  }
  tpfsdp_module *child(tpfsdp_module *parent, const std::string &name) {
    tpfsdp_module *made = module();
    API(tpfsdp_module_add_module, parent, name.c_str(), made);
    return made;
  }
  // Values are copied into memory of the tree, which lives as long as it does.
  template <class T>
  tpfsdp_param *param(tpfsdp_module *owner, const std::string &name, tpfsdp_dtype dtype,
                      const std::vector<int64_t> &shape, const std::vector<T> &values, bool trainable = true) {
    auto memory = std::make_shared<std::vector<T>>(values);
    memories_.push_back(memory);
    const tpfsdp_view whole = view(memory->data(), dtype, shape);
    tpfsdp_param *made = nullptr;
    API(tpfsdp_param_create, &whole, trainable ? 1 : 0, &made);
    params_.emplace_back(made);
    API(tpfsdp_module_register_parameter, owner, name.c_str(), made);
    return made;
  }
  void shard(std::vector<tpfsdp_module *> modules, tpfsdp_reshard_kind reshard = TPFSDP_RESHARD_AUTO,
             tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options),
             tpfsdp_mesh *mesh = nullptr) {
    options.reshard_after_forward.kind = reshard;
    if (options.unshard_mode == TPFSDP_UNSHARD_AUTO) options.unshard_mode = unshard_mode_of_suite();
    API(tpfsdp_fully_shard, modules.data(), static_cast<int64_t>(modules.size()), mesh, &options);
  }

 private:
  tpfsdp_context *context_;
  std::vector<Owned<tpfsdp_module>> modules_;
  std::vector<Owned<tpfsdp_param>> params_;
  std::vector<std::shared_ptr<void>> memories_;

 public:
  tpfsdp_module *root;
};

inline tpfsdp_view face(tpfsdp_param *param, tpfsdp_face which) {
  tpfsdp_view out{};
  API(tpfsdp_param_get_view, param, which, &out);
  return out;
}
inline bool has_grad(tpfsdp_param *param) {
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  API(tpfsdp_param_get_info, param, &info);
  return info.has_grad != 0;
}
inline int64_t count_of(const tpfsdp_view &view) {
  int64_t count = 1;
  for (int32_t d = 0; d < view.ndim; ++d) count *= view.shape[d];
  return count;
}
template <class T>
std::vector<T> values_of(const tpfsdp_view &view) {
  const T *data = static_cast<const T *>(view.data);
  return std::vector<T>(data, data + count_of(view));
}

inline tpfsdp_counters counters(tpfsdp_context *context) {
  tpfsdp_counters out = TPFSDP_INIT(tpfsdp_counters);
  API(tpfsdp_trace_get_counters, context, 0, &out);
  return out;
}
inline tpfsdp_memory_info memory(tpfsdp_module *root) {
  tpfsdp_memory_info out = TPFSDP_INIT(tpfsdp_memory_info);
  API(tpfsdp_root_get_memory_info, root, &out);
  return out;
}
inline tpfsdp_unit_info unit_info(tpfsdp_module *module) {
  tpfsdp_unit *unit = nullptr;
  API(tpfsdp_fsdp_module_get_unit, module, 0, &unit);
  tpfsdp_unit_info out = TPFSDP_INIT(tpfsdp_unit_info);
  API(tpfsdp_unit_get_info, unit, &out);
  return out;
}

}  // namespace api
