// SPDX-License-Identifier: Apache-2.0
// Reductions of floating inputs, and additions. The usual case is one pass of a kernel over all inputs; whatever needs
// a rounding on the way in or out goes through blocks on the stack.
#include "device/float_environment.hpp"
#include "device/float_formats.hpp"
#include "device/kernel_table.hpp"
#include "device/kernels.hpp"
#include "device/reduce_integers.hpp"

#include <algorithm>
#include <type_traits>

namespace tpfsdp {
namespace {

constexpr int64_t kBlock = 1024;
constexpr int32_t kGroup = 64;  // inputs of one kernel call in a block

struct Inputs {
  const void *const *data;
  int32_t count;
  tpfsdp_dtype dtype;
  tpfsdp_dtype reduce_dtype;
};

const void *at(const void *data, tpfsdp_dtype dtype, int64_t index) {
  return static_cast<const char *>(data) + index * (dtype_bits(dtype) / 8);
}
void *at(void *data, tpfsdp_dtype dtype, int64_t index) {
  return static_cast<char *>(data) + index * (dtype_bits(dtype) / 8);
}

template <class Real>
constexpr tpfsdp_dtype kDtypeOf = std::is_same_v<Real, double> ? TPFSDP_DTYPE_F64 : TPFSDP_DTYPE_F32;

// The kernel that widens and sums inputs of this type, if there is one.
template <class Real>
SumKernel<Real> sum_kernel(tpfsdp_dtype dtype) {
  const KernelTable &table = kernels();
  if constexpr (std::is_same_v<Real, double>) {
    return dtype == TPFSDP_DTYPE_F64 ? table.sum_f64 : nullptr;
  } else {
    switch (dtype) {
      case TPFSDP_DTYPE_F32: return table.sum_f32;
      case TPFSDP_DTYPE_BF16: return table.sum_bf16;
      case TPFSDP_DTYPE_F16: return table.sum_f16;
      default: return nullptr;
    }
  }
}

// Does every value of `from` exist in `to`?
bool is_exact(tpfsdp_dtype from, tpfsdp_dtype to) {
  return from == to || to == TPFSDP_DTYPE_F64 || (to == TPFSDP_DTYPE_F32 && from != TPFSDP_DTYPE_F64);
}

// One rank's block as the reduction sees it: rounded to the reduce dtype, then widened.
template <class Real>
void load_block(const Inputs &inputs, int32_t rank, int64_t start, int64_t length, Real *wide) {
  const void *source = at(inputs.data[rank], inputs.dtype, start);
  double rounded[kBlock];
  if (!is_exact(inputs.dtype, inputs.reduce_dtype)) {
    cast(rounded, inputs.reduce_dtype, source, inputs.dtype, length);
    cast(wide, kDtypeOf<Real>, rounded, inputs.reduce_dtype, length);
  } else {
    cast(wide, kDtypeOf<Real>, source, inputs.dtype, length);
  }
}

template <class Real>
void sum_block(const Inputs &inputs, Real scale, int64_t start, int64_t length, Real *total) {
  const SumKernel<Real> direct = is_exact(inputs.dtype, inputs.reduce_dtype) ? sum_kernel<Real>(inputs.dtype) : nullptr;
  if (direct && inputs.count <= kGroup) {
    const void *sources[kGroup];
    for (int32_t rank = 0; rank < inputs.count; ++rank) sources[rank] = at(inputs.data[rank], inputs.dtype, start);
    direct(sources, inputs.count, scale, false, total, length);
    return;
  }
  const SumKernel<Real> sum = sum_kernel<Real>(kDtypeOf<Real>);
  Real next[kBlock];
  load_block(inputs, 0, start, length, total);
  for (int32_t rank = 1; rank < inputs.count; ++rank) {
    load_block(inputs, rank, start, length, next);
    const void *both[] = {total, next};
    sum(both, 2, Real{1}, false, total, length);
  }
  const void *all[] = {total};
  sum(all, 1, scale, false, total, length);
}

// Ties, as between -0 and +0, keep the earlier rank's; a NaN stays.
template <class Real>
void extreme_block(const Inputs &inputs, bool is_max, int64_t start, int64_t length, Real *total) {
  Real next[kBlock];
  load_block(inputs, 0, start, length, total);
  for (int32_t rank = 1; rank < inputs.count; ++rank) {
    load_block(inputs, rank, start, length, next);
    for (int64_t i = 0; i < length; ++i) {
      const bool is_better = is_max ? next[i] > total[i] : next[i] < total[i];
      total[i] = is_better || next[i] != next[i] ? next[i] : total[i];
    }
  }
  for (int64_t i = 0; i < length; ++i) total[i] = one_nan(total[i]);
}

template <class Real>
void reduce_as(tpfsdp_reduce_op op, const Inputs &inputs, Real scale, void *output, tpfsdp_dtype output_dtype,
               int64_t count, bool accumulate) {
  const bool is_sum = op == TPFSDP_REDUCE_SUM || op == TPFSDP_REDUCE_AVG;
  const SumKernel<Real> direct = sum_kernel<Real>(inputs.dtype);
  if (is_sum && direct && inputs.reduce_dtype == kDtypeOf<Real> && output_dtype == kDtypeOf<Real>) {
    direct(inputs.data, inputs.count, scale, accumulate, output, count);
    return;
  }
  Real total[kBlock];
  double rounded[kBlock], result[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    if (is_sum) {
      sum_block(inputs, scale, start, length, total);
    } else {
      extreme_block(inputs, op == TPFSDP_REDUCE_MAX, start, length, total);
    }
    void *target = at(output, output_dtype, start);
    cast(rounded, inputs.reduce_dtype, total, kDtypeOf<Real>, length);
    if (accumulate) {
      cast(result, output_dtype, rounded, inputs.reduce_dtype, length);
      add(target, output_dtype, result, output_dtype, length);
    } else {
      cast(target, output_dtype, rounded, inputs.reduce_dtype, length);
    }
  }
}

// What the sum is multiplied by.
template <class Real>
Real scale_of(tpfsdp_reduce_op op, [[maybe_unused]] double divisor) {
  if (op != TPFSDP_REDUCE_AVG) return Real{1};
#if defined(TPFSDP_MUTANT_NO_DIVIDE)
  return Real{1};
#elif defined(TPFSDP_MUTANT_DIVIDE_TWICE)
  return static_cast<Real>(1.0 / divisor) * static_cast<Real>(1.0 / divisor);
#else
  return static_cast<Real>(1.0 / divisor);
#endif
}

template <class Real>
void add_as(void *target, tpfsdp_dtype target_dtype, const void *source, tpfsdp_dtype source_dtype, int64_t count) {
  if (target_dtype == kDtypeOf<Real>) {
    if (const SumKernel<Real> direct = sum_kernel<Real>(source_dtype)) {
      direct(&source, 1, Real{1}, true, target, count);
      return;
    }
  }
  Real left[kBlock], right[kBlock];
  const void *both[] = {left, right};
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    cast(left, kDtypeOf<Real>, at(target, target_dtype, start), target_dtype, length);
    cast(right, kDtypeOf<Real>, at(source, source_dtype, start), source_dtype, length);
    sum_kernel<Real>(kDtypeOf<Real>)(both, 2, Real{1}, false, left, length);
    cast(at(target, target_dtype, start), target_dtype, left, kDtypeOf<Real>, length);
  }
}

}  // namespace

void add(void *target, tpfsdp_dtype target_dtype, const void *source, tpfsdp_dtype source_dtype, int64_t count) {
  if (!is_floating(target_dtype) || !is_floating(source_dtype))
    fail(TPFSDP_ERR_UNSUPPORTED, "no addition of ", dtype_name(source_dtype), " to ", dtype_name(target_dtype),
         "; f64, f32, f16 and bf16 can be added");
  const FloatEnvironment environment;
  if (target_dtype == TPFSDP_DTYPE_F64) {
    add_as<double>(target, target_dtype, source, source_dtype, count);
  } else {
    add_as<float>(target, target_dtype, source, source_dtype, count);
  }
}

void reduce(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
            tpfsdp_dtype reduce_dtype, void *output, tpfsdp_dtype output_dtype, int64_t count, double divisor,
            bool accumulate) {
  if (op < TPFSDP_REDUCE_SUM || op > TPFSDP_REDUCE_MAX)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "reduce op ", op, " is unknown; SUM, AVG, MIN and MAX are ",
         TPFSDP_REDUCE_SUM + 0, " to ", TPFSDP_REDUCE_MAX + 0);
  if (input_count < 1)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a reduction of ", input_count, " inputs; one at least is needed");
  if (op == TPFSDP_REDUCE_AVG && !(divisor > 0))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "an average divides by ", divisor, "; the divisor must be positive");
#if defined(TPFSDP_MUTANT_ACCUMULATE_OVERWRITES)
  accumulate = false;
#endif
  const bool is_all_floating = is_floating(dtype) && is_floating(reduce_dtype) && is_floating(output_dtype);
  const bool is_one_integer = is_integer(dtype) && reduce_dtype == dtype && output_dtype == dtype;
  if (!is_all_floating && !is_one_integer)
    fail(TPFSDP_ERR_UNSUPPORTED, "no reduction of ", dtype_name(dtype), " in ", dtype_name(reduce_dtype), " to ",
         dtype_name(output_dtype), "; f64, f32, f16 and bf16 can be mixed, integers of 8 to 64 bits stay as they are");
  if (is_one_integer) {
    reduce_integers(op, inputs, input_count, dtype, output, count, divisor, accumulate);
    return;
  }
  const FloatEnvironment environment;
  const Inputs all{inputs, input_count, dtype, reduce_dtype};
  if (reduce_dtype == TPFSDP_DTYPE_F64) {
    reduce_as(op, all, scale_of<double>(op, divisor), output, output_dtype, count, accumulate);
  } else {
    reduce_as(op, all, scale_of<float>(op, divisor), output, output_dtype, count, accumulate);
  }
}

}  // namespace tpfsdp
