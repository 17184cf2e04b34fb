// SPDX-License-Identifier: Apache-2.0
// Sharded training gives the bits of unsharded training. The reference is one process that runs the micro-batches of
// all ranks in rank order, adds their gradients left to right, scales once by (float)(1.0 / N) and applies the same
// element-wise optimizer; worlds 1 to 5, 20 steps, 0 ulp on losses and parameters.
#include "support/shared.hpp"
#include "support/toy_host.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

constexpr int kSteps = 20;
constexpr int64_t kRows = 3;
const std::vector<int64_t> kWidths{7, 11, 5, 3};  // no width that any world divides evenly

using Values = std::vector<float>;

Values initial(size_t layer, int64_t count) {
  Values out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>((i * 7919 + static_cast<int64_t>(layer) * 31) % 201 - 100) / 150.0f);
  return out;
}

Values batch(int step, int rank) {
  Values out;
  for (int64_t i = 0; i < kRows * kWidths.front(); ++i)
    out.push_back(static_cast<float>((i * 13 + step * 17 + rank * 29) % 19 - 9) / 8.0f);
  return out;
}

// Gradient of the loss sum((y - 1/2)^2) / 8, and the loss.
float loss_of(const Values &y, Values &dy) {
  float loss = 0;
  dy.resize(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const float error = y[i] - 0.5f;
    loss += error * error;
    dy[i] = error / 4;
  }
  return loss / 8;
}

// AdamW, element by element, so that a shard steps as the whole does.
struct AdamW {
  Values m, v;
  void step(float *p, const float *g, size_t count, int t) {
    m.resize(count);
    v.resize(count);
    for (size_t i = 0; i < count; ++i) {
      p[i] -= 0.01f * 0.0625f * p[i];
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
      const float mhat = m[i] / (1 - std::pow(0.9f, static_cast<float>(t)));
      const float vhat = v[i] / (1 - std::pow(0.999f, static_cast<float>(t)));
      p[i] -= 0.01f * mhat / (std::sqrt(vhat) + 1e-8f);
    }
  }
};

struct Result {
  std::vector<Values> losses;  // per rank
  std::vector<Values> params;  // weight, bias of each layer
};

Result train_unsharded(int world) {
  Result result;
  result.losses.resize(static_cast<size_t>(world));
  const size_t layers = kWidths.size() - 1;
  for (size_t l = 0; l < layers; ++l) {
    result.params.push_back(initial(2 * l, kWidths[l] * kWidths[l + 1]));
    result.params.push_back(initial(2 * l + 1, kWidths[l + 1]));
  }
  std::vector<AdamW> optimizers(result.params.size());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Values> sums(result.params.size());
    for (int rank = 0; rank < world; ++rank) {
      std::vector<Values> x{batch(step, rank)}, y(layers);
      for (size_t l = 0; l < layers; ++l) {
        y[l].resize(static_cast<size_t>(kRows * kWidths[l + 1]));
        toy::linear_forward(x[l].data(), result.params[2 * l].data(), result.params[2 * l + 1].data(), y[l].data(),
                            kRows, kWidths[l], kWidths[l + 1]);
        if (l + 1 < layers) {
          for (float &value : y[l]) value = std::max(value, 0.0f);
        }
        x.push_back(y[l]);
      }
      Values dy;
      result.losses[static_cast<size_t>(rank)].push_back(loss_of(y.back(), dy));
      for (size_t l = layers; l-- > 0;) {
        if (l + 1 < layers) {
          for (size_t i = 0; i < dy.size(); ++i) dy[i] = y[l][i] > 0 ? dy[i] : 0.0f;
        }
        Values dx(x[l].size()), dw(result.params[2 * l].size()), db(result.params[2 * l + 1].size());
        toy::linear_backward(x[l].data(), result.params[2 * l].data(), dy.data(), dx.data(), dw.data(), db.data(),
                             kRows, kWidths[l], kWidths[l + 1]);
        for (const auto &[index, grad] : {std::pair(2 * l, &dw), std::pair(2 * l + 1, &db)}) {
          if (sums[index].empty()) {
            sums[index] = *grad;
          } else {
            for (size_t i = 0; i < grad->size(); ++i) sums[index][i] += (*grad)[i];
          }
        }
        dy = dx;
      }
    }
    const auto scale = static_cast<float>(1.0 / world);
    for (size_t p = 0; p < result.params.size(); ++p) {
      for (float &value : sums[p]) value *= scale;
      optimizers[p].step(result.params[p].data(), sums[p].data(), sums[p].size(), step + 1);
    }
  }
  return result;
}

enum class Storage { kLibrary, kHost };

struct HostArena {
  std::map<void *, int64_t> live;
  static tpfsdp_status call(void *user, const tpfsdp_memory_args *args) {
    auto &arena = *static_cast<HostArena *>(user);
    if (args->op == TPFSDP_MEMORY_ACQUIRE) {
      *args->data = std::malloc(static_cast<size_t>(args->size_bytes));
      arena.live[*args->data] = args->size_bytes;
    } else {
      if (arena.live.erase(*args->data) != 1) return TPFSDP_ERR_INVALID_ARGUMENT;
      std::free(*args->data);
    }
    return TPFSDP_OK;
  }
};

void train_sharded(tpfsdp_context *context, int rank, tpfsdp_reshard_kind reshard, Storage storage, bool tries,
                   Values &losses, std::vector<Values> &params,
                   tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options)) {
  HostArena arena;
  tpfsdp_memory_callback memory{HostArena::call, &arena, nullptr};
  if (storage == Storage::kHost) options.host_memory = &memory;
  {
    api::Tree tree(context);
    std::vector<toy::Layer<float>> layers;
    const size_t count = kWidths.size() - 1;
    for (size_t l = 0; l < count; ++l) {
      toy::Layer<float> layer;
      layer.module = tree.child(tree.root, "l" + std::to_string(l));
      layer.in = kWidths[l];
      layer.out = kWidths[l + 1];
      layer.relu = l + 1 < count;
      layer.weight = tree.param(layer.module, "weight", TPFSDP_DTYPE_F32, {layer.out, layer.in},
                                initial(2 * l, layer.in * layer.out));
      layer.bias = tree.param(layer.module, "bias", TPFSDP_DTYPE_F32, {layer.out}, initial(2 * l + 1, layer.out));
      tree.shard({layer.module}, reshard, options);
      layers.push_back(layer);
    }
    tree.shard({tree.root}, reshard, options);
    const auto drive = [&](auto try_form, auto plain, tpfsdp_module *module) {
      if (!tries) {
        API(plain, module);
      } else {
        while (API(try_form, module) == TPFSDP_PENDING) std::this_thread::yield();
      }
    };
    std::vector<AdamW> optimizers(2 * count);
    for (int step = 0; step < kSteps; ++step) {
      Values x = batch(step, rank), dy;
      drive(tpfsdp_module_try_pre_forward, tpfsdp_module_pre_forward, tree.root);
      for (auto &layer : layers) {
        drive(tpfsdp_module_try_pre_forward, tpfsdp_module_pre_forward, layer.module);
        tpfsdp_module *module = std::exchange(layer.module, nullptr);
        x = toy::forward(layer, x, kRows);
        layer.module = module;
        API(tpfsdp_module_post_forward, layer.module);
      }
      API(tpfsdp_module_post_forward, tree.root);
      losses.push_back(loss_of(x, dy));
      drive(tpfsdp_module_try_pre_backward, tpfsdp_module_pre_backward, tree.root);
      for (size_t l = count; l-- > 0;) {
        drive(tpfsdp_module_try_pre_backward, tpfsdp_module_pre_backward, layers[l].module);
        dy = toy::backward(layers[l], dy, kRows);
        drive(tpfsdp_module_try_post_backward, tpfsdp_module_post_backward, layers[l].module);
      }
      drive(tpfsdp_module_try_end_backward, tpfsdp_module_end_backward, tree.root);
      for (size_t p = 0; p < 2 * count; ++p) {
        tpfsdp_param *param = p % 2 ? layers[p / 2].bias : layers[p / 2].weight;
        const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD), grad = api::face(param, TPFSDP_FACE_GRAD);
        optimizers[p].step(static_cast<float *>(shard.data), static_cast<const float *>(grad.data),
                           static_cast<size_t>(api::count_of(shard)), step + 1);
      }
      API(tpfsdp_module_zero_grad, tree.root, 1);
    }
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
    for (size_t p = 0; p < 2 * count; ++p)
      params.push_back(
          api::values_of<float>(api::face(p % 2 ? layers[p / 2].bias : layers[p / 2].weight, TPFSDP_FACE_FULL)));
    API(tpfsdp_scope_close, scope);
    tpfsdp_handle_release(scope);
  }
  EXPECT_TRUE(arena.live.empty()) << "host memory that was never given back";
}

int64_t ulp_between(const Values &a, const Values &b) {
  EXPECT_EQ(a.size(), b.size());
  int64_t largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    int32_t x, y;
    std::memcpy(&x, &a[i], 4);
    std::memcpy(&y, &b[i], 4);
    largest = std::max<int64_t>(largest, std::abs(static_cast<int64_t>(x) - y));
  }
  return largest;
}

class EqualToUnsharded : public testing::TestWithParam<int> {};

TEST_P(EqualToUnsharded, LossesAndParametersToTheBit) {
  const int world = GetParam();
  const Result reference = train_unsharded(world);
  for (const tpfsdp_reshard_kind reshard : {TPFSDP_RESHARD_AUTO, TPFSDP_RESHARD_ALWAYS, TPFSDP_RESHARD_NEVER}) {
    for (const Storage storage : {Storage::kLibrary, Storage::kHost}) {
      for (const bool tries : {false, true}) {
        SCOPED_TRACE(testing::Message() << "world " << world << " reshard " << reshard << " host "
                                        << (storage == Storage::kHost) << " tries " << tries);
        shared::Shared<std::atomic<int>> compared(0);
        api::run_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
          Values losses;
          std::vector<Values> params;
          train_sharded(context, rank, reshard, storage, tries, losses, params);
          EXPECT_EQ(ulp_between(losses, reference.losses[static_cast<size_t>(rank)]), 0);
          ASSERT_EQ(params.size(), reference.params.size());
          for (size_t p = 0; p < reference.params.size(); ++p)
            EXPECT_EQ(ulp_between(params[p], reference.params[p]), 0);
          ++*compared;
        });
        EXPECT_EQ(*compared, world);
      }
    }
  }
}

// Who owns an element changes nothing about its sum.
TEST_P(EqualToUnsharded, WhicheverWayItIsCut) {
  const int world = GetParam();
  const Result reference = train_unsharded(world);
  struct Cut {
    tpfsdp_granule granule;
    int32_t size;
  };
  for (const Cut cut : {Cut{TPFSDP_GRANULE_ELEMENT, 0}, Cut{TPFSDP_GRANULE_ROW, 0}, Cut{TPFSDP_GRANULE_BLOCK, 3}}) {
    for (const tpfsdp_unshard_mode mode : {TPFSDP_UNSHARD_PRIVATE, TPFSDP_UNSHARD_SHARED, TPFSDP_UNSHARD_MAPPED}) {
      SCOPED_TRACE(testing::Message() << "world " << world << " granule " << cut.granule << " mode " << mode);
      tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
      options.layout = TPFSDP_LAYOUT_CONTIGUOUS;
      options.granule = cut.granule;
      options.granule_size = cut.size;
      options.unshard_mode = mode;
      shared::Shared<std::atomic<int>> compared(0);
      api::run_ranks(world, [&](tpfsdp_context *context, int32_t rank) {
        Values losses;
        std::vector<Values> params;
        train_sharded(context, rank, TPFSDP_RESHARD_ALWAYS, Storage::kLibrary, false, losses, params, options);
        EXPECT_EQ(ulp_between(losses, reference.losses[static_cast<size_t>(rank)]), 0);
        ASSERT_EQ(params.size(), reference.params.size());
        for (size_t p = 0; p < params.size(); ++p) EXPECT_EQ(ulp_between(params[p], reference.params[p]), 0) << p;
        ++*compared;
      });
      EXPECT_EQ(*compared, world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(World, EqualToUnsharded, testing::Range(1, 6));

}  // namespace
