// SPDX-License-Identifier: Apache-2.0
// Ranks that do not fit together say so when they meet, on every rank that can be told.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "ranks.hpp"

namespace host_test {
namespace {

Options patience(int32_t join_ms) {
  Options options;
  options.join_ms = join_ms;
  return options;
}

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(Join, UnequalWorldSizesAreTold) {
  Store store;
  Rank zero(0, 2, &store), one(1, 3, &store);
  tpfsdp_status of_zero = TPFSDP_OK;
  // Threads leave it to who comes later; processes meet through rank 0, which tells all.
  std::thread thread([&] { of_zero = zero.join(patience(uses_shm() ? 10'000 : 300)); });
  EXPECT_EQ(one.join(patience(10'000)), TPFSDP_ERR_MISMATCH) << one.call.text;
  thread.join();
  EXPECT_TRUE(has(one.call.text, "rank 0 says world size 2, rank 1 says 3")) << one.call.text;
  EXPECT_EQ(of_zero, uses_shm() ? TPFSDP_ERR_MISMATCH : TPFSDP_ERR_TIMEOUT) << zero.call.text;
}

TEST(Join, RankTwiceIsRefused) {
  Store store;
  Rank zero(0, 3, &store), one(1, 3, &store), again(1, 3, &store);
  tpfsdp_status of_zero = TPFSDP_OK, of_one = TPFSDP_OK;
  std::thread first([&] { of_zero = zero.join(patience(2'000)); });
  std::thread second([&] { of_one = one.join(patience(2'000)); });
  const tpfsdp_status of_again = again.join(patience(2'000));
  first.join();
  second.join();
  // Which of the two is refused is chance.
  EXPECT_TRUE(of_one == TPFSDP_ERR_INVALID_ARGUMENT || of_again == TPFSDP_ERR_INVALID_ARGUMENT)
      << one.call.text << " | " << again.call.text;
  EXPECT_NE(of_zero, TPFSDP_OK);
  EXPECT_NE(of_one, TPFSDP_OK);
  EXPECT_NE(of_again, TPFSDP_OK);
}

}  // namespace
}  // namespace host_test
