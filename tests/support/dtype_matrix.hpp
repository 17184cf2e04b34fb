// SPDX-License-Identifier: Apache-2.0
// The cases of test_fully_shard_dtype_matrix, and what one process makes of each: full values, gradients, shards.
#pragma once

#include "support/numbers.hpp"
#include "support/pairwise.hpp"

namespace matrix {

using numbers::added;
using numbers::Numbers;
using numbers::rounded;

// ---- Cases ---------------------------------------------------------------------------------------------------------

struct Policy {
  tpfsdp_dtype own, param, reduce;  // 0: none
};
inline constexpr std::array kPolicies{
    Policy{TPFSDP_DTYPE_F32, 0, 0},
    Policy{TPFSDP_DTYPE_F32, TPFSDP_DTYPE_BF16, 0},
    Policy{TPFSDP_DTYPE_F32, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_BF16},
    Policy{TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F16, TPFSDP_DTYPE_F32},
    Policy{TPFSDP_DTYPE_F32, 0, TPFSDP_DTYPE_BF16},
    Policy{TPFSDP_DTYPE_F64, TPFSDP_DTYPE_F32, 0},
    Policy{TPFSDP_DTYPE_F64, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32},
    Policy{TPFSDP_DTYPE_F64, TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F16},
    Policy{TPFSDP_DTYPE_BF16, TPFSDP_DTYPE_F32, TPFSDP_DTYPE_F32},
};
// Where full values lie, and what stays of them between forward and backward: choices that others do not overrule.
struct Place {
  tpfsdp_unshard_mode mode;
  tpfsdp_reshard_kind reshard;
  bool is_host = false;
};
inline constexpr std::array kPlaces{
    Place{TPFSDP_UNSHARD_PRIVATE, TPFSDP_RESHARD_ALWAYS},    Place{TPFSDP_UNSHARD_PRIVATE, TPFSDP_RESHARD_NEVER},
    Place{TPFSDP_UNSHARD_PRIVATE, TPFSDP_RESHARD_SIZE},      Place{TPFSDP_UNSHARD_SHARED, TPFSDP_RESHARD_ALWAYS},
    Place{TPFSDP_UNSHARD_SHARED, TPFSDP_RESHARD_NEVER},      Place{TPFSDP_UNSHARD_MAPPED, TPFSDP_RESHARD_ALWAYS},
    Place{TPFSDP_UNSHARD_MAPPED, TPFSDP_RESHARD_NEVER},      Place{TPFSDP_UNSHARD_PRIVATE, TPFSDP_RESHARD_ALWAYS, true},
    Place{TPFSDP_UNSHARD_PRIVATE, TPFSDP_RESHARD_SIZE, true}};
inline constexpr int32_t kPartWorld = 4;  // the one where SIZE(2) is neither everything nor nothing
enum Summing { kOnce, kTwice, kWithoutSync, kEachReduced, kSummings };
enum Between { kNothing, kWindow, kFreezing, kReset, kBetweens };

// Each choice: how many there are.
enum Choice { kPolicy, kGranule, kPlace, kWorld, kSumming, kBetween, kUnused, kChoices };
inline constexpr std::array<int, kChoices> kCounts{kPolicies.size(), 4, kPlaces.size(), 5, kSummings, kBetweens, 2};
using Case = std::array<int, kChoices>;

inline std::vector<Case> cases() {
  std::vector<Case> out = pairwise::cases_of(kCounts);
  for (size_t i = 0, count = out.size(); i < count; ++i) {
    Case in_parts = out[i];
    in_parts[kWorld] = kPartWorld - 1;
    if (kPlaces[static_cast<size_t>(in_parts[kPlace])].reshard == TPFSDP_RESHARD_SIZE && in_parts != out[i])
      out.push_back(in_parts);
  }
  return out;
}

// ---- As one process ------------------------------------------------------------------------------------------------

struct Spec {
  const char *name;
  std::vector<int64_t> shape;
  int unit;
  bool trainable = true;
  int64_t count() const {
    int64_t out = 1;
    for (const int64_t size : shape) out *= size;
    return out;
  }
};
inline const std::vector<Spec> kSpecs{
    {"a", {5, 3}, 0},  {"b", {7}, 0},  {"one", {1, 6}, 0}, {"none", {0, 4}, 0}, {"mask", {4, 2}, 0, false},
    {"w0", {4, 3}, 1}, {"v0", {9}, 1}, {"w1", {4, 3}, 2},  {"v1", {3}, 2}};

inline double noise(int a, int b, int c, size_t i) {
  uint32_t bits = 0;
  for (const auto part :
       {static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(c), static_cast<uint32_t>(i)})
    bits = (bits ^ part) * 2654435761u;
  bits ^= bits >> 15;
  bits *= 2246822519u;
  return (static_cast<double>(bits >> 4) / (1 << 28) - 0.5) * 3;
}

struct Rules {
  explicit Rules(const Case &given) : chosen(given) {
    const Policy &policy = kPolicies[static_cast<size_t>(given[kPolicy])];
    own = policy.own;
    full = policy.param != 0 ? policy.param : own;
    reduce = policy.reduce != 0 ? policy.reduce : own;
    world = given[kWorld] + 1;
    micros = given[kSumming] >= kWithoutSync ? 3 : 1;
  }
  static Numbers in(tpfsdp_dtype dtype, Numbers values) {
    for (double &value : values) value = rounded(dtype, value);
    return values;
  }
  static Numbers noises(int a, int b, size_t p) {
    Numbers out(static_cast<size_t>(kSpecs[p].count()));
    for (size_t i = 0; i < out.size(); ++i) out[i] = noise(a, b, static_cast<int>(p), i);
    return out;
  }
  Numbers start(size_t p) const { return in(own, noises(100, 0, p)); }
  // Handed over in the dtype of computing.
  Numbers gradient(int rank, int step, int give, size_t p) const { return in(full, noises(rank, 10 * step + give, p)); }
  bool is_used(int step, size_t p) const { return step % 2 == 0 || kSpecs[p].name != std::string("b"); }
  bool is_frozen(int step, size_t p) const {
    return !kSpecs[p].trainable || (chosen[kBetween] == kFreezing && step == 1 && kSpecs[p].name == std::string("w0"));
  }
  bool has_gradient(int step, size_t p) const { return !is_frozen(step, p) && (is_used(step, p) || chosen[kUnused]); }

  // The reduced gradient of a step.
  Numbers reduced(int step, size_t p) const {
    const auto count = static_cast<size_t>(kSpecs[p].count());
    if (!is_used(step, p)) return Numbers(count);
    const auto average = [&](const std::vector<Numbers> &ranks) {
      Numbers out(count);
      for (size_t i = 0; i < count; ++i) {
        // In f32, or in f64 where that is the dtype of the reduction.
        double sum = rounded(reduce, ranks[0][i]);
        const auto wide = [&](double value) { return reduce == TPFSDP_DTYPE_F64 ? value : static_cast<float>(value); };
        for (size_t r = 1; r < ranks.size(); ++r) sum = wide(sum + rounded(reduce, ranks[r][i]));
        out[i] = rounded(own, rounded(reduce, wide(sum * wide(1.0 / world))));
      }
      return out;
    };
    std::vector<Numbers> sums;  // of each rank, without sync
    Numbers total;
    for (int micro = 0; micro < micros; ++micro) {
      std::vector<Numbers> now;
      for (int rank = 0; rank < world; ++rank) {
        now.push_back(gradient(rank, step, micro, p));
        if (chosen[kSumming] == kTwice) add(full, now.back(), gradient(rank, step, 5, p));
      }
      if (chosen[kSumming] == kEachReduced) {
        add(own, total, average(now));
        continue;
      }
      sums.resize(now.size());
      for (size_t r = 0; r < now.size(); ++r) add(reduce, sums[r], now[r]);
    }
    return chosen[kSumming] == kEachReduced ? total : average(sums);
  }
  static void add(tpfsdp_dtype dtype, Numbers &to, const Numbers &values) {
    if (to.empty()) {
      to = in(dtype, values);
      return;
    }
    for (size_t i = 0; i < to.size(); ++i) to[i] = added(dtype, to[i], values[i]);
  }

  Case chosen;
  tpfsdp_dtype own, full, reduce;
  int world, micros;
};

}  // namespace matrix
