// SPDX-License-Identifier: Apache-2.0
// The methods of sharded modules that a set-up may call, under PyTorch's names:
//
//   {"method": "set_requires_gradient_sync", "on": ["b0", "b1"], "value": "last", "recurse": false}
//   {"method": "set_modules_to_forward_prefetch", "on": "b0", "modules": ["b1", "b2"]}
//
// on: a path or a list of them, "" (the root) if left out. recurse: true if left out. The value "last" is true at the
// last micro-batch of an iteration.
#pragma once

#include "goldens/model.hpp"

namespace goldens {

bool is_known(const json &call);

void call(const json &described, const Model &model, bool is_last);

}  // namespace goldens
