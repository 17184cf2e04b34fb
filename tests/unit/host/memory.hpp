// SPDX-License-Identifier: Apache-2.0
// What the backend under test holds, of either provider.
#ifndef TPFSDP_TESTS_UNIT_HOST_MEMORY_HPP
#define TPFSDP_TESTS_UNIT_HOST_MEMORY_HPP

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "services.hpp"

namespace host_test {

/// Memory of the shared files of this process, in blocks of 512 bytes.
inline int64_t shared_blocks() {
  std::map<ino_t, int64_t> blocks;
  for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status{};
    if (stat(entry.path().c_str(), &status) != 0) continue;
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().rfind("/memfd:tpfsdp", 0) == 0)
      blocks[status.st_ino] = status.st_blocks;
  }
  int64_t sum = 0;
  for (const auto &[inode, count] : blocks) sum += count;
  return sum;
}

inline int64_t held_bytes() {
  if (uses_shm()) return 512 * shared_blocks();
  const std::lock_guard<std::mutex> lock(heap().mutex);
  int64_t sum = 0;
  for (const auto &[data, bytes] : heap().live) sum += bytes;
  return sum;
}

/// At its end as much is held as at its beginning.
class MemoryCheck {
 public:
  ~MemoryCheck() { EXPECT_EQ(held_bytes(), before_) << "memory was left behind"; }

 private:
  const int64_t before_ = held_bytes();
};

}  // namespace host_test

#endif
