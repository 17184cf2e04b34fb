// SPDX-License-Identifier: Apache-2.0
#include "comm/run_ranks.hpp"

#include "base/signals_blocked.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

namespace tpfsdp {
namespace {

// What a rank meets because another one failed.
bool is_consequence(Status status) {
  return status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_ABORTED || status == TPFSDP_ERR_PEER_LOST;
}

std::shared_ptr<const ErrorDetail> plain_detail(Status status, std::string message) {
  ErrorDetail detail;
  detail.status = status;
  detail.message = std::move(message);
  return std::make_shared<const ErrorDetail>(std::move(detail));
}

// What the threads of one run share.
class Run {
 public:
  Run(int32_t rank_count, const JoinOptions &options, const RankBody &body)
      : rank_count_(rank_count),
        options_(options),
        body_(body),
        backend_(choose_backend(options.backend, TPFSDP_BACKEND_CAN_USE_THREADS)),
        store_(make_local_store()),
        contexts_(static_cast<size_t>(rank_count)) {}

  void start();
  void join_all();
  void rethrow() const {
    if (failure_) throw Failure(failure_);
  }

 private:
  void rank_main(int32_t rank);
  void run_rank(int32_t rank);
  Ref<Context> join_rank(int32_t rank);
  void fail_run(int32_t rank, std::shared_ptr<const ErrorDetail> failure);
  void abort_all(const std::string &reason) noexcept;
  void forget(int32_t rank) noexcept;
  void ask_interrupt(int64_t waited_ms);

  const int32_t rank_count_;
  const JoinOptions &options_;
  const RankBody &body_;
  const BackendChoice backend_;
  const std::shared_ptr<Store> store_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable ended_;
  int32_t running_ = 0;
  bool is_stopping_ = false;
  std::string stop_reason_;
  std::shared_ptr<const ErrorDetail> failure_;
  std::vector<Ref<Context>> contexts_;
};

void Run::start() {
  const SignalsBlocked blocked;
  threads_.reserve(static_cast<size_t>(rank_count_));
  for (int32_t rank = 0; rank < rank_count_; ++rank) {
    {
      const std::lock_guard lock(mutex_);
      ++running_;
    }
    try {
      threads_.emplace_back([this, rank] { rank_main(rank); });
    } catch (const std::exception &error) {
      {
        const std::lock_guard lock(mutex_);
        --running_;
      }
      fail_run(rank, plain_detail(TPFSDP_ERR_OUT_OF_MEMORY,
                                  cat("no thread for rank ", rank, " of ", rank_count_, ": ", error.what())));
      return;
    }
  }
}

void Run::rank_main(int32_t rank) {
  // Also when the host ends its thread by pthread_exit, which unwinds through here.
  struct Leave {
    Run &run;
    int32_t rank;
    ~Leave() {
      run.forget(rank);
      const std::lock_guard lock(run.mutex_);
      --run.running_;
      run.ended_.notify_all();
    }
  } const leave{*this, rank};
  run_rank(rank);
}

void Run::run_rank(int32_t rank) {
  const auto report = [&](Status status, std::string_view what) {
    fail_run(rank, plain_detail(status, cat("rank ", rank, " of ", rank_count_, ": ", what)));
  };
  try {
    const Ref<Context> context = join_rank(rank);
    body_(rank, rank_count_, context);
    if (!context->rank().is_shut_down) context->shutdown();
  } catch (const Failure &failure) {
    fail_run(rank, failure.detail());
  } catch (const std::bad_alloc &) {
    report(TPFSDP_ERR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception &error) {
    report(TPFSDP_ERR_CALLBACK, cat("its function threw: ", error.what()));
  } catch (...) {
    // pthread_exit unwinds as something that is no C++ exception, and must go on.
    const bool ends_thread = std::current_exception() == nullptr;
    report(TPFSDP_ERR_CALLBACK, ends_thread ? "its function ended the thread" : "its function threw");
    if (ends_thread) throw;
  }
}

Ref<Context> Run::join_rank(int32_t rank) {
  JoinOptions mine = options_;
  mine.rank.rank = rank;
  mine.rank.world_size = rank_count_;
  // While it joins, a rank hears of another's failure only by this.
  mine.rank.interrupt = [this](int32_t, const char *, const char *) -> Status {
    const std::lock_guard lock(mutex_);
    return is_stopping_ ? TPFSDP_ERR_CANCELLED : TPFSDP_OK;
  };
  Ref<Context> context;
  try {
    context = join_store(mine, store_, backend_);
  } catch (const Failure &failure) {
    if (failure.status() != TPFSDP_ERR_CANCELLED) throw;
    fail(TPFSDP_ERR_ABORTED, "rank ", rank, " of ", rank_count_, " was stopped while it joined");
  }
  context->rank().set_interrupt({});
  const std::lock_guard lock(mutex_);
  contexts_[static_cast<size_t>(rank)] = context;
  if (is_stopping_) context->abort(stop_reason_);
  return context;
}

void Run::fail_run(int32_t rank, std::shared_ptr<const ErrorDetail> failure) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_first = !failure_ || (is_consequence(failure_->status) && !is_consequence(failure->status));
    if (is_first) failure_ = failure;
  }
  abort_all(cat("rank ", rank, " of ", rank_count_, " failed: ", failure->message));
}

void Run::abort_all(const std::string &reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_stopping_) stop_reason_ = reason;
  is_stopping_ = true;
  for (const Ref<Context> &context : contexts_) {
    if (context) context->abort(stop_reason_);
  }
}

void Run::forget(int32_t rank) noexcept {
  Ref<Context> context;
  const std::lock_guard lock(mutex_);
  std::swap(context, contexts_[static_cast<size_t>(rank)]);
}

void Run::ask_interrupt(int64_t waited_ms) {
  if (!options_.rank.interrupt) return;
  const Status answer =
      options_.rank.interrupt(static_cast<int32_t>(std::min<int64_t>(waited_ms, INT32_MAX)), "run_ranks", "");
  if (answer >= 0) return;
  ErrorDetail detail;
  detail.status = TPFSDP_ERR_CANCELLED;
  detail.backend_code = answer;
  detail.operation = "run_ranks";
  detail.message = cat("run_ranks of ", rank_count_, " ranks was cancelled by the host's interrupt, status ", answer);
  {
    const std::lock_guard lock(mutex_);
    if (!failure_ || is_consequence(failure_->status))
      failure_ = std::make_shared<const ErrorDetail>(std::move(detail));
  }
  abort_all("cancelled by the host's interrupt");
}

void Run::join_all() {
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    if (ended_.wait_for(lock, std::chrono::milliseconds(100)) != std::cv_status::timeout || is_stopping_) continue;
    lock.unlock();
    const auto waited = std::chrono::steady_clock::now() - began;
    ask_interrupt(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count());
    lock.lock();
  }
  lock.unlock();
  for (std::thread &thread : threads_) thread.join();
}

}  // namespace

void run_ranks(int32_t rank_count, JoinOptions options, const RankBody &body) {
  if (rank_count < 1) fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank_count is ", rank_count, "; it is at least 1");
  options.rank.rank = 0;
  check_options(options.rank, rank_count);
  Run run(rank_count, options, body);
  run.start();
  run.join_all();
  run.rethrow();
}

}  // namespace tpfsdp
