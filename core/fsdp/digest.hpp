// SPDX-License-Identifier: Apache-2.0
// What ranks compare once before the first step: names, shapes, dtypes, trainability, ties, policies and, by hash,
// values. Equal digests cost one small gather; unequal ones are spelled out, so that the error names parameter and
// ranks.
#pragma once

#include "comm/group.hpp"
#include "comm/work.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace tpfsdp {

class Root;

class DigestExchange {
 public:
  explicit DigestExchange(const Root &root);

  // OK when all ranks of all groups start alike, PENDING; throws MISMATCH on every rank alike.
  Status wait(bool may_wait);

 private:
  struct Entry {
    Ref<Group> group;
    std::vector<std::string> lines;  // one per parameter of the units of this group
    std::array<uint64_t, 2> mine{};  // hash of the lines, their number
    std::vector<uint64_t> all;
    Ref<Work> work;
  };
  void start(Entry &entry);
  [[noreturn]] void explain(const Entry &entry) const;

  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace tpfsdp
