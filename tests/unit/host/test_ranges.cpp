// SPDX-License-Identifier: Apache-2.0
// No piece reads outside what a peer shows: one that would is refused by name before its first byte.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"

namespace host_test {
namespace {

constexpr int64_t PAGE = 1024;  // floats of a region's smallest size

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

float *region_of(Rank &rank, int64_t floats, tpfsdp_backend_region **region) {
  void *data = nullptr;
  EXPECT_EQ(table().region_create(rank.call.handle(), rank.comm, floats * 4, &data, region), TPFSDP_OK);
  return static_cast<float *>(data);
}

/// Rank 1's op is refused when it reads; rank 0's own is fine. Both go on after a reset.
void expect_refused(Rank &rank, const tpfsdp_backend_op &op, const std::vector<std::string> &words) {
  ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
  if (rank.rank == 1) {
    EXPECT_EQ(rank.complete(1), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_EQ(rank.call.sequence, 1);
    for (const std::string &word : words) EXPECT_TRUE(has(rank.call.text, word)) << word << ": " << rank.call.text;
    rank.fail(TPFSDP_ERR_INVALID_ARGUMENT, rank.call.text.c_str());
  } else {
    EXPECT_EQ(rank.complete(1), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_ERR_REMOTE);
  }
  EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
  EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
}

TEST(Ranges, GatherBeyondAPeersRegion) {
  run_ranks(2, [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *shard = region_of(rank, PAGE, &region);
    std::vector<float> out(2 * PAGE + 8, -1);
    Op op = all_gather(rank, shard, out.data(), {PAGE, PAGE}, region);
    if (rank.rank == 1) op.pieces[0].source_offset = 1;
    expect_refused(rank, op, {"piece 0 of all-gather at sequence 1", "4096 bytes from byte 4 of what rank 0", "4096;"});
    if (rank.rank == 1) {
      EXPECT_EQ(out[0], -1.0F) << "a byte was read";
    }
    table().region_destroy(region);
  });
}

TEST(Ranges, GatherUpToTheLastByteOfARegion) {
  run_ranks(2, [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *shard = region_of(rank, PAGE, &region);
    shard[PAGE - 1] = static_cast<float>(rank.rank + 3);
    std::vector<float> out(2 * PAGE, -1);
    Op op = all_gather(rank, shard + 24, out.data(), {PAGE - 24, PAGE - 24}, region);
    EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(out[PAGE - 25], 3.0F);
    EXPECT_EQ(rank.wait_read(1), TPFSDP_OK) << rank.call.text;
    table().region_destroy(region);
  });
}

TEST(Ranges, ReduceBeyondAPeersRegion) {
  run_ranks(2, [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *grads = region_of(rank, rank.rank == 0 ? PAGE : 2 * PAGE, &region);
    std::vector<float> out(64, -1);
    Op op = reduce_scatter(rank, grads, out.data(), {32, 32}, region);
    op.pieces.push_back(op.pieces[0]);
    if (rank.rank == 1) op.pieces[1].source_offset = PAGE - 31;
    expect_refused(rank, op, {"piece 1 of reduce-scatter at sequence 1", "of what rank 0", "4096;"});
    table().region_destroy(region);
  });
}

TEST(Ranges, GatherBeyondWhatTravelsInTheRecord) {
  run_ranks(2, [](Rank &rank) {
    float in[2] = {1, 2}, out[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    Op op = all_gather(rank, in, out, {2, 2});
    if (rank.rank == 1) op.pieces[0].count = 3;
    expect_refused(rank, op, {"piece 0 of all-gather", "12 bytes from byte 0 of what rank 0", "which are 8;"});
  });
}

TEST(Ranges, GatherBeyondAPeersOwnMemory) {
  std::atomic<bool> refused{false};
  run_ranks(2, [&](Rank &rank) {
    std::vector<float> in(100, 1), out(200, -1);
    Op op = all_gather(rank, in.data(), out.data(), {100, 100});
    if (rank.rank == 1) op.pieces[0].source_offset = 50;
    ASSERT_EQ(rank.submit(op), TPFSDP_OK) << rank.call.text;
    if (rank.rank == 1) {
      EXPECT_EQ(rank.complete(1), TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_TRUE(has(rank.call.text, "of what rank 0 gives, which are 400")) << rank.call.text;
      refused = true;
      rank.fail(TPFSDP_ERR_INVALID_ARGUMENT, "outside");
    } else {
      const tpfsdp_status end = rank.complete(1);  // rank 1 may have taken its memory back
      EXPECT_TRUE(end == TPFSDP_OK || end == TPFSDP_ERR_REMOTE) << rank.call.text;
      while (!refused) std::this_thread::yield();  // this rank's own stays until then
    }
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
  });
}

TEST(Ranges, OwnInputIsCheckedAtSubmit) {
  run_ranks(2, [](Rank &rank) {
    tpfsdp_backend_region *region = nullptr;
    float *data = region_of(rank, PAGE, &region);
    std::vector<float> elsewhere(PAGE), out(4 * PAGE);
    const auto refused = [&](const tpfsdp_backend_op &op, const char *why) {
      EXPECT_EQ(rank.submit(op), TPFSDP_ERR_INVALID_ARGUMENT);
      EXPECT_TRUE(has(rank.call.text, why)) << rank.call.text;
    };
    Op gather = all_gather(rank, data, out.data(), {PAGE, PAGE}, region);
    gather.pieces[static_cast<size_t>(rank.rank)].source_offset = 1;
    refused(gather, rank.rank == 0 ? "piece 0 lies outside" : "piece 1 lies outside");
    Op reduce = reduce_scatter(rank, data, out.data(), {8, 8}, region);
    reduce.pieces[0].source_offset = PAGE - 7;
    refused(reduce, "piece 0 lies outside");
    reduce.pieces[0].source_offset = INT64_MAX / 2;
    refused(reduce, "piece 0 lies outside");
    refused(all_reduce(data + 1, out.data(), PAGE, region), "beyond its region");
    // Not its start: that may happen to be the end of the region.
    refused(all_reduce(elsewhere.data() + 1, out.data(), PAGE - 1, region), "does not lie in its region");
    refused(broadcast(rank.rank, data, out.data(), PAGE + 1, region), "beyond its region");
    refused(all_reduce(data, out.data(), INT64_MAX / 4), "more than there can be");
    EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.last, 1) << "something was posted";
    table().region_destroy(region);
  });
}

}  // namespace
}  // namespace host_test
