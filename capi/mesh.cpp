// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.hpp"

#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/mesh.h>

namespace tpfsdp::capi {
namespace {

std::vector<std::string> as_names(const char *const *names, int64_t name_count) {
  const int64_t count = as_count(name_count, names, "name_count");
  std::vector<std::string> copies;
  for (int64_t i = 0; i < count; ++i) {
    if (!names[i]) fail(TPFSDP_ERR_INVALID_ARGUMENT, "names[", i, "] is NULL");
    copies.emplace_back(names[i]);
  }
  return copies;
}

// As for any collective, the peers hear what is wrong with the arguments.
template <class Body>
auto arguments(Group &group, Body &&body) {
  try {
    return body();
  } catch (const Failure &failure) {
    fail_collective(group, failure);
  }
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_mesh_create(tpfsdp_group *group, const int32_t *sizes, int64_t size_count,
                                 const char *const *names, int64_t name_count, tpfsdp_mesh **out_mesh,
                                 tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Ref<Group> on(&entry.get<Group>(group, "group"));
    std::vector<int32_t> extents;
    const auto copies = arguments(*on, [&] {
      required(out_mesh, "out_mesh");
      extents.assign(sizes, sizes + as_count(size_count, sizes, "size_count"));
      return as_names(names, name_count);
    });
    *out_mesh = owned<tpfsdp_mesh>(Mesh::create(on, extents, copies).get());
  });
}

tpfsdp_status tpfsdp_mesh_create_from_groups(tpfsdp_group *const *groups, int64_t group_count, const char *const *names,
                                             int64_t name_count, tpfsdp_mesh **out_mesh,
                                             tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    std::vector<Ref<Group>> lines;
    for (int64_t i = 0; i < as_count(group_count, groups, "group_count"); ++i)
      lines.emplace_back(&entry.get<Group>(groups[i], "groups[i]"));
    if (lines.empty()) fail(TPFSDP_ERR_INVALID_ARGUMENT, "group_count is 0; a mesh has at least one group");
    const auto copies = arguments(*lines.back(), [&] {
      required(out_mesh, "out_mesh");
      return as_names(names, name_count);
    });
    *out_mesh = owned<tpfsdp_mesh>(Mesh::from_groups(std::move(lines), copies).get());
  });
}

tpfsdp_status tpfsdp_mesh_slice(tpfsdp_mesh *mesh, const char *const *names, int64_t name_count, tpfsdp_mesh **out_mesh,
                                tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Mesh &from = entry.get<Mesh>(mesh, "mesh");
    tpfsdp_mesh *&out = required(out_mesh, "out_mesh");
    out = owned<tpfsdp_mesh>(from.slice(as_names(names, name_count)).get());
  });
}

tpfsdp_status tpfsdp_mesh_flatten(tpfsdp_mesh *mesh, const char *const *names, int64_t name_count, const char *new_name,
                                  tpfsdp_mesh **out_mesh, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Mesh &from = entry.get<Mesh>(mesh, "mesh");
    std::string name;
    const auto copies = arguments(*from.group(from.ndim() - 1), [&] {
      required(out_mesh, "out_mesh");
      name = &required(new_name, "new_name");
      return as_names(names, name_count);
    });
    *out_mesh = owned<tpfsdp_mesh>(from.flatten(copies, name).get());
  });
}

tpfsdp_status tpfsdp_mesh_get_info(tpfsdp_mesh *mesh, tpfsdp_mesh_info *out_info,
                                   tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Mesh>(mesh, "mesh");
    tpfsdp_mesh_info info{};
    info.ndim = held->ndim();
    info.rank_count = held->rank_count();
    info.device_type = TPFSDP_DEVICE_CPU;
    info.sizes = held->sizes().data();
    info.coordinates = held->coordinates().data();
    info.names = held->names().empty() ? nullptr : held->name_pointers().data();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_mesh_get_group(tpfsdp_mesh *mesh, int32_t dim, tpfsdp_group **out_group,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Mesh>(mesh, "mesh");
    const int32_t index = dim < 0 ? dim + held->ndim() : dim;
    if (index < 0 || index >= held->ndim())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "dim is ", dim, ", but the mesh has ", held->ndim(), " dimensions");
    required(out_group, "out_group") = borrowed<tpfsdp_group>(held->group(index).get());
  });
}

}  // extern "C"
