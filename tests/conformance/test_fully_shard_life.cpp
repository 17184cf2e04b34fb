// SPDX-License-Identifier: Apache-2.0
// Handles released in any order and in the middle of anything; calls from two threads and from callbacks.
#include "support/chain.hpp"

#include <random>
#include <thread>

namespace {

using chain::caught;
using chain::HasSubstr;
using chain::on_ranks;
using chain::Values;

// Everything that can be held of a tree, released in a random order.
TEST(Life, HandlesAreReleasedInAnyOrder) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      std::mt19937 random(seed);  // the same on both ranks, as what is released may be a whole tree
      std::vector<void *> held;
      {
        chain::Chain model(context, rank, {.blocks = 2});
        const auto keep = [&](void *handle) { held.push_back(tpfsdp_handle_retain(handle)); };
        model.step(0);
        model.backward(model.forward(1));
        model.end();
        tpfsdp_scope *scope = nullptr;
        API(tpfsdp_scope_open, &model.tree.root, 1, nullptr, &scope);
        held.push_back(scope);
        for (const toy::Layer<float> &layer : model.layers) {
          keep(layer.weight);
          tpfsdp_module *module = layer.module ? layer.module : model.root();
          keep(module);
          tpfsdp_unit *unit = nullptr;
          API(tpfsdp_fsdp_module_get_unit, module, 0, &unit);
          keep(unit);
          keep(api::unit_info(module).mesh);
          for (const tpfsdp_face face : {TPFSDP_FACE_SHARD, TPFSDP_FACE_FULL, TPFSDP_FACE_GRAD}) {
            tpfsdp_tensor *tensor = nullptr;
            API(tpfsdp_param_to_tensor, layer.bias, face, &tensor);
            held.push_back(tensor);
          }
          tpfsdp_work *work = nullptr;
          API(tpfsdp_fsdp_module_unshard, module, &work);
          held.push_back(work);
          tpfsdp_list *list = nullptr;
          API(tpfsdp_module_list_parameters, module, 1, &list);
          held.push_back(list);
        }
      }
      std::shuffle(held.begin(), held.end(), random);
      for (void *handle : held) tpfsdp_handle_release(handle);
      for (void *handle : held) EXPECT_EQ(tpfsdp_handle_retain(handle), nullptr);
      chain::Chain next(context, rank, {.blocks = 1});
      next.step(0);
    });
  }
}

// A tree that ends with gathers and reductions under way leaves nothing behind that points into it.
TEST(Life, ATreeEndsInTheMiddleOfAStep) {
  for (const char *point : {"in forward b1", "backward b1", "in backward b1", "end"}) {
    SCOPED_TRACE(point);
    on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
      struct Stop {};
      {
        chain::Chain model(context, rank);
        model.at = [&](const std::string &here) {
          if (here == point) throw Stop();
        };
        EXPECT_THROW(model.step(0), Stop);
        tpfsdp_work *work = nullptr;
        API(tpfsdp_fsdp_module_unshard, model.block(0), &work);
        tpfsdp_handle_release(work);
      }
      chain::Chain next(context, rank, {.blocks = 1});
      for (int i = 0; i < 2; ++i) next.step(i);
      const Values full = next.full();
      if (rank == 0) {
        EXPECT_EQ(full, chain::clean_run(2, 2, {.blocks = 1}));
      }
    });
  }
}

TEST(Life, APartOfATreeWhoseRootWasReleasedSaysSo) {
  on_ranks(1, [](tpfsdp_context *context, int32_t rank) {
    void *block = nullptr, *weight = nullptr;
    {
      chain::Chain model(context, rank, {.blocks = 1});
      model.step(0);
      block = tpfsdp_handle_retain(model.block(0));
      weight = tpfsdp_handle_retain(model.weight(1));
    }
    auto *module = static_cast<tpfsdp_module *>(block);
    for (const auto &call : std::vector<std::function<void()>>{
             [&] { API(tpfsdp_module_pre_forward, module); }, [&] { API(tpfsdp_module_end_backward, module); },
             [&] { API(tpfsdp_fsdp_module_unshard, module, nullptr); }, [&] { API(tpfsdp_root_prepare, module); }}) {
      const api::Error error = caught(call);
      EXPECT_EQ(error.status, TPFSDP_ERR_STATE) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("root of this tree was released"));
    }
    EXPECT_EQ(api::face(static_cast<tpfsdp_param *>(weight), TPFSDP_FACE_SHARD).size_bytes, 100);
    tpfsdp_handle_release(block);
    EXPECT_EQ(caught([&] { api::face(static_cast<tpfsdp_param *>(weight), TPFSDP_FACE_SHARD); }).status,
              TPFSDP_ERR_STATE);
    tpfsdp_handle_release(weight);
  });
}

TEST(Busy, ASecondThreadIsTurnedAway) {
  chain::Meeting meeting(2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1, .options = api::privately()});
    model.step(0);
    if (rank == 1) {
      meeting.arrive_and_wait();
    } else {
      std::thread waiting([&] {
        tpfsdp_status inside = TPFSDP_ERR_BUSY;  // it may come while the other one asks
        while (inside == TPFSDP_ERR_BUSY) inside = tpfsdp_module_pre_forward(model.root(), nullptr);
        EXPECT_EQ(inside, TPFSDP_OK);
      });
      tpfsdp_status status = TPFSDP_OK;
      while (status != TPFSDP_ERR_BUSY) {  // until the other thread is inside, waiting for rank 1
        tpfsdp_unit_info info = TPFSDP_INIT(tpfsdp_unit_info);
        tpfsdp_unit *unit = nullptr;
        status = tpfsdp_fsdp_module_get_unit(model.block(0), 0, &unit, nullptr);
        if (status == TPFSDP_OK) status = tpfsdp_unit_get_info(unit, &info, nullptr);
        std::this_thread::yield();
      }
      const api::Error error = caught([&] { API(tpfsdp_module_zero_grad, model.root(), 1); });
      EXPECT_EQ(error.status, TPFSDP_ERR_BUSY);
      EXPECT_THAT(error.what(), HasSubstr("another thread"));
      meeting.arrive_and_wait();
      waiting.join();
    }
    if (rank == 1) {
      API(tpfsdp_module_pre_forward, model.root());
    }
    API(tpfsdp_module_post_forward, model.root());
    model.end();
  });
}

TEST(Busy, ACallbackMayAskForInfosOnly) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.blocks = 1});
    struct Host {
      chain::Chain &model;
      int calls = 0;
    } host{model};
    tpfsdp_grad_reduced_callback callback{};
    callback.user = &host;
    callback.call = [](void *user, const tpfsdp_grad_reduced_args *args) -> tpfsdp_status {
      auto &mine = *static_cast<Host *>(user);
      ++mine.calls;
      tpfsdp_unit_info unit = TPFSDP_INIT(tpfsdp_unit_info);
      tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
      EXPECT_EQ(tpfsdp_param_get_info(args->param, &info, nullptr), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_unit_get_info(info.unit, &unit, nullptr), TPFSDP_OK);
      EXPECT_EQ(tpfsdp_module_pre_forward(mine.model.root(), nullptr), TPFSDP_ERR_BUSY);
      EXPECT_EQ(tpfsdp_fsdp_module_reset_iter_state(mine.model.root(), nullptr), TPFSDP_ERR_BUSY);
      const api::Error error = caught([&] { API(tpfsdp_shards_begin_write, mine.model.root()); });
      EXPECT_EQ(error.status, TPFSDP_ERR_BUSY);
      EXPECT_THAT(error.what(), HasSubstr("callback"));
      return TPFSDP_OK;
    };
    API(tpfsdp_param_set_grad_reduced_callback, model.weight(1), &callback);
    for (int i = 0; i < 2; ++i) model.step(i);
    EXPECT_EQ(host.calls, 2);
    API(tpfsdp_param_set_grad_reduced_callback, model.weight(1), nullptr);
    model.step(2);
    EXPECT_EQ(host.calls, 2);
  });
}

}  // namespace
