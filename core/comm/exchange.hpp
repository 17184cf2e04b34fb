// SPDX-License-Identifier: Apache-2.0
// A small value of every rank of a group, for set-up: groups, meshes, checks that ranks began alike.
#pragma once

#include "comm/group.hpp"

#include <cstring>
#include <type_traits>

namespace tpfsdp {

// Collective: each rank's `size_bytes` bytes into `all`, in rank order.
void exchange_bytes(const Ref<Group> &group, const void *mine, int64_t size_bytes, void *all);

template <class Value>
std::vector<Value> exchange(const Ref<Group> &group, const Value &mine) {
  static_assert(std::is_trivially_copyable_v<Value> && std::has_unique_object_representations_v<Value>);
  std::vector<Value> all(static_cast<size_t>(group->size()));
  exchange_bytes(group, &mine, sizeof(Value), all.data());
  return all;
}

}  // namespace tpfsdp
