// SPDX-License-Identifier: Apache-2.0
// Policies of dtypes together with everything that they meet: layouts, unshard modes, reshards, storages, worlds, ways
// to add gradients up, windows in the middle of a step. Each pair of two choices is in some case, and each case is
// compared bit for bit with one process that does the same in plain loops.
#include "support/chain.hpp"
#include "support/dtype_matrix.hpp"

#include <map>

namespace {

using chain::on_ranks;
using chain::take_counters;
using numbers::Numbers;
using numbers::read;
using numbers::write;
using namespace matrix;

class Model {
 public:
  Model(tpfsdp_context *context, int rank, const Rules &with)
      : rules(with), rank_(rank), context_(context), tree(context) {
    for (int i = 0; i < 2; ++i) units.push_back(tree.child(tree.root, "u" + std::to_string(i)));
    units.insert(units.begin(), tree.root);
    for (size_t p = 0; p < kSpecs.size(); ++p) {
      std::vector<std::byte> bytes(static_cast<size_t>(kSpecs[p].count() * numbers::size_of(rules.own)));
      values.push_back(rules.start(p));
      write(rules.own, bytes.data(), values.back());
      params.push_back(tree.param(units[static_cast<size_t>(kSpecs[p].unit)], kSpecs[p].name, rules.own,
                                  kSpecs[p].shape, bytes, kSpecs[p].trainable));
    }
    API(tpfsdp_module_register_parameter, units[1], "tied", params[5]);
    table = tree.param<int64_t>(tree.root, "table", TPFSDP_DTYPE_I64, {3}, {5, -6, INT64_MAX}, false);
    codes = tree.param<uint8_t>(units[1], "codes", TPFSDP_DTYPE_F8_E4M3FN, {5, 1}, {1, 2, 127, 200, 255}, false);
    const Policy &given = kPolicies[static_cast<size_t>(rules.chosen[kPolicy])];
    policy_.param_dtype = given.param;
    policy_.reduce_dtype = given.reduce;
    tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
    options.mp_policy = &policy_;
    const Place &place = kPlaces[static_cast<size_t>(rules.chosen[kPlace])];
    options.unshard_mode = place.mode;
    options.layout = rules.chosen[kGranule] > 0 ? TPFSDP_LAYOUT_CONTIGUOUS : TPFSDP_LAYOUT_ROWS;
    options.granule = rules.chosen[kGranule];
    options.granule_size = options.granule == TPFSDP_GRANULE_BLOCK ? 2 : 0;
    tpfsdp_memory_callback host{};
    host.user = this;
    host.call = [](void *user, const tpfsdp_memory_args *args) -> tpfsdp_status {
      auto &memory = static_cast<Model *>(user)->host_[args->param];
      memory.assign(static_cast<size_t>(args->size_bytes), std::byte{0x7f});
      if (args->op == TPFSDP_MEMORY_ACQUIRE) *args->data = memory.data();
      return TPFSDP_OK;
    };
    if (place.is_host) options.host_memory = &host;
    const bool is_part = place.reshard == TPFSDP_RESHARD_SIZE && rules.world == kPartWorld;
    options.reshard_after_forward.size = is_part ? 2 : 0;
    const tpfsdp_reshard_kind reshard =
        place.reshard == TPFSDP_RESHARD_SIZE && !is_part ? TPFSDP_RESHARD_ALWAYS : place.reshard;
    for (size_t u = units.size(); u-- > 0;) tree.shard({units[u]}, reshard, options);
    // Not where what is full is the shards.
    const bool is_in_place = place.mode == TPFSDP_UNSHARD_MAPPED && reshard == TPFSDP_RESHARD_NEVER;
    has_window = rules.chosen[kBetween] == kWindow && !(is_in_place && rules.full == rules.own);
  }

  void expect_full(int unit, const char *where) const {
    for (size_t p = 0; p < kSpecs.size(); ++p) {
      if (kSpecs[p].unit != unit) continue;
      const tpfsdp_view view = api::face(params[p], TPFSDP_FACE_FULL);
      EXPECT_EQ(view.dtype, rules.full);
      EXPECT_EQ(read(view), Rules::in(rules.full, values[p])) << kSpecs[p].name << " " << where;
    }
    if (unit == 0) {
      EXPECT_EQ(api::values_of<int64_t>(api::face(table, TPFSDP_FACE_FULL)), (std::vector<int64_t>{5, -6, INT64_MAX}));
    }
    if (unit == 1) {
      EXPECT_EQ(api::values_of<uint8_t>(api::face(codes, TPFSDP_FACE_FULL)),
                (std::vector<uint8_t>{1, 2, 127, 200, 255}));
    }
  }

  void forward() {
    for (size_t u = 0; u < units.size(); ++u) {
      API(tpfsdp_module_pre_forward, units[u]);
      expect_full(static_cast<int>(u), "in forward");
      if (u == 1) at("forward");
      if (u > 0) API(tpfsdp_module_post_forward, units[u]);
    }
    API(tpfsdp_module_post_forward, tree.root);
  }

  void give(int step, int micro, size_t p) {
    const Numbers gradient = rules.gradient(rank_, step, micro, p);
    if (p % 2 == 0) {
      tpfsdp_view buffer{};
      API(tpfsdp_param_get_grad_buffer, params[p], 0, &buffer);
      EXPECT_EQ(buffer.dtype, rules.full);
      write(rules.full, buffer.data, gradient);
      API(tpfsdp_param_grad_ready, params[p]);
      return;
    }
    std::vector<std::byte> bytes(gradient.size() * sizeof(double));
    write(rules.full, bytes.data(), gradient);
    const tpfsdp_view view = api::view(bytes.data(), rules.full, kSpecs[p].shape);
    API(tpfsdp_param_add_grad, params[p], &view);
  }

  void backward(int step, int micro) {
    for (const size_t u : {size_t{0}, size_t{2}, size_t{1}}) {
      API(tpfsdp_module_pre_backward, units[u]);
      expect_full(static_cast<int>(u), "in backward");
      if (u == 2) at("backward");
      for (size_t p = 0; p < kSpecs.size(); ++p) {
        if (kSpecs[p].unit != static_cast<int>(u) || rules.is_frozen(step, p) || !rules.is_used(step, p)) continue;
        give(step, micro, p);
        if (rules.chosen[kSumming] == kTwice) give(step, 5, p);
      }
      if (u > 0) API(tpfsdp_module_post_backward, units[u]);
    }
    at("end");
    API(tpfsdp_module_end_backward, tree.root);
  }

  // One rank gives up somewhere; all come back, and write their shards before they try again.
  void fail_and_reset(int step) {
    constexpr std::array kWhere{"forward", "between", "backward", "end"};
    at = [&, fails = rank_ == step % rules.world](const std::string &where) {
      if (!fails || where != kWhere[static_cast<size_t>(step)]) return;
      API(tpfsdp_root_fail, tree.root, "as told");
      throw api::Error(TPFSDP_ERR_CALLBACK, rank_, "as told");
    };
    const api::Error error = chain::caught([&] {
      forward();
      at("between");
      backward(step, 0);
    });
    EXPECT_THAT(error.what(), chain::HasSubstr("as told"));
    at = [](const std::string &) {};
    API(tpfsdp_fsdp_module_reset_iter_state, tree.root);
    write_in_window();
  }
  void write_in_window() {
    API(tpfsdp_shards_begin_write, tree.root);
    change_shards([&](size_t p, size_t i) { return values[p][i] * 0.75; });
    API(tpfsdp_shards_end_write, tree.root);
  }

  // This rank's part of a whole.
  Numbers own(size_t p, const Numbers &whole) const {
    tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
    API(tpfsdp_param_get_shard_info, params[p], &info);
    int64_t count = 1, row = 1;
    for (int32_t d = 0; d < (info.is_ragged ? 1 : info.ndim); ++d) count *= info.local_shape[d];
    for (int32_t d = 1; d < info.ndim; ++d) row *= info.global_shape[d];
    const int64_t begin = info.is_ragged ? info.flat_offset : info.offsets[0] * row;
    return Numbers(whole.begin() + begin, whole.begin() + begin + count);
  }

  // Whole values become what `change` makes of them, here and in the shard.
  template <class Change>
  void change_shards(Change &&change) {
    for (size_t p = 0; p < kSpecs.size(); ++p) {
      for (size_t i = 0; i < values[p].size(); ++i) values[p][i] = rounded(rules.own, change(p, i));
      write(rules.own, api::face(params[p], TPFSDP_FACE_SHARD).data, own(p, values[p]));
    }
  }

  void step(int step) {
    API(tpfsdp_fsdp_module_set_reduce_scatter_unused_params, tree.root, rules.chosen[kUnused], 1);
    if (rules.chosen[kBetween] == kFreezing) API(tpfsdp_param_set_requires_grad, params[5], step == 1 ? 0 : 1);
    if (rules.chosen[kBetween] == kReset) fail_and_reset(step);
    for (int micro = 0; micro < rules.micros; ++micro) {
      const bool is_last = micro == rules.micros - 1;
      API(tpfsdp_fsdp_module_set_requires_gradient_sync, tree.root, is_last || rules.chosen[kSumming] == kEachReduced,
          1);
      API(tpfsdp_fsdp_module_set_is_last_backward, tree.root, is_last);
      forward();
      if (is_last && has_window) write_in_window();
      backward(step, micro);
    }
    std::vector<Numbers> gradients(kSpecs.size());
    for (size_t p = 0; p < kSpecs.size(); ++p) {
      ASSERT_EQ(api::has_grad(params[p]), rules.has_gradient(step, p)) << kSpecs[p].name;
      if (!api::has_grad(params[p])) continue;
      gradients[p] = rules.reduced(step, p);
      EXPECT_EQ(read(api::face(params[p], TPFSDP_FACE_GRAD)), own(p, gradients[p])) << kSpecs[p].name;
    }
    change_shards([&](size_t p, size_t i) { return values[p][i] - (gradients[p].empty() ? 0 : gradients[p][i] / 8); });
    API(tpfsdp_module_zero_grad, tree.root, 1);
  }

  // All units at once: those that share a slot lie elsewhere.
  void expect_all() {
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &tree.root, 1, nullptr, &scope);
    const api::Owned<tpfsdp_scope> held(scope);
    for (int unit = 0; unit < 3; ++unit) expect_full(unit, "in a scope");
    API(tpfsdp_scope_close, scope);
  }

  void run() {
    API(tpfsdp_root_prepare, tree.root);
    const tpfsdp_memory_info planned = api::memory(tree.root);
    EXPECT_EQ(planned.total_bytes, planned.planned_peak_bytes);
    for (int i = 0; i < 4; ++i) {
      take_counters(context_);
      step(i);
      if (testing::Test::HasFailure()) return;
      const tpfsdp_counters counters = take_counters(context_);
      const int64_t between = rules.chosen[kBetween];
      if (i > 1 && between != kReset && between != kFreezing) {
        EXPECT_EQ(counters.allocations + counters.spare_slots, 0);
      }
      const tpfsdp_memory_info memory = api::memory(tree.root);
      if (i == 0 && rules.chosen[kSumming] == kOnce) {
        EXPECT_EQ(memory.peak_bytes, memory.planned_peak_bytes);
      }
      EXPECT_EQ(memory.total_bytes, memory.shard_bytes + memory.cast_bytes + memory.grad_shard_bytes +
                                        memory.slot_bytes + memory.grad_slot_bytes + memory.part_bytes +
                                        memory.accumulator_bytes);
      expect_all();
    }
  }

  const Rules &rules;
  std::function<void(const std::string &)> at = [](const std::string &) {};

 private:
  int rank_;
  tpfsdp_context *context_;
  tpfsdp_mixed_precision_policy policy_ = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
  std::map<tpfsdp_param *, std::vector<std::byte>> host_;

 public:
  api::Tree tree;
  std::vector<tpfsdp_module *> units;
  std::vector<tpfsdp_param *> params;
  tpfsdp_param *table = nullptr, *codes = nullptr;
  std::vector<Numbers> values;  // of the one process
  bool has_window = false;
};

TEST(DtypeMatrix, EveryPairOfChoicesIsTheUnshardedRun) {
  for (const Case &chosen : matrix::cases()) {
    const Rules rules(chosen);
    std::string text;
    for (const int value : chosen) text += std::to_string(value) + " ";
    SCOPED_TRACE("case " + text);
    on_ranks(rules.world, [&](tpfsdp_context *context, int32_t rank) {
      SCOPED_TRACE("case " + text + "rank " + std::to_string(rank));
      Model(context, rank, rules).run();
    });
    if (HasFailure()) return;
  }
}

}  // namespace
