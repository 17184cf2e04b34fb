// SPDX-License-Identifier: Apache-2.0
// What a rank tells the driver: one line of JSON an event, written in one piece to standard output. That is a pipe,
// since a fault may limit the size of files or close every other descriptor.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

namespace kill_rank {

// As Python's time.monotonic_ns, on every process of the machine.
inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class Event {
 public:
  explicit Event(const std::string &name) : line_("{\"event\":" + quoted(name)) {}
  Event &add(const char *key, int64_t value) { return put(key, std::to_string(value)); }
  Event &add(const char *key, const std::string &text) { return put(key, quoted(text)); }
  void write() {
    line_ += "}\n";
    if (::write(STDOUT_FILENO, line_.data(), line_.size()) != static_cast<ssize_t>(line_.size())) abort();
  }

 private:
  Event &put(const char *key, const std::string &value) {
    line_ += "," + quoted(key) + ":" + value;
    return *this;
  }
  static std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (const char c : text) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
      const bool is_plain = c != '"' && c != '\\' && static_cast<unsigned char>(c) >= ' ';
      out += is_plain ? std::string(1, c) : std::string(escape);
    }
    return out + "\"";
  }

  std::string line_;
};

// Those above standard error.
inline std::vector<int> open_descriptors() {
  DIR *listing = opendir("/proc/self/fd");
  if (!listing) abort();
  std::vector<int> found;
  while (const dirent *entry = readdir(listing)) {
    const int descriptor = std::atoi(entry->d_name);
    if (descriptor > STDERR_FILENO && descriptor != dirfd(listing)) found.push_back(descriptor);
  }
  closedir(listing);
  return found;
}

inline int64_t count_mappings(const std::string &name) {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos;
  return count;
}

}  // namespace kill_rank
