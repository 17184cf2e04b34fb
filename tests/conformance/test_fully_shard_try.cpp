// SPDX-License-Identifier: Apache-2.0
// The forms that never wait: driven to their end they make the same bits, events and counts as the plain ones, and
// PENDING loses nothing.
#include "support/chain.hpp"

#include <atomic>
#include <thread>

namespace {

using chain::Meeting;
using chain::on_ranks;
using chain::Values;

const chain::Shared<std::atomic<int64_t>> pendings(0);  // of all ranks

template <class Try>
void drive(Try call, tpfsdp_module *module) {
  int64_t mine = 0;
  while (api::check([&](tpfsdp_error **error) { return call(module, error); }) == TPFSDP_PENDING) {
    ++mine;
    std::this_thread::yield();
  }
  *pendings += mine;
}

// A step by the try forms alone; each rank is slow at places of its own.
void try_step(chain::Chain &model, int32_t rank, int iteration) {
  const auto slow = [&](size_t place) {
    if ((place + static_cast<size_t>(iteration)) % 3 == static_cast<size_t>(rank))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  const int64_t width = 5;
  Values x(static_cast<size_t>(2 * width));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((3 * rank + 5 * iteration + 7 * static_cast<int>(i)) % 9 - 4) / 4;
  drive(tpfsdp_module_try_pre_forward, model.root());
  for (toy::Layer<float> &layer : model.layers) {
    tpfsdp_module *module = std::exchange(layer.module, nullptr);
    slow(x.size());
    if (module) drive(tpfsdp_module_try_pre_forward, module);
    x = toy::forward(layer, x, 2);
    layer.module = module;
    if (module) API(tpfsdp_module_post_forward, module);
  }
  API(tpfsdp_module_post_forward, model.root());
  drive(tpfsdp_module_try_pre_backward, model.root());
  for (size_t i = model.layers.size(); i-- > 0;) {
    toy::Layer<float> &layer = model.layers[i];
    slow(i);
    if (layer.module) drive(tpfsdp_module_try_pre_backward, layer.module);
    x = toy::backward(layer, x, 2);
    if (layer.module) drive(tpfsdp_module_try_post_backward, layer.module);
  }
  slow(5);
  drive(tpfsdp_module_try_end_backward, model.root());
  model.sgd();
}

// Of the last rank.
struct Trace {
  chain::SharedText events;
  chain::Shared<tpfsdp_counters> counters;
  chain::SharedValues full;
};

void run(int32_t world, const chain::Shape &shape, bool tries, Trace &out) {
  on_ranks(
      world,
      [&](tpfsdp_context *context, int32_t rank) {
        chain::Chain model(context, rank, shape);
        for (int i = 0; i < 4; ++i) {
          if (tries) {
            try_step(model, rank, i);
          } else {
            model.step(i);
          }
        }
        const std::vector<std::string> events = chain::take_events(context);
        const tpfsdp_counters counters = chain::take_counters(context);
        const Values full = model.full();
        EXPECT_GT(events.size(), 100u);
        if (rank != world - 1) return;
        out.events = testing::PrintToString(events);
        *out.counters = counters;
        out.full = full;
      },
      4000);
}

TEST(TryForms, GiveTheBitsEventsAndCountsOfThePlainForms) {
  *pendings = 0;
  for (const int32_t world : {1, 2, 3}) {
    for (const tpfsdp_reshard_kind kind : {TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, reshard " << kind);
      const chain::Shape shape{.blocks = 4, .reshard = kind, .root_reshard = kind};
      Trace plain, tried;
      run(world, shape, false, plain);
      run(world, shape, true, tried);
      EXPECT_EQ(tried.full.get(), plain.full.get());
      EXPECT_EQ(tried.events.text(), plain.events.text());
      const auto counts = [](const tpfsdp_counters &c) {
        return std::vector<int64_t>{c.all_gathers, c.reduce_scatters, c.gathered_bytes, c.reduced_bytes,
                                    c.wire_bytes,  c.copies,          c.prefetch_hits,  c.prefetch_misses,
                                    c.spare_slots, c.allocations};
      };
      EXPECT_EQ(counts(*tried.counters), counts(*plain.counters));
    }
  }
  EXPECT_GT(*pendings, 0);
}

TEST(TryForms, PendingMeansThatAPeerIsAwaited) {
  Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    model.step(0);
    if (rank == 0) {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(API(tpfsdp_module_try_pre_forward, model.root()), TPFSDP_PENDING);
      EXPECT_EQ(api::unit_info(model.root()).sharded_state, TPFSDP_SHARDED_SHARDED);
      EXPECT_EQ(api::unit_info(model.root()).unshards, 2);  // one a step: the attempts are one gather
    }
    meeting.arrive_and_wait();
    API(tpfsdp_module_pre_forward, model.root());  // the plain form goes on from there
    EXPECT_EQ(api::unit_info(model.root()).sharded_state, TPFSDP_SHARDED_UNSHARDED);
    API(tpfsdp_module_post_forward, model.root());
    model.reset();
    // The window of the end of backward: the peer is in none.
    model.backward(model.forward(1));
    API(tpfsdp_module_post_backward, model.root());
    meeting.arrive_and_wait();
    if (rank == 0) {
      tpfsdp_status status = TPFSDP_OK;
      for (int i = 0; i < 5; ++i) status = API(tpfsdp_module_try_end_backward, model.root());
      EXPECT_EQ(status, TPFSDP_PENDING);
    }
    meeting.arrive_and_wait();
    model.end();
    model.sgd();
    model.step(2);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 3, {.blocks = 1}));
    }
  });
}

TEST(TryForms, AModuleThatIsNotShardedHasNoHooks) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.is_sharded = false});
    EXPECT_EQ(API(tpfsdp_module_try_pre_forward, model.root()), TPFSDP_OK);
    API(tpfsdp_module_post_forward, model.root());
    EXPECT_EQ(API(tpfsdp_module_try_pre_backward, model.root()), TPFSDP_OK);
    EXPECT_EQ(API(tpfsdp_module_try_post_backward, model.root()), TPFSDP_OK);
    EXPECT_EQ(API(tpfsdp_module_try_end_backward, model.root()), TPFSDP_OK);
  });
}

}  // namespace
