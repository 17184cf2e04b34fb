// SPDX-License-Identifier: Apache-2.0
// Dtypes of computing and reducing, and the copies of shards that are gathered where they differ from the parameter's
// own. Activations are the host's: it is only told which dtypes they should have.
#pragma once

#include "base/error.hpp"
#include "tensor/dtype.hpp"

namespace tpfsdp {

class ParamGroup;

// 0: as it is without a policy.
struct MixedPrecision {
  tpfsdp_dtype param_dtype = 0;   // of full values
  tpfsdp_dtype reduce_dtype = 0;  // of reductions, and of gradients that add up before them
  tpfsdp_dtype output_dtype = 0;  // wished of the host, for floating outputs
  bool casts_forward_inputs = true;

  // Of a parameter; other than floating ones are never cast.
  tpfsdp_dtype full_dtype(tpfsdp_dtype own) const { return param_dtype != 0 && is_floating(own) ? param_dtype : own; }
  tpfsdp_dtype reduction_dtype(tpfsdp_dtype own) const {
    return reduce_dtype != 0 && is_floating(own) ? reduce_dtype : own;
  }
  tpfsdp_dtype input_dtype() const { return casts_forward_inputs ? param_dtype : 0; }
};

// Throws INVALID_ARGUMENT for a dtype that nothing is computed in.
void check_precision(const MixedPrecision &precision);

}  // namespace tpfsdp
