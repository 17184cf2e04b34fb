// SPDX-License-Identifier: Apache-2.0
// The entry of the built-in backend `threads`, as the library's loader sees it.
#ifndef TPFSDP_BACKENDS_HOST_TABLE_HPP
#define TPFSDP_BACKENDS_HOST_TABLE_HPP

#include <tpfsdp/backend.h>

extern "C" tpfsdp_status tpfsdp_backend_threads_entry(const tpfsdp_backend_services *services,
                                                      tpfsdp_backend_table *out_table);

#endif
