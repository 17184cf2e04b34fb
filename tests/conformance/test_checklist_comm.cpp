// SPDX-License-Identifier: Apache-2.0
// Lines of checklist.toml about what a gather brings and a reduction gives, bit for bit, and what is left of a model.
#include "reference.hpp"
#include "support/chain.hpp"

#include <fstream>

namespace {

using chain::Chain;
using chain::on_ranks;
using chain::Values;
using Bits = std::vector<uint32_t>;

// Quiet and signalling NaN, both zeros, infinity, a subnormal, and ordinary values.
Bits special_bits(size_t count) {
  const Bits some{0x7fc00123, 0x7f800001, 0x80000000, 0x00000000, 0xff800000, 0x00000001, 0x3f800000, 0xc2280000};
  Bits out;
  for (size_t i = 0; i < count; ++i) out.push_back(some[i % some.size()] + static_cast<uint32_t>(i / some.size()));
  return out;
}

TEST(ChecklistComm, all_gather_fp32) {
  for (const bool async : {false, true}) {
    on_ranks(4, [&](tpfsdp_context *context, int32_t) {
      api::Tree tree(context);
      tpfsdp_module *const block = tree.child(tree.root, "block");
      const Bits of_weight = special_bits(35), of_bias = special_bits(7);
      tpfsdp_param *const weight = tree.param(block, "weight", TPFSDP_DTYPE_F32, {7, 5}, of_weight);
      tpfsdp_param *const bias = tree.param(block, "bias", TPFSDP_DTYPE_F32, {7}, of_bias);
      tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
      options.reshard_after_forward.size = 2;
      tree.shard({block}, TPFSDP_RESHARD_SIZE, options);
      tree.shard({tree.root});
      API(tpfsdp_root_prepare, tree.root);
      const auto unshard = [&] {
        tpfsdp_work *work = nullptr;
        API(tpfsdp_fsdp_module_unshard, block, async ? &work : nullptr);
        if (async) API(tpfsdp_work_wait, work, nullptr);
        tpfsdp_handle_release(work);
      };
      const auto expect_full = [&] {
        EXPECT_EQ(api::values_of<uint32_t>(api::face(weight, TPFSDP_FACE_FULL)), of_weight);
        EXPECT_EQ(api::values_of<uint32_t>(api::face(bias, TPFSDP_FACE_FULL)), of_bias);
      };
      unshard();
      expect_full();
      API(tpfsdp_fsdp_module_reshard, block);
      EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_SHARDED);
      API(tpfsdp_module_pre_forward, tree.root);
      API(tpfsdp_module_pre_forward, block);
      expect_full();
      API(tpfsdp_module_post_forward, block);
      API(tpfsdp_module_post_forward, tree.root);
      EXPECT_EQ(api::unit_info(block).sharded_state, TPFSDP_SHARDED_POST_FORWARD);
      chain::take_counters(context);
      unshard();  // from what two ranks kept
      EXPECT_EQ(chain::take_counters(context).all_gathers, 1);
      expect_full();
    });
  }
}

// Gradients of two backwards in the dtype of the parameter, whose sum over ranks may not fit into it.
TEST(ChecklistComm, reduce_scatter) {
  for (const tpfsdp_dtype dtype : {TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F16, TPFSDP_DTYPE_BF16}) {
    SCOPED_TRACE(tpfsdp_tensor_dtype_name(dtype));
    constexpr int32_t kWorld = 3;
    constexpr size_t kCount = 7;
    const bool is_f32 = dtype == TPFSDP_DTYPE_F32, is_bf16 = dtype == TPFSDP_DTYPE_BF16;
    const size_t element = is_f32 ? 4 : 2;
    const auto store = [&](uint8_t *at, float value) {
      const uint16_t half = reference::narrow(value, is_bf16);
      std::memcpy(at, is_f32 ? static_cast<const void *>(&value) : &half, element);
    };
    const auto load = [&](const uint8_t *at) {
      float value = 0;
      uint16_t half = 0;
      std::memcpy(is_f32 ? static_cast<void *>(&value) : &half, at, element);
      return is_f32 ? value : reference::widen(half, is_bf16);
    };
    std::vector<std::vector<uint8_t>> inputs;
    for (int rank = 0; rank < kWorld; ++rank) {
      std::vector<uint8_t> &input = inputs.emplace_back(kCount * element);
      for (size_t i = 0; i < kCount; ++i)
        store(&input[i * element],
              i == 0 ? 50000.0F : 0.1F * static_cast<float>((rank + 1) * (static_cast<int>(i) - 3)));
    }
    on_ranks(kWorld, [&](tpfsdp_context *context, int32_t rank) {
      api::Tree tree(context);
      tpfsdp_param *const w = tree.param(tree.root, "w", dtype, {kCount},
                                         is_f32 ? std::vector<uint16_t>(2 * kCount) : std::vector<uint16_t>(kCount));
      tree.shard({tree.root});
      const auto backward = [&](const std::vector<uint8_t> &gradient) {
        API(tpfsdp_module_pre_forward, tree.root);
        API(tpfsdp_module_post_forward, tree.root);
        API(tpfsdp_module_pre_backward, tree.root);
        tpfsdp_view buffer{};
        API(tpfsdp_param_get_grad_buffer, w, 0, &buffer);
        std::memcpy(buffer.data, gradient.data(), gradient.size());
        API(tpfsdp_param_grad_ready, w);
        API(tpfsdp_module_end_backward, tree.root);
      };
      tpfsdp_shard_info place = TPFSDP_INIT(tpfsdp_shard_info);
      API(tpfsdp_param_get_shard_info, w, &place);
      backward(inputs[static_cast<size_t>(rank)]);
      tpfsdp_view shard = api::face(w, TPFSDP_FACE_GRAD);
      const auto *bytes = static_cast<const uint8_t *>(shard.data);
      EXPECT_EQ(shard.dtype, dtype);
      std::vector<float> first;
      for (int64_t i = 0; i < place.local_shape[0]; ++i) {
        const uint8_t *const at = bytes + static_cast<size_t>(i) * element;
        EXPECT_TRUE(reference::is_reduction(TPFSDP_REDUCE_AVG, dtype, inputs, place.offsets[0] + i, at)) << i;
        first.push_back(load(at));
      }
      // A second one adds to it; its mean, 3, is exact.
      std::vector<uint8_t> threes(kCount * element);
      for (size_t i = 0; i < kCount; ++i) store(&threes[i * element], static_cast<float>(rank + 2));
      backward(threes);
      shard = api::face(w, TPFSDP_FACE_GRAD);
      bytes = static_cast<const uint8_t *>(shard.data);
      for (size_t i = 0; i < first.size(); ++i) {
        std::vector<uint8_t> expected(element);
        store(expected.data(), first[i] + 3);
        EXPECT_EQ(std::memcmp(bytes + i * element, expected.data(), element), 0) << i;
      }
    });
  }
}

TEST(ChecklistComm, unshard_without_lazy_init) {
  const Values expected = chain::clean_run(2, 2);
  on_ranks(2, [&](tpfsdp_context *context, int32_t rank) {
    Chain model(context, rank);
    const std::vector<tpfsdp_module *> modules{model.root(), model.block(0), model.block(1), model.block(2)};
    for (tpfsdp_module *module : modules) API(tpfsdp_fsdp_module_unshard, module, nullptr);
    for (size_t l = 0; l < 4; ++l) {
      const auto at = static_cast<int64_t>(2 * l);
      EXPECT_EQ(api::values_of<float>(api::face(model.layers[l].weight, TPFSDP_FACE_FULL)),
                chain::weight_values(at, 25));
      EXPECT_EQ(api::values_of<float>(api::face(model.layers[l].bias, TPFSDP_FACE_FULL)),
                chain::weight_values(at + 1, 5));
    }
    for (tpfsdp_module *module : modules) API(tpfsdp_fsdp_module_reshard, module);
    model.expect_idle();
    for (int i = 0; i < 2; ++i) model.step(i);
    EXPECT_EQ(model.full(), expected);
  });
}

struct Registration {
  const char *name;
  tpfsdp_reshard_kind kind;
  tpfsdp_sharded_state of_root, of_block;
};

class ParamRegistration : public testing::TestWithParam<Registration> {};

// One group and several: what is there after forward, and after a manual reshard.
TEST_P(ParamRegistration, param_registration_after_forward) {
  const Registration tested = GetParam();
  on_ranks(4, [&](tpfsdp_context *context, int32_t rank) {
    for (const size_t blocks : {0, 2}) {
      chain::Shape shape{.blocks = static_cast<int64_t>(blocks), .reshard = tested.kind, .root_reshard = tested.kind};
      if (tested.kind == TPFSDP_RESHARD_SIZE) shape.options.reshard_after_forward.size = 2;
      Chain model(context, rank, shape);
      const Values before = model.full();
      model.forward(0);
      for (size_t l = 0; l <= blocks; ++l) {
        tpfsdp_module *const module = l == 0 ? model.root() : model.block(l - 1);
        const tpfsdp_sharded_state state = l == 0 ? tested.of_root : tested.of_block;
        EXPECT_EQ(api::unit_info(module).sharded_state, state) << l;
        tpfsdp_view full{};
        const tpfsdp_status status = tpfsdp_param_get_view(model.weight(l), TPFSDP_FACE_FULL, &full, nullptr);
        EXPECT_EQ(status, state == TPFSDP_SHARDED_UNSHARDED ? TPFSDP_OK : TPFSDP_ERR_STATE);
        if (status == TPFSDP_OK) {
          EXPECT_EQ(api::values_of<float>(full), chain::weight_values(static_cast<int64_t>(2 * l), 25));
        }
        API(tpfsdp_fsdp_module_reshard, module);
      }
      model.expect_idle();
      EXPECT_EQ(model.full(), before);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Policies, ParamRegistration,
    testing::Values(Registration{"always", TPFSDP_RESHARD_ALWAYS, TPFSDP_SHARDED_SHARDED, TPFSDP_SHARDED_SHARDED},
                    Registration{"never", TPFSDP_RESHARD_NEVER, TPFSDP_SHARDED_UNSHARDED, TPFSDP_SHARDED_UNSHARDED},
                    Registration{"size_2", TPFSDP_RESHARD_SIZE, TPFSDP_SHARDED_POST_FORWARD,
                                 TPFSDP_SHARDED_POST_FORWARD},
                    Registration{"automatic", TPFSDP_RESHARD_AUTO, TPFSDP_SHARDED_UNSHARDED, TPFSDP_SHARDED_SHARDED}),
    [](const auto &tested) { return std::string(tested.param.name); });

int64_t resident_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST(ChecklistComm, fully_shard_del_memory) {
  constexpr int64_t kRows = 1 << 20;  // 4 MiB a parameter
  on_ranks(2, [](tpfsdp_context *context, int32_t) {
    Values memory(kRows, 1);
    const std::vector<int64_t> shape{kRows};
    const tpfsdp_view view = api::view(memory.data(), TPFSDP_DTYPE_F32, shape);
    // AddressSanitizer keeps the last 256 MiB that were freed: the first rounds fill that.
    constexpr int kFilling = 20, kRounds = 40;
    int64_t start = 0, held = 0;
    for (int round = 0; round < kRounds; ++round) {
      api::Tree tree(context);
      for (const char *name : {"a", "b", "c"}) {
        tpfsdp_param *made = nullptr;
        API(tpfsdp_param_create, &view, 1, &made);
        const api::Owned<tpfsdp_param> param(made);
        tpfsdp_module *const module = tree.child(tree.root, name);
        API(tpfsdp_module_register_parameter, module, "w", made);
        tree.shard({module});
      }
      tree.shard({tree.root});
      API(tpfsdp_module_pre_forward, tree.root);
      API(tpfsdp_module_post_forward, tree.root);
      held = api::memory(tree.root).total_bytes;
      if (round == kFilling) start = resident_bytes();
    }
    // Nineteen models more have come and gone since.
    EXPECT_GT(held, 12 << 20);
    EXPECT_LT(resident_bytes() - start, 2 * held);
  });
}

}  // namespace
