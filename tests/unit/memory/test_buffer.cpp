// SPDX-License-Identifier: Apache-2.0
// Buffers: zero, page-aligned, present before they are used, entered in their account.
#include "memory/buffer.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tpfsdp {
namespace {

TEST(Alignment, SmallAndLarge) {
  EXPECT_EQ(alignment_for(0), 64);
  EXPECT_EQ(alignment_for(65535), 64);
  EXPECT_EQ(alignment_for(65536), 256);
  EXPECT_EQ(align_up(0, 64), 0);
  EXPECT_EQ(align_up(1, 64), 64);
  EXPECT_EQ(align_up(64, 64), 64);
  EXPECT_EQ(align_up(65, 256), 256);
}

class Sizes : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         testing::Values(int64_t{1}, int64_t{4096}, int64_t{4097}, (int64_t{2} << 20) - 1,
                                         int64_t{2} << 20, (int64_t{6} << 20) + 5));

TEST_P(Sizes, AreZeroAndAlignedAndCanBeWritten) {
  const int64_t size = GetParam();
  const Buffer buffer(size, nullptr);
  ASSERT_NE(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size_bytes(), size);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
  int64_t set = 0;
  for (int64_t i = 0; i < size; ++i) set += buffer.data()[i] != std::byte{0};
  EXPECT_EQ(set, 0);
  buffer.data()[0] = buffer.data()[size - 1] = std::byte{7};
}

TEST_P(Sizes, AreFaultedInWhenMade) {
  const Buffer buffer(GetParam(), nullptr);
  const auto pages = static_cast<size_t>((GetParam() + 4095) / 4096);
  std::vector<unsigned char> present(pages);
  ASSERT_EQ(mincore(buffer.data(), static_cast<size_t>(GetParam()), present.data()), 0);
  size_t count = 0;
  for (const unsigned char one : present) count += one & 1;
  EXPECT_EQ(count, pages);
}

TEST(Buffer, OfNoBytesHasNoMemory) {
  const Buffer buffer(0, nullptr);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size_bytes(), 0);
}

TEST(Buffer, IsEnteredInItsAccountForItsLife) {
  MemoryAccount account;
  {
    Buffer first(1000, &account);
    EXPECT_EQ(account.held(), 1000) << "by the bytes asked for, not by pages";
    Buffer second(500, &account);
    EXPECT_EQ(account.held(), 1500);
    Buffer moved = std::move(first);
    EXPECT_EQ(account.held(), 1500);
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(first.size_bytes(), 0);
    second = std::move(moved);
    EXPECT_EQ(account.held(), 1000) << "what was there before is freed";
    EXPECT_EQ(second.size_bytes(), 1000);
  }
  EXPECT_EQ(account.held(), 0);
  EXPECT_EQ(account.peak(), 1500);
}

TEST(Buffer, MovedOntoItselfStays) {
  MemoryAccount account;
  Buffer buffer(100, &account);
  Buffer &same = buffer;
  std::byte *data = buffer.data();
  buffer = std::move(same);
  EXPECT_EQ(buffer.data(), data);
  EXPECT_EQ(account.held(), 100);
}

TEST(Buffer, MemoryThatCannotBeHadIsBadAllocAndNotEntered) {
  MemoryAccount account;
  EXPECT_THROW(Buffer(int64_t{1} << 60, &account), std::bad_alloc);
  EXPECT_THROW(Buffer(INT64_MAX, &account), std::bad_alloc);
  EXPECT_EQ(account.held(), 0);
  EXPECT_EQ(account.peak(), 0);
  EXPECT_THROW(Buffer(-1, &account), Failure);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these have memory and faults of their own
int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Buffer, FirstUseDoesNotFault) {
  const int64_t size = int64_t{8} << 20;
  const Buffer buffer(size, nullptr);
  const int64_t before = minor_faults();
  for (int64_t i = 0; i < size; i += 4096) buffer.data()[i] = std::byte{1};
  EXPECT_LT(minor_faults() - before, 16) << "2048 pages; some slack for the test itself";
}

TEST(Buffer, AnAddressSpaceLimitIsBadAlloc) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{256u << 20, 256u << 20};
    setrlimit(RLIMIT_AS, &limit);
    try {
      const Buffer buffer(int64_t{512} << 20, nullptr);
    } catch (const std::bad_alloc &) {
      _exit(42);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}
#endif

}  // namespace
}  // namespace tpfsdp
