// SPDX-License-Identifier: Apache-2.0
// Storage HOST: full parameters in memory that the host lends, one request per parameter, given back at each reshard.
#include "support/chain.hpp"

#include <map>
#include <set>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;

// The host's allocator: exact sizes, so that a write past the end is found; refuses the n-th request on demand.
struct Lender {
  std::map<void *, int64_t> lent;
  std::vector<std::string> log;
  int64_t acquired = 0, released = 0, dropped = 0;
  int64_t refuse_at = -1;  // counts down

  static tpfsdp_status call(void *user, const tpfsdp_memory_args *args) {
    auto &self = *static_cast<Lender *>(user);
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    if (tpfsdp_param_get_info(args->param, &info, nullptr) != TPFSDP_OK) return -1;             // an info may be asked
    if (tpfsdp_param_set_requires_grad(args->param, 1, nullptr) != TPFSDP_ERR_BUSY) return -2;  // nothing else
    EXPECT_EQ(args->device_type, TPFSDP_DEVICE_CPU);
    EXPECT_GT(args->size_bytes, 0);
    if (args->op == TPFSDP_MEMORY_ACQUIRE) {
      if (self.refuse_at >= 0 && self.refuse_at-- == 0) return -12;
      *args->data = ::operator new(static_cast<size_t>(args->size_bytes));
      self.lent[*args->data] = args->size_bytes;
      self.log.push_back(std::string("+ ") + info.name);
      ++self.acquired;
    } else {
      EXPECT_EQ(self.lent[*args->data], args->size_bytes);
      ::operator delete(*args->data);
      self.lent.erase(*args->data);
      self.log.push_back(std::string("- ") + info.name);
      ++self.released;
    }
    return TPFSDP_OK;
  }
  tpfsdp_memory_callback callback() {
    tpfsdp_memory_callback out{};
    out.user = this;
    out.call = call;
    out.drop = [](void *user) { ++static_cast<Lender *>(user)->dropped; };
    return out;
  }
};

// A chain whose units all live in the lender's memory; each fully_shard keeps a copy of the record.
struct Lent {
  Lent(tpfsdp_context *context, int32_t rank, Lender &lender, int64_t blocks = 3)
      : memory(lender.callback()), model(context, rank, shape(blocks)) {}
  chain::Shape shape(int64_t blocks) {
    chain::Shape out{.blocks = blocks};
    out.options.host_memory = &memory;
    return out;
  }
  tpfsdp_memory_callback memory;
  chain::Chain model;
};

TEST(HostStorage, StepsEqualThoseInLibraryMemory) {
  for (const int32_t world : {1, 2, 3}) {
    on_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
      Lender lender;
      {
        Lent host(context, rank, lender);
        chain::Chain &model = host.model;
        EXPECT_EQ(api::unit_info(model.block(0)).storage, TPFSDP_STORAGE_HOST);
        for (int i = 0; i < 3; ++i) model.step(i);
        EXPECT_EQ(lender.acquired, 3 * 7 * 2);  // seven gathers a step, two parameters each
        EXPECT_EQ(lender.released, lender.acquired);
        const Values full = model.full();
        if (rank == 0) {
          EXPECT_EQ(full, chain::clean_run(world, 3));
        }
        const tpfsdp_memory_info memory = api::memory(model.root());
        EXPECT_EQ(memory.slot_count, 0);
        EXPECT_EQ(memory.slot_bytes + memory.host_bytes, 0);
        EXPECT_EQ(api::unit_info(model.block(0)).slot, -1);
        EXPECT_EQ(lender.dropped, 0);
      }
      EXPECT_EQ(lender.dropped, 4);  // one copy per fully_shard call, with the tree
      EXPECT_TRUE(lender.lent.empty());
    });
  }
}

TEST(HostStorage, TheViewIsTheHostsOwnPointer) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Lender lender;
    Lent host(context, rank, lender, 1);
    chain::Chain &model = host.model;
    int64_t epoch = 0;
    for (int round = 0; round < 3; ++round) {
      API(tpfsdp_fsdp_module_unshard, model.block(0), nullptr);
      ASSERT_EQ(lender.lent.size(), 2u);
      for (tpfsdp_param *param : {model.layers[1].weight, model.layers[1].bias}) {
        const tpfsdp_view view = api::face(param, TPFSDP_FACE_FULL);
        ASSERT_TRUE(lender.lent.count(view.data));
        EXPECT_EQ(lender.lent[view.data], view.size_bytes);
      }
      const tpfsdp_view view = api::face(model.weight(1), TPFSDP_FACE_FULL);
      EXPECT_EQ(api::values_of<float>(view), chain::weight_values(2, 25));
      EXPECT_NE(view.epoch, epoch);  // other memory, even at the same address
      epoch = view.epoch;
      EXPECT_EQ(api::memory(model.root()).host_bytes, 120);
      API(tpfsdp_fsdp_module_reshard, model.block(0));
      EXPECT_TRUE(lender.lent.empty());
      EXPECT_EQ(api::memory(model.root()).host_bytes, 0);
    }
    EXPECT_EQ(lender.log[0], "+ b0.weight");
    EXPECT_EQ(lender.log[1], "+ b0.bias");
    EXPECT_EQ(lender.log[2], "- b0.weight");
  });
}

TEST(HostStorage, NoRequestForAParameterWithoutElements) {
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Lender lender;
    const tpfsdp_memory_callback memory = lender.callback();
    api::Tree tree(context);
    tpfsdp_param *none = tree.param<float>(tree.root, "none", TPFSDP_DTYPE_F32, {0, 4}, {});
    tree.param<float>(tree.root, "w", TPFSDP_DTYPE_F32, {1}, {5});
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.host_memory = &memory;
    tree.shard({tree.root}, TPFSDP_RESHARD_AUTO, options);
    API(tpfsdp_fsdp_module_unshard, tree.root, nullptr);
    EXPECT_EQ(lender.log, (std::vector<std::string>{"+ w"}));
    EXPECT_EQ(api::face(none, TPFSDP_FACE_FULL).data, nullptr);
    API(tpfsdp_fsdp_module_reshard, tree.root);
    EXPECT_EQ(lender.log, (std::vector<std::string>{"+ w", "- w"}));
  });
}

// The second request of a gather is refused on rank 1: the first is given back, the peers are told, the step repaired.
TEST(HostStorage, ARefusedRequestIsRolledBackAndTold) {
  for (const int64_t refused : {0, 1, 5, 9}) {
    SCOPED_TRACE(refused);
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      Lender lender;
      Lent host(context, rank, lender);
      chain::Chain &model = host.model;
      model.step(0);
      if (rank == 1) lender.refuse_at = refused;
      const api::Error error = caught([&] { model.step(1); });
      if (rank == 1) {
        EXPECT_EQ(error.status, TPFSDP_ERR_CALLBACK);
        EXPECT_EQ(lender.refuse_at, -1);
      } else {
        EXPECT_EQ(error.status, TPFSDP_ERR_REMOTE);
        EXPECT_EQ(error.rank, 1);
      }
      EXPECT_THAT(error.what(),
                  testing::AllOf(HasSubstr("memory callback"), HasSubstr("status -12"), HasSubstr("bytes for ")));
      model.reset();
      EXPECT_TRUE(lender.lent.empty());
      EXPECT_EQ(lender.acquired, lender.released);
      model.expect_idle();
      for (int i = 1; i < 3; ++i) model.step(i);
      const Values full = model.full();
      if (rank == 0) {
        EXPECT_EQ(full, chain::clean_run(2, 3));
      }
    });
  }
}

TEST(HostStorage, LentMemoryGoesBackWhenTheTreeEnds) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    Lender lender;
    {
      Lent host(context, rank, lender, 1);
      API(tpfsdp_fsdp_module_unshard, host.model.block(0), nullptr);
      EXPECT_EQ(lender.lent.size(), 2u);
    }
    EXPECT_TRUE(lender.lent.empty());
    EXPECT_EQ(lender.dropped, 2);
  });
}

TEST(HostStorage, APinHoldsTheLentMemory) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    Lender lender;
    Lent host(context, rank, lender, 1);
    API(tpfsdp_fsdp_module_unshard, host.model.block(0), nullptr);
    tpfsdp_tensor *tensor = nullptr;
    API(tpfsdp_param_to_tensor, host.model.weight(1), TPFSDP_FACE_FULL, &tensor);
    API(tpfsdp_fsdp_module_reshard, host.model.block(0));
    EXPECT_EQ(lender.lent.size(), 2u);
    tpfsdp_handle_release(tensor);  // the last pin: the callback runs here
    EXPECT_TRUE(lender.lent.empty());
  });
}

}  // namespace
