// SPDX-License-Identifier: Apache-2.0
// Ranks of a test as processes: forked from the test's own, which has one thread, joined by a store in a private
// directory. What a rank ends with and what its assertions found comes back to the test.
#pragma once

#include <gtest/gtest.h>
#include <tpfsdp/tpfsdp.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

// Of the leak checker, where a sanitizer brings one: _exit goes past it.
extern "C" void __lsan_do_leak_check() __attribute__((weak));

// What the ranks of this run of the test are: TPFSDP_TEST_RANKS=processes, or threads.
inline bool ranks_are_processes() {
  static const char *const ranks = std::getenv("TPFSDP_TEST_RANKS");
  return ranks && std::string(ranks) == "processes";
}

namespace processes {

// How a rank ended.
struct Ending {
  tpfsdp_status status = TPFSDP_OK;
  int32_t at_fault = -1;
  std::string text;
};
using Body = std::function<Ending(tpfsdp_context *, int32_t)>;

// What a rank that fails does to the others: aborts them, as run_ranks of the library, or leaves without a word.
enum class OnFailure { kAbort, kLeave };

constexpr std::chrono::seconds kLimit{60};
constexpr int kAssertionsFailed = 2;  // exit code; 1 is that of the sanitizers

// What a rank sends; written in one piece, since it is shorter than PIPE_BUF.
struct Report {
  int32_t rank;
  tpfsdp_status status;
  int32_t at_fault;
  char text[2048];
};

class Directory {
 public:
  Directory() : path_(testing::TempDir() + "tpfsdp-ranks-XXXXXX") {
    if (!mkdtemp(path_.data())) throw std::runtime_error("no directory " + path_ + ": " + std::strerror(errno));
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory &) = delete;
  Directory &operator=(const Directory &) = delete;
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

inline int thread_count() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  throw std::runtime_error("/proc/self/status tells no number of threads");
}

inline int failed_assertions() {
  const testing::TestResult &result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int i = 0; i < result.total_part_count(); ++i) failed += result.GetTestPartResult(i).failed();
  return failed;
}

inline Ending live(const tpfsdp_context_options &options, const Body &body, OnFailure on_failure) {
  tpfsdp_error *error = nullptr;
  const auto take_error = [&](tpfsdp_status status) {
    tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
    const bool is_known = tpfsdp_error_get_info(error, &info) == TPFSDP_OK;
    Ending end{status, is_known ? info.rank : -1, tpfsdp_error_message(error)};
    tpfsdp_handle_release(error);
    return end;
  };
  tpfsdp_context *context = nullptr;
  const tpfsdp_status joined = tpfsdp_context_create(&options, &context, &error);
  if (joined < 0) return take_error(joined);
  Ending end;
  try {
    end = body(context, options.rank);
  } catch (const std::exception &thrown) {
    end = {TPFSDP_ERR_CALLBACK, -1, thrown.what()};
  }
  if (end.status >= 0) {
    const tpfsdp_status closed = tpfsdp_context_shutdown(context, &error);
    if (closed < 0) end = take_error(closed);
  }
  if (end.status < 0 && on_failure == OnFailure::kAbort)
    tpfsdp_context_abort(context, ("rank " + std::to_string(options.rank) + " failed: " + end.text).c_str());
  tpfsdp_handle_release(context);
  return end;
}

[[noreturn]] inline void run_rank(const tpfsdp_context_options &options, const Body &body, OnFailure on_failure,
                                  pid_t parent, int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kAssertionsFailed);
  const int failed_before = failed_assertions();
  const Ending end = live(options, body, on_failure);
  Report report{options.rank, end.status, end.at_fault, {}};
  std::strncpy(report.text, end.text.c_str(), sizeof report.text - 1);
  if (write(pipe, &report, sizeof report) != sizeof report) std::perror("a rank cannot report");
  if (__lsan_do_leak_check) __lsan_do_leak_check();
  std::fflush(nullptr);
  _exit(failed_assertions() == failed_before ? 0 : kAssertionsFailed);
}

// Adds what the ranks report, in the order in which they end. False: after the limit not all had ended.
inline bool take_reports(int pipe, std::vector<Report> &reports) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable{pipe, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) return false;
    Report report;
    if (read(pipe, &report, sizeof report) != sizeof report) return true;
    reports.push_back(report);
  }
}

inline void expect_ended_well(pid_t process, int32_t rank, int32_t world, bool in_time, bool has_reported) {
  int status = 0;
  if (!in_time) kill(process, SIGKILL);
  waitpid(process, &status, 0);
  const std::string who = "rank " + std::to_string(rank) + " of " + std::to_string(world);
  if (WIFSIGNALED(status)) {
    ADD_FAILURE() << who << " was ended by signal " << WTERMSIG(status)
                  << (in_time ? "" : ": it had not ended in time");
  } else if (WEXITSTATUS(status) == kAssertionsFailed) {
    ADD_FAILURE() << who << " has failures, which are printed above";
  } else if (WEXITSTATUS(status) != 0) {
    ADD_FAILURE() << who << " ended with code " << WEXITSTATUS(status);
  } else if (!has_reported) {
    ADD_FAILURE() << who << " ended the process in the middle of the test";
  }
}

// What a rank meets because another one failed.
inline bool is_consequence(tpfsdp_status status) {
  return status == TPFSDP_ERR_REMOTE || status == TPFSDP_ERR_ABORTED || status == TPFSDP_ERR_PEER_LOST;
}

// The first failure that is none's consequence, else the first, else OK.
inline Ending first_failure(const std::vector<Report> &reports) {
  const Report *first = nullptr;
  for (const Report &report : reports) {
    if (report.status >= 0) continue;
    if (!first || (is_consequence(first->status) && !is_consequence(report.status))) first = &report;
  }
  return first ? Ending{first->status, first->at_fault, first->text} : Ending{};
}

// Runs body(context, rank) as `world` processes; rank, world_size and store of `options` are set here.
inline Ending run(int32_t world, tpfsdp_context_options options, const Body &body, OnFailure on_failure) {
  if (thread_count() != 1) throw std::logic_error("a process with several threads cannot be forked into ranks");
  const Directory directory;
  const std::string store = "file:" + directory.path();
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) throw std::runtime_error(std::string("no pipe: ") + std::strerror(errno));
  options.struct_size = sizeof options;
  options.world_size = world;
  options.store = store.c_str();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  std::vector<pid_t> ranks;
  for (options.rank = 0; options.rank < world; ++options.rank) {
    const pid_t process = fork();
    if (process == 0) run_rank(options, body, on_failure, parent, pipe[1]);
    if (process < 0) throw std::runtime_error(std::string("no process for a rank: ") + std::strerror(errno));
    ranks.push_back(process);
  }
  close(pipe[1]);
  std::vector<Report> reports;
  const bool in_time = take_reports(pipe[0], reports);
  close(pipe[0]);
  for (int32_t rank = 0; rank < world; ++rank) {
    const bool has_reported =
        std::any_of(reports.begin(), reports.end(), [&](const Report &report) { return report.rank == rank; });
    expect_ended_well(ranks[static_cast<size_t>(rank)], rank, world, in_time, has_reported);
  }
  return first_failure(reports);
}

}  // namespace processes
