// SPDX-License-Identifier: Apache-2.0
// What strikes the victim, and how its peers behave meanwhile. Each fault strikes once, at the phase that the plan
// names.
#pragma once

#include "kill/events.hpp"

#include <tpfsdp/tpfsdp.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>
#include <utility>

namespace kill_rank {

constexpr std::chrono::milliseconds kLate{300}, kLateAfterClose{1000};
constexpr std::chrono::seconds kVeryLate{90};
constexpr rlim_t kSpareBytes = 4 << 20;
constexpr const char *kHostFile = "kill-host";
constexpr off_t kHostFileBytes = 16 << 20;  // more than the library's

struct Plan {
  std::string fault, phase;
  int32_t victim = 0, rank = 0;
  bool is_victim() const { return rank == victim; }
};

// The host gives up a step that it has reported as failed.
struct StepGivenUp {};

// A file of the host, which has taken a number that was the library's.
struct HostFile {
  int descriptor;
  ino_t inode;
};

class Faults {
 public:
  explicit Faults(Plan plan) : plan_(std::move(plan)) {}

  // Lent by the rank while they live; null before and after.
  tpfsdp_context *context = nullptr;
  tpfsdp_module *root = nullptr;

  void at(const std::string &phase) {
    if (phase != plan_.phase || std::exchange(has_struck_, true)) return;
    if (plan_.is_victim())
      strike();
    else if (plan_.fault == "interrupt")
      std::this_thread::sleep_for(kLate);
  }

  // What the interrupt callback answers.
  tpfsdp_status interrupt() {
    if (!std::exchange(is_interrupted_, false)) return TPFSDP_OK;
    tell();
    return -1;
  }

  // The wrong statuses that a forked child met, or minus its signal; 0 without one.
  int64_t child_faults() const {
    if (child_ == 0) return 0;
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  bool has_host_files() const { return !host_files_.empty(); }

  // Closes the host's files. How many of them were closed, or replaced, by somebody else.
  int64_t take_back_host_files() {
    int64_t lost = 0;
    for (const HostFile &file : host_files_) {
      struct stat now{};
      const bool is_here = fstat(file.descriptor, &now) == 0 && now.st_ino == file.inode;
      lost += !is_here;
      if (is_here) close(file.descriptor);
    }
    host_files_.clear();
    return lost;
  }

 private:
  static void tell() { Event("fired").add("at", now_ns()).write(); }

  void strike() {
    const std::string &fault = plan_.fault;
    if (fault == "interrupt") {
      is_interrupted_ = true;  // told when the library asks
      return;
    }
    if (fault == "close" || fault == "reopen") return close_all();
    tell();
    if (fault == "kill") raise(SIGKILL);
    if (fault == "stop") raise(SIGSTOP);
    if (fault == "exit") _exit(0);
    if (fault == "exception") throw std::runtime_error("the host's exception, which nobody catches");
    if (fault == "error") fail_step();
    if (fault == "slow") std::this_thread::sleep_for(kLate);
    if (fault == "slow90") std::this_thread::sleep_for(kVeryLate);
    if (fault == "memory") limit_memory();
    if (fault == "fork") child_ = fork_child();
  }

  [[noreturn]] void fail_step() const {
    if (tpfsdp_root_fail(root, "the host's own failure", nullptr) != TPFSDP_OK)
      throw std::logic_error("root_fail was refused");
    throw StepGivenUp();
  }

  // From here on the next allocation fails, of shared memory and of private memory.
  static void limit_memory() {
    const auto limit = [](auto resource, rlim_t bytes) {
      const rlimit both{bytes, bytes};
      if (setrlimit(resource, &both) != 0) throw std::runtime_error("setrlimit is refused");
    };
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit(RLIMIT_AS, pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kSpareBytes);
    limit(RLIMIT_FSIZE, own_file_bytes());
  }

  // Of the file in which this rank's regions lie: the one that carries a lock of this process. 0 before there is one.
  static rlim_t own_file_bytes() {
    for (const int descriptor : open_descriptors()) {
      std::ifstream information("/proc/self/fdinfo/" + std::to_string(descriptor));
      struct stat status{};
      for (std::string line; std::getline(information, line);)
        if (line.rfind("lock:", 0) == 0 && fstat(descriptor, &status) == 0) return static_cast<rlim_t>(status.st_size);
    }
    return 0;
  }

  void close_all() {
    const std::vector<int> theirs = open_descriptors();
    tell();
    for (const int descriptor : theirs) close(descriptor);
    for (const int descriptor : theirs) {
      struct stat status{};
      const int file = memfd_create(kHostFile, MFD_CLOEXEC);
      const bool is_moved = file == descriptor || (dup3(file, descriptor, O_CLOEXEC) == descriptor && close(file) == 0);
      if (!is_moved || ftruncate(descriptor, kHostFileBytes) != 0 || fstat(descriptor, &status) != 0)
        throw std::runtime_error("no file of the host's own");
      host_files_.push_back({descriptor, status.st_ino});
    }
    if (plan_.fault == "close") std::this_thread::sleep_for(kLateAfterClose);
  }

  pid_t fork_child() const {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork is refused");
    if (child == 0) _exit(live_as_child());
    return child;
  }

  // How many calls answered anything but FORKED.
  int live_as_child() const {
    int wrong = 0;
    const auto expect_forked = [&](tpfsdp_status status) { wrong += status != TPFSDP_ERR_FORKED; };
    if (context) {
      tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
      expect_forked(tpfsdp_context_get_info(context, &info, nullptr));
      expect_forked(tpfsdp_context_shutdown(context, nullptr));
    }
    if (root) {
      expect_forked(tpfsdp_module_pre_forward(root, nullptr));
      expect_forked(tpfsdp_module_end_backward(root, nullptr));
      expect_forked(tpfsdp_fsdp_module_reset_iter_state(root, nullptr));
      expect_forked(tpfsdp_root_fail(root, "in a child", nullptr));
      tpfsdp_handle_release(root);
    }
    tpfsdp_handle_release(context);
    return wrong;
  }

  const Plan plan_;
  bool has_struck_ = false;
  bool is_interrupted_ = false;
  pid_t child_ = 0;
  std::vector<HostFile> host_files_;
};

}  // namespace kill_rank
