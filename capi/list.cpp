// SPDX-License-Identifier: Apache-2.0
#include "list.hpp"

#include "guard.hpp"
#include "handle.hpp"

#include <tpfsdp/list.h>

namespace tpfsdp::capi {
namespace {

const List::Entry &entry_at(const List &list, int64_t index) {
  const auto count = static_cast<int64_t>(list.entries().size());
  if (index < 0 || index >= count)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "index is ", index, ", but the list has ", count, " entries");
  return list.entries()[static_cast<size_t>(index)];
}

template <class Handle>
Status get_thing(const tpfsdp_list *list, int64_t index, Handle **out_thing, Kind kind, const char *name,
                 tpfsdp_error **error) noexcept {
  return guard(error, [&] {
    const auto held = hold<List>(list, "list");
    const auto &[entry_name, thing] = entry_at(*held, index);
    if (!thing || thing->kind() != kind)
      fail(TPFSDP_ERR_NOT_FOUND, "entry ", index, " (\"", entry_name, "\") of the list holds no ", name);
    required(out_thing, "the out-parameter") = borrowed<Handle>(thing.get());
  });
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp::capi;
using tpfsdp::Kind;

extern "C" {

tpfsdp_status tpfsdp_list_get_count(const tpfsdp_list *list, int64_t *out_count, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<List>(list, "list");
    required(out_count, "out_count") = static_cast<int64_t>(held->entries().size());
  });
}

tpfsdp_status tpfsdp_list_get_name(const tpfsdp_list *list, int64_t index, const char **out_name,
                                   tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<List>(list, "list");
    required(out_name, "out_name") = entry_at(*held, index).first.c_str();
  });
}

tpfsdp_status tpfsdp_list_get_module(const tpfsdp_list *list, int64_t index, tpfsdp_module **out_module,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return get_thing(list, index, out_module, Kind::kModule, "module", error);
}

tpfsdp_status tpfsdp_list_get_param(const tpfsdp_list *list, int64_t index, tpfsdp_param **out_param,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return get_thing(list, index, out_param, Kind::kParam, "parameter", error);
}

tpfsdp_status tpfsdp_list_get_tensor(const tpfsdp_list *list, int64_t index, tpfsdp_tensor **out_tensor,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return get_thing(list, index, out_tensor, Kind::kTensor, "tensor", error);
}

tpfsdp_status tpfsdp_blob_get(const tpfsdp_blob *blob, const void **out_data, int64_t *out_size_bytes,
                              tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Blob>(blob, "blob");
    int64_t &size_bytes = required(out_size_bytes, "out_size_bytes");
    required(out_data, "out_data") = held->bytes().c_str();
    size_bytes = static_cast<int64_t>(held->bytes().size());
  });
}

}  // extern "C"
