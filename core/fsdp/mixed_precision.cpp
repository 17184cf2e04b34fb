// SPDX-License-Identifier: Apache-2.0
#include "fsdp/mixed_precision.hpp"

namespace tpfsdp {

void check_precision(const MixedPrecision &precision) {
  const auto check = [](const char *name, tpfsdp_dtype dtype) {
    if (dtype != 0 && !is_floating(dtype))
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "mp_policy.", name, " is ", dtype_name(dtype),
           "; f64, f32, f16, bf16 or 0 is needed");
  };
  check("param_dtype", precision.param_dtype);
  check("reduce_dtype", precision.reduce_dtype);
  check("output_dtype", precision.output_dtype);
}

}  // namespace tpfsdp
