// SPDX-License-Identifier: Apache-2.0
// What is done to elements on the CPU: copy, cast, add, reduce. One table of functions, filled once by cpuid
// (TPFSDP_ISA=baseline|avx2|avx512 overrides); every level gives the same bits. Round to nearest even, subnormals kept,
// NaN results quiet: kernels set MXCSR for themselves and put it back.
#pragma once

#include "base/error.hpp"
#include "tensor/dtype.hpp"

namespace tpfsdp {

// Large copies go past the caches.
void copy_bytes(void *target, const void *source, int64_t size_bytes) noexcept;
void zero_bytes(void *target, int64_t size_bytes) noexcept;

// Between any two of f64, f32, f16, bf16 and integers; equal dtypes of any kind copy. Floats become integers by
// truncation, out of range the nearest one, NaN 0; integers become narrower ones by wrapping. Throws UNSUPPORTED.
void cast(void *target, tpfsdp_dtype target_dtype, const void *source, tpfsdp_dtype source_dtype, int64_t count);

// target += source, of any two floating dtypes: added in f32 (f64 for an f64 target), then rounded once to the
// target's.
void add(void *target, tpfsdp_dtype target_dtype, const void *source, tpfsdp_dtype source_dtype, int64_t count);

// As tpfsdp_backend_op says: inputs of ranks 0.. left to right in f32 (f64 for f64), one multiply by (float)(1.0 /
// divisor) for AVG, one rounding to reduce_dtype, one cast to output_dtype; accumulate adds to the output in its dtype.
// Integers wrap; AVG divides last, truncating; MIN and MAX propagate NaN. Throws UNSUPPORTED for other dtypes.
void reduce(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
            tpfsdp_dtype reduce_dtype, void *output, tpfsdp_dtype output_dtype, int64_t count, double divisor,
            bool accumulate);

const char *kernel_level() noexcept;  // "avx512"

}  // namespace tpfsdp
