// SPDX-License-Identifier: Apache-2.0
// Ranks on a grid with named dimensions; each dimension has its group.
#pragma once

#include "comm/group.hpp"

namespace tpfsdp {

class Mesh final : public Object {
 public:
  static constexpr Kind kKind = Kind::kMesh;

  // One group per dimension (this rank's line along it), outermost first.
  Mesh(std::vector<Ref<Group>> groups, std::vector<std::string> names, Ref<Mesh> parent);

  // Collective over `group`: makes the groups of all dimensions.
  static Ref<Mesh> create(const Ref<Group> &group, const std::vector<int32_t> &sizes, std::vector<std::string> names);
  // Collective over all groups; makes none.
  static Ref<Mesh> from_groups(std::vector<Ref<Group>> groups, std::vector<std::string> names);
  // The mesh of some dimensions in any order; keeps this one alive.
  Ref<Mesh> slice(const std::vector<std::string> &names);
  // Collective over the ranks of those dimensions: merges them, row-major in the order given.
  Ref<Mesh> flatten(const std::vector<std::string> &names, const std::string &new_name);

  Kind kind() const override { return kKind; }
  Gate *gate() const override { return groups_.front()->gate(); }
  std::string describe_rank() const override { return groups_.front()->describe_rank(); }

  int32_t ndim() const { return static_cast<int32_t>(groups_.size()); }
  const std::vector<int32_t> &sizes() const { return sizes_; }
  const std::vector<int32_t> &coordinates() const { return coordinates_; }
  const std::vector<std::string> &names() const { return names_; }  // empty: unnamed
  const std::vector<const char *> &name_pointers() const { return name_pointers_; }
  int32_t rank_count() const;
  const Ref<Group> &group(int32_t dim) const { return groups_[static_cast<size_t>(dim)]; }

 private:
  std::vector<size_t> find(const std::vector<std::string> &names) const;

  std::vector<Ref<Group>> groups_;
  std::vector<std::string> names_;
  std::vector<const char *> name_pointers_;
  std::vector<int32_t> sizes_;
  std::vector<int32_t> coordinates_;
  Ref<Mesh> parent_;
};

}  // namespace tpfsdp
