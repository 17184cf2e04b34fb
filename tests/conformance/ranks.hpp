// SPDX-License-Identifier: Apache-2.0
// Ranks for tests through the C ABI: threads of the library (run_ranks) or of the host (a local store), or processes
// instead of either; and errors that release themselves.
#pragma once

#include "support/processes.hpp"

#include <gtest/gtest.h>
#include <tpfsdp/tpfsdp.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ranks {

// Takes the error of one call: `Error e; status = f(..., &e);`
class Error {
 public:
  Error() = default;
  Error(const Error &) = delete;
  Error &operator=(const Error &) = delete;
  ~Error() { tpfsdp_handle_release(error_); }
  tpfsdp_error **operator&() {
    tpfsdp_handle_release(error_);
    error_ = nullptr;
    return &error_;
  }
  std::string text() const { return tpfsdp_error_message(error_); }
  tpfsdp_error_info info() const {
    tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
    EXPECT_EQ(tpfsdp_error_get_info(error_, &info), TPFSDP_OK);
    return info;
  }
  tpfsdp_error *get() const { return error_; }

 private:
  tpfsdp_error *error_ = nullptr;
};

struct Rank {
  int32_t rank;
  int32_t world;
  tpfsdp_context *context;
  tpfsdp_group *group;
};

inline tpfsdp_group *group_of(tpfsdp_context *context) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  EXPECT_EQ(tpfsdp_context_get_info(context, &info, nullptr), TPFSDP_OK);
  return info.group;
}

using Body = std::function<tpfsdp_status(const Rank &)>;

inline tpfsdp_status call_body(void *user, const tpfsdp_rank_args *args) {
  const auto &body = *static_cast<const Body *>(user);
  return body({args->rank, args->world_size, args->context, group_of(args->context)});
}

inline tpfsdp_status run_processes(int32_t world, const Body &body, const tpfsdp_context_options &options,
                                   processes::OnFailure on_failure) {
  const auto run = [&](tpfsdp_context *context, int32_t rank) -> processes::Ending {
    const tpfsdp_status status = body({rank, world, context, group_of(context)});
    return {status, -1, "its function gave status " + std::to_string(status)};
  };
  return processes::run(world, options, run, on_failure).status;
}

// On threads of the library: a rank that fails aborts the others.
inline tpfsdp_status run_library(int32_t world, const Body &body, tpfsdp_context_options options = {},
                                 tpfsdp_error **error = nullptr) {
  if (ranks_are_processes()) return run_processes(world, body, options, processes::OnFailure::kAbort);
  options.struct_size = sizeof options;
  const tpfsdp_rank_callback callback = {call_body, const_cast<Body *>(&body), nullptr};
  return tpfsdp_context_run_ranks(world, &options, &callback, error);
}

// On threads of the host; contexts are released, and shut down before if the body gave OK.
inline tpfsdp_status run_host(int32_t world, const Body &body, tpfsdp_context_options options = {}) {
  if (ranks_are_processes()) return run_processes(world, body, options, processes::OnFailure::kLeave);
  static std::atomic<int> job{0};
  const std::string store = "local:test" + std::to_string(job++);
  std::atomic<tpfsdp_status> first{TPFSDP_OK};
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      tpfsdp_context_options mine = options;
      mine.struct_size = sizeof mine;
      mine.rank = rank;
      mine.world_size = world;
      mine.store = store.c_str();
      tpfsdp_context *context = nullptr;
      tpfsdp_status status = tpfsdp_context_create(&mine, &context, nullptr);
      if (status == TPFSDP_OK) status = body({rank, world, context, group_of(context)});
      if (status == TPFSDP_OK) status = tpfsdp_context_shutdown(context, nullptr);
      tpfsdp_status none = TPFSDP_OK;
      if (status != TPFSDP_OK) first.compare_exchange_strong(none, status);
      tpfsdp_handle_release(context);
    });
  }
  for (std::thread &thread : threads) thread.join();
  return first;
}

// A flat view; the count must live as long as the view.
inline tpfsdp_view view(const void *data, tpfsdp_dtype dtype, const int64_t &count) {
  tpfsdp_view view;
  EXPECT_EQ(tpfsdp_tensor_view_init(&view, const_cast<void *>(data), dtype, &count, 1, nullptr), TPFSDP_OK);
  return view;
}

inline tpfsdp_counters counters(tpfsdp_context *context, bool reset) {
  tpfsdp_counters counters = TPFSDP_INIT(tpfsdp_counters);
  EXPECT_EQ(tpfsdp_trace_get_counters(context, reset ? 1 : 0, &counters, nullptr), TPFSDP_OK);
  return counters;
}

}  // namespace ranks
