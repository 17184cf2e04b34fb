// SPDX-License-Identifier: Apache-2.0
// The hot kernels, one table per instruction set. Callers hold a FloatEnvironment; memory may have any alignment,
// inputs and output may be the same but not overlap otherwise.
#pragma once

#include <cstdint>

namespace tpfsdp {

// output[i] = scale * (((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + ...), each widened to Real; accumulate adds it
// to what output holds. A NaN becomes the one quiet NaN.
template <class Real>
using SumKernel = void (*)(const void *const *inputs, int32_t input_count, Real scale, bool accumulate, void *output,
                           int64_t count);
using ConvertKernel = void (*)(void *target, const void *source, int64_t count);

struct KernelTable {
  const char *level;
  SumKernel<float> sum_f32, sum_bf16, sum_f16;  // by the type of the inputs; the output is f32
  SumKernel<double> sum_f64;
  ConvertKernel f32_from_bf16, f32_from_f16, bf16_from_f32, f16_from_f32;
  // Past the caches: for more than fits there. Ends with a store fence, so that a release store may follow.
  void (*stream_bytes)(void *target, const void *source, int64_t size_bytes);
};

extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

// The table in use, chosen at the first call; the levels that this CPU can run, for comparison.
const KernelTable &kernels() noexcept;
const KernelTable *kernels_of_level(const char *level) noexcept;  // null: unknown here, or this CPU cannot

}  // namespace tpfsdp
