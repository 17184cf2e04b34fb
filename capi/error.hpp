// SPDX-License-Identifier: Apache-2.0
// Error objects: what a failed call hands out.
#pragma once

#include "base/error.hpp"
#include "base/object.hpp"

#include <memory>

namespace tpfsdp::capi {

class Error final : public Object {
 public:
  static constexpr Kind kKind = Kind::kError;

  // The error behind it gets its handle here too, so that asking for it cannot fail.
  explicit Error(std::shared_ptr<const ErrorDetail> detail);

  Kind kind() const override { return kKind; }
  const ErrorDetail &detail() const { return *detail_; }
  void *cause_handle() const { return cause_handle_; }  // borrowed; null if none

 private:
  std::shared_ptr<const ErrorDetail> detail_;
  Ref<Error> cause_;
  void *cause_handle_ = nullptr;
};

}  // namespace tpfsdp::capi
