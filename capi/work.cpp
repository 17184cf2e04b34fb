// SPDX-License-Identifier: Apache-2.0
#include "comm/work.hpp"

#include "guard.hpp"
#include "handle.hpp"

#include <tpfsdp/work.h>

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_work_wait(tpfsdp_work *work, const tpfsdp_stream *stream, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Ref<Work> waited(&entry.get<Work>(work, "work"));
    if (stream && stream->device_type != TPFSDP_DEVICE_CPU)
      fail(TPFSDP_ERR_UNSUPPORTED, "the stream is of device type ", stream->device_type,
           "; this backend works on the CPU only: pass NULL");
    waited->wait(true);
  });
}

tpfsdp_status tpfsdp_work_test(tpfsdp_work *work, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    const Ref<Work> tested(&entry.get<Work>(work, "work"));
    return tested->wait(false);
  });
}

}  // extern "C"
