// SPDX-License-Identifier: Apache-2.0
// Something under way.
#pragma once

#include "base/error.hpp"
#include "base/object.hpp"

namespace tpfsdp {

class Work : public Object {
 public:
  static constexpr Kind kKind = Kind::kWork;
  Kind kind() const override { return kKind; }
  // OK, or PENDING when it is not finished and must not wait; throws what the operation failed with, each time.
  virtual Status wait(bool may_wait) = 0;
};

}  // namespace tpfsdp
