// SPDX-License-Identifier: Apache-2.0
// Views of full parameters that finalizers release on threads of their own while their rank trains.
#include "support/chain.hpp"

#include <atomic>
#include <thread>

namespace {

using chain::on_ranks;
using chain::Values;

api::Owned<tpfsdp_tensor> tensor_of(tpfsdp_param *param, tpfsdp_face face) {
  tpfsdp_tensor *tensor = nullptr;
  API(tpfsdp_param_to_tensor, param, face, &tensor);
  return api::Owned<tpfsdp_tensor>(tensor);
}

TEST(Pins, AreTakenBackFromAnyThreadAtAnyTime) {
  on_ranks(2, [](tpfsdp_context *context, int32_t rank) {
    chain::Chain model(context, rank, {.options = api::privately()});
    model.step(0);
    std::atomic<bool> ends{false};
    std::mutex mutex;
    std::vector<api::Owned<tpfsdp_tensor>> finalized;
    struct Joined {
      std::atomic<bool> &ends;
      std::thread thread;
      ~Joined() {
        ends = true;
        if (thread.joinable()) thread.join();
      }
    } finalizer{ends, std::thread([&] {
                  while (true) {
                    const bool last = ends;
                    std::vector<api::Owned<tpfsdp_tensor>> mine;
                    {
                      const std::lock_guard lock(mutex);
                      mine.swap(finalized);
                    }
                    mine.clear();
                    if (last) return;
                    std::this_thread::yield();
                  }
                })};
    for (int round = 0; round < 200; ++round) {
      API(tpfsdp_fsdp_module_unshard, model.block(1), nullptr);
      for (int views = 0; views < 3; ++views) {
        auto tensor = tensor_of(model.weight(2), TPFSDP_FACE_FULL);
        const std::lock_guard lock(mutex);
        finalized.push_back(std::move(tensor));
      }
      API(tpfsdp_fsdp_module_reshard, model.block(1));
    }
    ends = true;
    finalizer.thread.join();
    EXPECT_EQ(api::unit_info(model.block(1)).pin_count, 0);
    model.expect_idle();
    model.step(1);
    const Values full = model.full();
    if (rank == 0) {
      EXPECT_EQ(full, chain::clean_run(2, 2));
    }
  });
}

}  // namespace
