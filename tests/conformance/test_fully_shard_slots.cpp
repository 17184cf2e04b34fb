// SPDX-License-Identifier: Apache-2.0
// Gradient memory that units share: it is taken again only when every peer has read it, and a rank's own reductions end
// before it waits for those of its peers.
#include "support/chain.hpp"

namespace {

using chain::Meeting;
using chain::on_ranks;
using chain::Values;

// Nothing is gathered in backward, so only the gradient slot itself can make a rank wait. Blocks 0 and 2 share one.
const chain::Shape kFull{.blocks = 3, .reshard = TPFSDP_RESHARD_NEVER, .root_reshard = TPFSDP_RESHARD_NEVER};

void backward_of(chain::Chain &model, size_t block, Values &dy) {
  API(tpfsdp_module_pre_backward, model.block(block));
  dy = toy::backward(model.layers[block + 1], dy, 2);
  API(tpfsdp_module_post_backward, model.block(block));
}

TEST(GradSlots, AreNotWrittenBeforeEveryPeerHasReadThem) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, kFull);
    model.step(0);
    Values dy = model.forward(1);
    API(tpfsdp_module_pre_backward, model.root());
    backward_of(model, 2, dy);
    backward_of(model, 1, dy);
    meeting.arrive_and_wait();  // both have posted the reduction of block 2; nobody has read the other's gradients
    if (rank == 0) {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(API(tpfsdp_module_try_pre_backward, model.block(0)), TPFSDP_PENDING);
    }
    meeting.arrive_and_wait();
    backward_of(model, 0, dy);
    toy::backward(model.layers[0], dy, 2);
    model.end();
    model.sgd();
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, kFull));
    }
  });
}

TEST(GradSlots, OwnReductionsEndBeforePeersAreAwaited) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, kFull);
    Values dy = model.forward(0);
    API(tpfsdp_module_pre_backward, model.root());
    backward_of(model, 2, dy);
    EXPECT_FALSE(api::has_grad(model.weight(3)));
    backward_of(model, 1, dy);
    API(tpfsdp_module_pre_backward, model.block(0));
    EXPECT_TRUE(api::has_grad(model.weight(3)));  // its memory is this unit's now
    EXPECT_FALSE(api::has_grad(model.weight(2)));
    backward_of(model, 0, dy);
    toy::backward(model.layers[0], dy, 2);
    model.end();
    model.sgd();
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 1, kFull));
    }
  });
}

// Units that the plan thought apart hold gradients together: one gets memory of its own, counted, once.
TEST(GradSlots, OutsideThePlanThereIsASpareOne) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, kFull);
    for (int i = 0; i < 2; ++i) {
      Values dy = model.forward(i);
      for (const size_t block : {2u, 1u, 0u}) API(tpfsdp_module_pre_backward, model.block(block));
      API(tpfsdp_module_pre_backward, model.root());
      for (size_t layer = 4; layer-- > 0;) dy = toy::backward(model.layers[layer], dy, 2);
      model.end();
      model.sgd();
    }
    EXPECT_EQ(chain::take_counters(context).spare_slots, 1);
    EXPECT_EQ(api::memory(model.root()).spare_slot_count, 1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2, kFull));
    }
  });
}

}  // namespace
