// SPDX-License-Identifier: Apache-2.0
// With one copy of full values a host, an unshard whose peers are there already is a few stores and loads: the rank
// that comes last makes no system call, neither there nor at the reshard.
#include "support/modes.hpp"
#include "support/system_calls.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace {

using chain::Meeting;
using chain::on_ranks;
using modes::Common;

#if defined(TPFSDP_CAN_SEE_SYSTEM_CALLS)

TEST(SystemCalls, AreSeen) {
  EXPECT_EQ(system_calls::first_in([] { syscall(SYS_getppid); }), SYS_getppid);
  EXPECT_EQ(system_calls::first_in([] {}), -1);
}

// Rank 0 has posted, and rank 1 finds all there. Nobody sleeps, whom a store would have to wake.
TEST_P(Common, TheLastRankToComeMakesNoSystemCall) {
  for (const int32_t world : {2, 4}) {
    SCOPED_TRACE(world);
    Meeting meeting(world);
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      chain::Chain model(context, rank, modes::shape(GetParam()));
      model.step(0);
      // Once each way to have met everything once: lists of events, memory of the C library.
      for (int round = 0; round < 3; ++round) {
        for (size_t block = 0; block < 3; ++block) {
          tpfsdp_module *const module = model.block(block);
          if (rank == world - 1) {
            meeting.arrive_and_wait();
            tpfsdp_status ends[2]{-1, -1};
            const int first = system_calls::first_in([&] {
              if (round % 2 == 0) {
                ends[0] = tpfsdp_fsdp_module_unshard(module, nullptr, nullptr);
                ends[1] = tpfsdp_fsdp_module_reshard(module, nullptr);
              } else {
                ends[0] = tpfsdp_module_pre_forward(module, nullptr);
                ends[1] = tpfsdp_module_post_forward(module, nullptr);
              }
            });
            if (round > 0) {
              EXPECT_EQ(first, -1) << "round " << round << ", block " << block;
            }
            EXPECT_EQ(ends[0], TPFSDP_OK);
            EXPECT_EQ(ends[1], TPFSDP_OK);
            meeting.arrive_and_wait();
          } else {
            const auto work = modes::start_unshard(module);
            meeting.arrive_and_wait();
            meeting.arrive_and_wait();
            API(tpfsdp_work_wait, work.get(), nullptr);
            modes::reshard(module);
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Common, testing::Values(TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED),
                         modes::name_of_test);

#endif

}  // namespace
