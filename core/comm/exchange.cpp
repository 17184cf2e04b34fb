// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange.hpp"

#include "comm/collectives.hpp"

namespace tpfsdp {
namespace {

tpfsdp_view bytes_view(void *data, const int64_t *size_bytes) {
  tpfsdp_view view{};
  view.data = *size_bytes ? data : nullptr;
  view.size_bytes = *size_bytes;
  view.shape = size_bytes;
  view.ndim = 1;
  view.dtype = TPFSDP_DTYPE_U8;
  view.device_type = TPFSDP_DEVICE_CPU;
  return view;
}

}  // namespace

void exchange_bytes(const Ref<Group> &group, const void *mine, int64_t size_bytes, void *all) {
  const int64_t all_bytes = size_bytes * group->size();
  all_gather(group, bytes_view(const_cast<void *>(mine), &size_bytes), bytes_view(all, &all_bytes), {}, false);
}

}  // namespace tpfsdp
