// SPDX-License-Identifier: Apache-2.0
// Reductions of integers: they wrap in their own type; an average divides the sum, truncating.
#pragma once

#include <tpfsdp/backend.h>

namespace tpfsdp {

// `dtype` is an integer, of inputs and output; AVG needs a whole divisor (UNSUPPORTED).
void reduce_integers(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
                     void *output, int64_t count, double divisor, bool accumulate);

}  // namespace tpfsdp
