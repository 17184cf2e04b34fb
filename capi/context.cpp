// SPDX-License-Identifier: Apache-2.0
#include "comm/context.hpp"

#include "comm/run_ranks.hpp"
#include "error.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/context.h>

#include <chrono>
#include <exception>

namespace tpfsdp::capi {
namespace {

using LogCallback = Callback<tpfsdp_log_args>;
using InterruptCallback = Callback<tpfsdp_interrupt_args>;
using ListeningCallback = Callback<tpfsdp_listening_args>;
using RankCallback = Callback<tpfsdp_rank_args>;

Log make_log(LogCallback callback, tpfsdp_log_level level) {
  if (level < TPFSDP_LOG_DEFAULT || level > TPFSDP_LOG_OFF)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "log_level is ", level, "; it is one of TPFSDP_LOG_*");
  const tpfsdp_log_level lowest = level == TPFSDP_LOG_DEFAULT ? TPFSDP_LOG_WARNING : level;
  if (!callback || lowest == TPFSDP_LOG_OFF) return {};
  return
      [callback = std::move(callback), lowest](int32_t rank, int32_t at, const char *component, const char *message) {
        if (at < lowest) return;
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        tpfsdp_log_args args{};
        args.struct_size = sizeof args;
        args.level = at;
        args.rank = rank;
        args.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
        args.component = component;
        args.message = message;
        callback(args);  // its status has nobody to go to
      };
}

Interrupt make_interrupt(InterruptCallback callback) {
  if (!callback) return {};
  return [callback = std::move(callback)](int32_t waited_ms, const char *operation, const char *unit) {
    tpfsdp_interrupt_args args{};
    args.struct_size = sizeof args;
    args.waited_ms = waited_ms;
    args.operation = operation;
    args.unit = unit;
    return callback(args);
  };
}

std::function<Status(const std::string &, int32_t)> make_listening(ListeningCallback callback) {
  if (!callback) return {};
  return [callback = std::move(callback)](const std::string &store, int32_t port) {
    tpfsdp_listening_args args{};
    args.struct_size = sizeof args;
    args.port = port;
    args.store = store.c_str();
    return callback(args);
  };
}

// The callbacks of the options. All are copied before one is refused, so that each is dropped in any case.
struct Callbacks {
  LogCallback log;
  InterruptCallback interrupt;
  ListeningCallback listening;

  explicit Callbacks(const tpfsdp_context_options &options) {
    std::exception_ptr refused;
    const auto copy = [&refused](auto &callback, const auto *record, const char *name) {
      try {
        if (record) callback = std::remove_reference_t<decltype(callback)>::copy_of(*record, name);
      } catch (const std::exception &) {
        if (!refused) refused = std::current_exception();
      }
    };
    copy(log, options.log, "log");
    copy(interrupt, options.interrupt, "interrupt");
    copy(listening, options.listening, "listening");
    if (refused) std::rethrow_exception(refused);
  }
};

std::string text_or(const char *text, const char *otherwise) { return text ? text : otherwise; }
int32_t or_default(int32_t value, int32_t otherwise) { return value == 0 ? otherwise : value; }

JoinOptions join_options(const tpfsdp_context_options &given, const Callbacks &callbacks) {
  JoinOptions options;
  options.rank.rank = given.rank;
  options.rank.arrival_timeout_ms = or_default(given.arrival_timeout_ms, options.rank.arrival_timeout_ms);
  options.rank.progress_timeout_ms = or_default(given.progress_timeout_ms, options.rank.progress_timeout_ms);
  options.rank.join_timeout_ms = or_default(given.join_timeout_ms, options.rank.join_timeout_ms);
  options.rank.event_capacity = given.event_capacity;
  options.rank.memory_budget_bytes = given.memory_budget_bytes;
  options.rank.log = make_log(callbacks.log, given.log_level);
  options.rank.interrupt = make_interrupt(callbacks.interrupt);
  options.listening = make_listening(callbacks.listening);
  options.world_size = given.world_size;
  options.backend = text_or(given.backend, "");
  options.store = text_or(given.store, "");
  options.group_name = text_or(given.name, "world");
  return options;
}

// What a rank's function gave as its failure: the error that it left, or only its status.
[[noreturn]] void fail_rank(int32_t rank, int32_t rank_count, Status status, tpfsdp_error *left) {
  if (left) {
    const Ref<Error> error(static_cast<Error *>(HandleTable::find_and_hold(left, Kind::kError).get()));
    HandleTable::release(left);
    if (error && error->detail().status == status) throw Failure(error->detail());
  }
  ErrorDetail detail;
  detail.status = status;
  detail.backend_code = status;
  detail.rank = rank;
  detail.operation = "run_ranks";
  detail.message = cat("rank ", rank, " of ", rank_count, ": its function returned status ", status,
                       " and left no error of that status");
  throw Failure(std::move(detail));
}

RankBody rank_body(RankCallback callback) {
  return [callback = std::move(callback)](int32_t rank, int32_t rank_count, const Ref<Context> &context) {
    tpfsdp_error *left = nullptr;
    tpfsdp_rank_args args{};
    args.struct_size = sizeof args;
    args.rank = rank;
    args.world_size = rank_count;
    args.context = borrowed<tpfsdp_context>(context.get());
    args.error = &left;
    const Status status = callback(args);
    if (status < 0) fail_rank(rank, rank_count, status, left);
    HandleTable::release(left);
  };
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_context_create(const tpfsdp_context_options *options, tpfsdp_context **out_context,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto given = read_options(options, "tpfsdp_context_options");
    const Callbacks callbacks(given);
    tpfsdp_context *&out = required(out_context, "out_context");
    out = owned<tpfsdp_context>(join(join_options(given, callbacks)).get());
  });
}

tpfsdp_status tpfsdp_context_run_ranks(int32_t rank_count, const tpfsdp_context_options *options,
                                       const tpfsdp_rank_callback *callback, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto body = RankCallback::copy_of(required(callback, "callback"), "callback");
    const auto given = read_options(options, "tpfsdp_context_options");
    const Callbacks callbacks(given);
    run_ranks(rank_count, join_options(given, callbacks), rank_body(body));
  });
}

tpfsdp_status tpfsdp_context_get_info(tpfsdp_context *context, tpfsdp_context_info *out_info,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Context>(context, "context");
    const Rank &rank = held->rank();
    tpfsdp_context_info info{};
    info.rank = rank.rank();
    info.world_size = rank.world_size();
    info.local_rank = rank.rank();  // all ranks are on this machine
    info.local_world_size = rank.world_size();
    info.arrival_timeout_ms = rank.options().arrival_timeout_ms;
    info.progress_timeout_ms = rank.options().progress_timeout_ms;
    info.event_capacity = rank.options().event_capacity;
    info.group = borrowed<tpfsdp_group>(&held->group());
    info.backend = rank.backend().name;
    info.backend_version = rank.backend().version;
    info.backend_report = rank.backend_report().c_str();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_context_set_interrupt(tpfsdp_context *context, const tpfsdp_interrupt_callback *callback,
                                           tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto copy = callback ? InterruptCallback::copy_of(*callback, "callback") : InterruptCallback();
    hold<Context>(context, "context")->rank().set_interrupt(make_interrupt(copy));
  });
}

tpfsdp_status tpfsdp_context_shutdown(tpfsdp_context *context, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<Context>(context, "context").shutdown();
  });
}

void tpfsdp_context_abort(tpfsdp_context *context, const char *reason) TPFSDP_NOEXCEPT {
  static_cast<void>(
      guard(nullptr, [&] { hold<Context>(context, "context")->abort(text_or(reason, "no reason given")); }));
}

}  // extern "C"
