// SPDX-License-Identifier: Apache-2.0
// Once warm, a collective allocates nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "ranks.hpp"

// The compiler sees one half of a pair at a time.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {
thread_local int64_t allocations = 0;
}

void *operator new(size_t bytes) {
  ++allocations;
  if (void *data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
void operator delete(void *data) noexcept { std::free(data); }
void operator delete(void *data, size_t) noexcept { std::free(data); }

namespace host_test {
namespace {

TEST(Steady, CollectivesAllocateNothing) {
  run_ranks(3, [](Rank &rank) {
    std::vector<float> in(300, 1), out(300), sum(100);
    float norm = 1;
    Op gather = all_gather(rank, in.data(), out.data(), {100, 100, 100});
    Op reduce = reduce_scatter(rank, in.data(), sum.data(), {100, 100, 100});
    Op large = all_reduce(out.data(), out.data(), 300);
    Op small = all_reduce(&norm, &norm, 1);
    const auto step = [&] {
      for (const tpfsdp_backend_op *op :
           {&static_cast<const tpfsdp_backend_op &>(gather), &static_cast<const tpfsdp_backend_op &>(reduce),
            &static_cast<const tpfsdp_backend_op &>(large), &static_cast<const tpfsdp_backend_op &>(small)}) {
        if (rank.run(*op) != TPFSDP_OK || rank.wait_read(rank.last) != TPFSDP_OK) return false;
      }
      return rank.window() == TPFSDP_OK;
    };
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(step()) << rank.call.text;
    const int64_t before = allocations;
    bool ok = true;
    for (int i = 0; i < 200; ++i) ok = ok && step();
    const int64_t after = allocations;
    EXPECT_TRUE(ok) << rank.call.text;
    EXPECT_EQ(after, before);
    EXPECT_EQ(rank.shutdown(), TPFSDP_OK);
  });
}

}  // namespace
}  // namespace host_test
