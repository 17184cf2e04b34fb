// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.hpp"

#include "base/hash.hpp"
#include "comm/exchange.hpp"
#include "comm/mesh_grid.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>

namespace tpfsdp {
namespace {

void check_names(const std::vector<std::string> &names, size_t dimensions) {
  if (names.empty()) return;
  if (names.size() != dimensions)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a mesh of ", dimensions, " dimensions was given ", names.size(), " names");
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "names[", i, "] is empty");
    if (!seen.insert(names[i]).second)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "two dimensions are called \"", names[i], "\"");
  }
}

std::string list_text(const std::vector<std::string> &names) {
  std::string text;
  for (const std::string &name : names) text += cat(text.empty() ? "\"" : ", \"", name, "\"");
  return text.empty() ? "no names" : text;
}

std::string mesh_text(const std::vector<int32_t> &sizes, const std::vector<std::string> &names) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) text += cat(i ? " x " : "", names.empty() ? "" : names[i] + "=", sizes[i]);
  return text;
}

// What ranks must have in common before they make groups, and a text to show when they do not.
struct MeshVote {
  int64_t number;
  uint64_t hash;
  std::array<char, 48> text;
};

void agree_on_mesh(const Ref<Group> &group, const std::string &text) {
  Rank &owner = group->owner();
  MeshVote mine{owner.last_group_number, hash_text(text), {}};
  text.copy(mine.text.data(), mine.text.size() - 1);
  const std::vector<MeshVote> votes = exchange(group, mine);
  bool is_same = true;
  std::string all;
  for (size_t i = 0; i < votes.size(); ++i) {
    owner.last_group_number = std::max(owner.last_group_number, votes[i].number);
    is_same = is_same && votes[i].hash == mine.hash;
    all += cat(i ? ", rank " : "rank ", i, " ", votes[i].text.data());
  }
  if (!is_same)
    fail(TPFSDP_ERR_MISMATCH, owner.describe(), ": the ranks of group \"", group->name(),
         "\" ask for different meshes: ", all);
}

// A call over several groups was refused: the peers begin with one of them, or fail alike.
[[noreturn]] void fail_on_all(const std::vector<Ref<Group>> &groups, const Failure &failure) {
  for (const Ref<Group> &group : groups) {
    if (group == groups.back()) continue;
    group->post_failure(failure.status(), failure.what());
    group->give_up();
  }
  fail_collective(*groups.back(), failure);
}

}  // namespace

Mesh::Mesh(std::vector<Ref<Group>> groups, std::vector<std::string> names, Ref<Mesh> parent)
    : groups_(std::move(groups)), names_(std::move(names)), parent_(std::move(parent)) {
  TPFSDP_CHECK(!groups_.empty());
  check_names(names_, groups_.size());
  for (const std::string &name : names_) name_pointers_.push_back(name.c_str());
  for (const Ref<Group> &group : groups_) {
    sizes_.push_back(group->size());
    coordinates_.push_back(group->rank());
  }
}

int32_t Mesh::rank_count() const {
  int32_t count = 1;
  for (const int32_t size : sizes_) count *= size;
  return count;
}

Ref<Mesh> Mesh::create(const Ref<Group> &group, const std::vector<int32_t> &sizes, std::vector<std::string> names) {
  try {
    if (sizes.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "a mesh has at least one dimension");
    check_names(names, sizes.size());
    int64_t product = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] < 1) fail(TPFSDP_ERR_INVALID_ARGUMENT, "sizes[", i, "] is ", sizes[i]);
      product = std::min<int64_t>(product * sizes[i], INT32_MAX);
    }
    if (product != group->size())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "a mesh of ", mesh_text(sizes, names), " holds ", product,
           " ranks, but group \"", group->name(), "\" has ", group->size());
  } catch (const Failure &failure) {
    fail_collective(*group, failure);
  }
  if (group->size() > 1) agree_on_mesh(group, mesh_text(sizes, names));

  // Row-major: the stride of a dimension is the product of those inside it.
  std::vector<Ref<Group>> groups;
  int32_t stride = group->size();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    stride /= sizes[dim];
    if (sizes[dim] == group->size()) {
      groups.push_back(group);
      continue;
    }
    const int32_t coordinate = group->rank() / stride % sizes[dim];
    std::vector<int32_t> line;
    for (int32_t i = 0; i < sizes[dim]; ++i) {
      const int32_t member = group->rank() + (i - coordinate) * stride;
      line.push_back(group->global_ranks()[static_cast<size_t>(member)]);
    }
    std::string name = names.empty() ? cat("dim", dim) : names[dim];
    std::string key = group_key(name, line, ++group->owner().last_group_number);
    groups.push_back(make<Group>(group->owner_ptr(), std::move(name), std::move(key), std::move(line)));
  }
  return make<Mesh>(std::move(groups), std::move(names), nullptr);
}

Ref<Mesh> Mesh::from_groups(std::vector<Ref<Group>> groups, std::vector<std::string> names) {
  if (groups.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "a mesh has at least one group");
  try {
    check_names(names, groups.size());
  } catch (const Failure &failure) {
    fail_on_all(groups, failure);
  }
  check_grid(groups);
  return make<Mesh>(std::move(groups), std::move(names), nullptr);
}

std::vector<size_t> Mesh::find(const std::vector<std::string> &names) const {
  if (names.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "no dimension was named; the mesh has ", list_text(names_));
  std::vector<size_t> dims;
  for (const std::string &name : names) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end())
      fail(TPFSDP_ERR_NOT_FOUND, "the mesh has no dimension \"", name, "\"; it has ", list_text(names_));
    const auto dim = static_cast<size_t>(found - names_.begin());
    if (std::find(dims.begin(), dims.end(), dim) != dims.end())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "dimension \"", name, "\" was named twice");
    dims.push_back(dim);
  }
  return dims;
}

Ref<Mesh> Mesh::slice(const std::vector<std::string> &names) {
  std::vector<Ref<Group>> groups;
  for (const size_t dim : find(names)) groups.push_back(groups_[dim]);
  return make<Mesh>(std::move(groups), names, Ref<Mesh>(this));
}

Ref<Mesh> Mesh::flatten(const std::vector<std::string> &names, const std::string &new_name) {
  std::vector<Ref<Group>> merged;
  try {
    if (new_name.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "new_name is empty");
    for (const size_t dim : find(names)) merged.push_back(groups_[dim]);
  } catch (const Failure &failure) {
    fail_on_all(groups_, failure);
  }
  Ref<Group> group = merged.front();
  if (merged.size() > 1) {
    const Grid grid = gather_grid(merged);
    Rank &owner = merged.front()->owner();
    owner.last_group_number = std::max(owner.last_group_number, grid.last_group_number) + 1;
    std::string key = group_key("flat", grid.global_ranks, owner.last_group_number);
    group = make<Group>(merged.front()->owner_ptr(), new_name, std::move(key), grid.global_ranks);
  }
  return make<Mesh>(std::vector{std::move(group)}, std::vector{new_name}, Ref<Mesh>(this));
}

}  // namespace tpfsdp
