// SPDX-License-Identifier: Apache-2.0
// For tests of unshard modes: the modes with one copy of full values a host, and what a rank of two owns of a chain.
#pragma once

#include "support/chain.hpp"

namespace modes {

constexpr tpfsdp_unshard_mode kPrivate = TPFSDP_UNSHARD_PRIVATE, kShared = TPFSDP_UNSHARD_SHARED,
                              kMapped = TPFSDP_UNSHARD_MAPPED;

inline std::string name_of(tpfsdp_unshard_mode mode) {
  return mode == TPFSDP_UNSHARD_SHARED ? "shared" : mode == TPFSDP_UNSHARD_MAPPED ? "mapped" : "private";
}

inline tpfsdp_fully_shard_options options(tpfsdp_unshard_mode mode) {
  tpfsdp_fully_shard_options out = TPFSDP_INIT(tpfsdp_fully_shard_options);
  out.unshard_mode = mode;
  return out;
}

inline chain::Shape shape(tpfsdp_unshard_mode mode, int64_t blocks = 3) {
  return {.blocks = blocks, .options = options(mode)};
}

// Of a unit of the chain, a weight (5, 5) and a bias (5): three rows of five on rank 0 of two.
inline int64_t own_bytes(int32_t rank) { return rank == 0 ? 72 : 48; }

class Common : public testing::TestWithParam<tpfsdp_unshard_mode> {};

inline std::string name_of_test(const testing::TestParamInfo<tpfsdp_unshard_mode> &tested) {
  return name_of(tested.param);
}

inline tpfsdp_unit *unit_of(tpfsdp_module *module) {
  tpfsdp_unit *unit = nullptr;
  API(tpfsdp_fsdp_module_get_unit, module, 0, &unit);
  return unit;
}

inline bool is_full(tpfsdp_module *module) { return api::unit_info(module).sharded_state == TPFSDP_SHARDED_UNSHARDED; }

inline void unshard(tpfsdp_module *module) { API(tpfsdp_fsdp_module_unshard, module, nullptr); }
inline void reshard(tpfsdp_module *module) { API(tpfsdp_fsdp_module_reshard, module); }
// Posts the gather and waits for nothing.
inline api::Owned<tpfsdp_work> start_unshard(tpfsdp_module *module) {
  tpfsdp_work *work = nullptr;
  API(tpfsdp_fsdp_module_unshard, module, &work);
  return api::Owned<tpfsdp_work>(work);
}

inline chain::Values full_values(tpfsdp_param *param) {
  return api::values_of<float>(api::face(param, TPFSDP_FACE_FULL));
}

inline void fill_shard(tpfsdp_param *param, float value) {
  const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD);
  std::fill_n(static_cast<float *>(shard.data), api::count_of(shard), value);
}

// A weight (5, 5) of which rank 0 of two wrote its three rows and rank 1 the others.
inline chain::Values rows(float first, float second) {
  chain::Values values(15, first);
  values.insert(values.end(), 10, second);
  return values;
}

// A wait that is cancelled instead of ending.
inline void expect_waits(tpfsdp_context *context, const std::function<void()> &call) {
  const chain::Interrupt interrupt(context);
  const api::Error error = chain::caught(call);
  EXPECT_EQ(error.status, TPFSDP_ERR_CANCELLED) << error.what();
}

inline void begin_write(const chain::Chain &model) { API(tpfsdp_shards_begin_write, model.root()); }
inline void end_write(const chain::Chain &model) { API(tpfsdp_shards_end_write, model.root()); }

}  // namespace modes
