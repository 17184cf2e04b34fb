// SPDX-License-Identifier: Apache-2.0
// What ranks compare once before the first step: names, shapes, dtypes, trainability, ties, policies and, by hash,
// values. Equal digests cost one small gather; unequal ones are spelled out, so that the error names parameter and
// ranks.
#pragma once

#include "comm/group.hpp"
#include "comm/work.hpp"
#include "fsdp/unshard_mode.hpp"

#include <memory>
#include <string>
#include <vector>

namespace tpfsdp {

class Root;

class ParamGroup;

// Of the units of one group of several ranks.
class Digest {
 public:
  // `wanted`: what this rank wants for units whose mode is left to the library.
  Digest(Ref<Group> group, const std::vector<const ParamGroup *> &units, UnshardMode wanted);

  const Group &group() const { return *group_; }
  // OK when all ranks start alike, PENDING; throws MISMATCH on every rank alike.
  Status wait(bool may_wait);
  // What any rank wanted most. Once wait was OK.
  UnshardMode agreed_mode() const;

 private:
  // All numbers: they are gathered as one array.
  struct Offer {
    uint64_t hash = 0;  // of the lines
    uint64_t line_count = 0;
    uint64_t wanted = 0;
  };
  [[noreturn]] void explain() const;

  Ref<Group> group_;
  std::vector<std::string> lines_;  // one per parameter
  Offer mine_;
  std::vector<Offer> all_;
  Ref<Work> work_;
};

class DigestExchange {
 public:
  DigestExchange(const Root &root, UnshardMode wanted);

  // As of Digest, of all groups.
  Status wait(bool may_wait);
  UnshardMode agreed_mode(const Group &group) const;

 private:
  std::vector<std::unique_ptr<Digest>> digests_;
};

}  // namespace tpfsdp
