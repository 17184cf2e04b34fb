// SPDX-License-Identifier: Apache-2.0
// For the tests of stores: directories that go away, child processes, counts of descriptors, keys that are hard to
// name.
#pragma once

#include "comm/recorder.hpp"
#include "comm/store.hpp"
#include "unit/comm/refusal.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace tpfsdp {

inline int64_t in_seconds(int64_t seconds) { return monotonic_ns() + seconds * 1'000'000'000; }

// Waits for what a thread or process does by itself; a test that waits for long has failed.
template <class Condition>
bool becomes_true(Condition &&condition) {
  for (const int64_t end = in_seconds(60); monotonic_ns() < end; usleep(1000))
    if (condition()) return true;
  return false;
}

inline size_t entries_of(const std::string &directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}
inline size_t open_descriptors() { return entries_of("/proc/self/fd"); }

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(testing::TempDir() + "/tpfsdp-test-XXXXXX") {
    if (!mkdtemp(path_.data())) ADD_FAILURE() << path_;
  }
  TemporaryDirectory(const TemporaryDirectory &) = delete;
  TemporaryDirectory &operator=(const TemporaryDirectory &) = delete;
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string &name) const { return path_ + "/" + name; }
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

// One test of this program in a process of its own. The test does nothing in the parent, where its variables are unset.
class Child {
 public:
  Child(const std::string &test, const std::map<std::string, std::string> &variables) {
    const std::string filter = "--gtest_filter=" + test;
    std::vector<std::string> texts;
    for (char **variable = environ; *variable; ++variable)
      if (!std::string_view(*variable).starts_with("GTEST_")) texts.emplace_back(*variable);
    for (const auto &[name, value] : variables) texts.push_back(name + "=" + value);
    std::vector<char *> environment;
    for (std::string &text : texts) environment.push_back(text.data());
    environment.push_back(nullptr);
    char *const arguments[] = {const_cast<char *>("child"), const_cast<char *>(filter.c_str()), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  Child(const Child &) = delete;
  Child &operator=(const Child &) = delete;
  ~Child() {
    if (pid_ > 0) kill();
  }

  void signal(int number) const { ::kill(pid_, number); }
  void stop() const {  // until SIGCONT
    signal(SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void kill() {
    signal(SIGKILL);
    wait();
  }
  int wait() {  // its exit status
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
};

// The variable that tells a child's test what to do; nullptr in the parent. The child does not outlive its parent.
inline const char *task(const char *name) {
  const char *value = std::getenv(name);
  if (value) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return value;
}

// Lowers a limit of the process for a while.
class Limit {
 public:
  Limit(decltype(RLIMIT_NOFILE) resource, rlim_t soft) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit lowered{soft, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &lowered), 0);
  }
  Limit(const Limit &) = delete;
  Limit &operator=(const Limit &) = delete;
  ~Limit() { setrlimit(resource_, &before_); }

 private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

// Each with a value of its own.
inline std::vector<std::string> difficult_keys() {
  return {"",
          "/",
          ".",
          "..",
          "../../up",
          "a/b",
          "/etc/x",
          "a b\n",
          "%2F",
          "\xff\xfe",
          "schl\xc3\xbcssel",
          std::string("\0", 1),
          std::string("a\0b", 3),
          std::string("a\0c", 3),
          std::string(255, 'n'),
          std::string(kMaxStoreKeyBytes, 'k'),
          "tpfsdp-lock",
          std::string(kMaxStoreKeyBytes - 1, 'k')};
}

// What every store does.
inline void check_contract(Store &store) {
  store.set("a", std::string("x\0y", 3));
  EXPECT_EQ(store.get("a", 0), std::string("x\0y", 3));
  store.set("a", "z");
  EXPECT_EQ(store.find("a", 0), "z");
  store.set("a", "");
  EXPECT_EQ(store.find("a", INT64_MAX), "");
  EXPECT_EQ(store.add("n", 3), 3);
  EXPECT_EQ(store.add("n", -4), -1);
  EXPECT_EQ(store.find("n", 0), std::nullopt);  // sums are no values
  EXPECT_EQ(store.add("a", 7), 7);
  EXPECT_EQ(store.find("a", 0), "");

  const std::vector<std::string> keys = difficult_keys();
  for (size_t i = 0; i < keys.size(); ++i) store.set(keys[i], std::to_string(i));
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(store.find(keys[i], 0), std::to_string(i)) << i;

  std::string largest(kMaxStoreValueBytes, '\0');
  for (size_t i = 0; i < largest.size(); ++i) largest[i] = static_cast<char>(i * 7 + i / 256);
  store.set("largest", largest);
  EXPECT_EQ(store.find("largest", 0), largest);

  const std::string long_key(kMaxStoreKeyBytes + 1, 'k');
  const std::string text =
      refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store.set("b", std::string(kMaxStoreValueBytes + 1, 'v')); });
  EXPECT_EQ(text, "a value for the store has 1048577 bytes; at most 1048576 are held");
  EXPECT_EQ(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store.set(long_key, ""); }),
            "a key of the store has 4097 bytes; at most 4096 are held");
  refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store.find(long_key, 0); });
  refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store.add(long_key, 1); });
  EXPECT_EQ(store.find("b", 0), std::nullopt);

  EXPECT_EQ(store.add("most", INT64_MAX), INT64_MAX);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store.add("most", 1); }), "range of int64"));
  EXPECT_EQ(store.add("most", -1), INT64_MAX - 1);

  const int64_t began = monotonic_ns();
  EXPECT_EQ(store.find("never", began + 30'000'000), std::nullopt);
  EXPECT_GE(monotonic_ns() - began, 30'000'000);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_TIMEOUT, [&] { store.get("never", INT64_MIN); }), "never"));
}

}  // namespace tpfsdp
