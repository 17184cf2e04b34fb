// SPDX-License-Identifier: Apache-2.0
// The containers that results of unknown length come in: snapshots of named things, and bytes.
#pragma once

#include "base/object.hpp"

#include <string>
#include <utility>
#include <vector>

namespace tpfsdp::capi {

class List final : public Object {
 public:
  static constexpr Kind kKind = Kind::kList;
  using Entry = std::pair<std::string, Ref<Object>>;  // the name, and a module, parameter or tensor

  explicit List(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  Kind kind() const override { return kKind; }
  // Of its entries: the last reference to a module or parameter is given back inside their rank.
  Gate *gate() const override {
    return entries_.empty() || !entries_.front().second ? nullptr : entries_.front().second->gate();
  }
  const std::vector<Entry> &entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

class Blob final : public Object {
 public:
  static constexpr Kind kKind = Kind::kBlob;

  explicit Blob(std::string bytes) : bytes_(std::move(bytes)) {}
  Kind kind() const override { return kKind; }
  const std::string &bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace tpfsdp::capi
