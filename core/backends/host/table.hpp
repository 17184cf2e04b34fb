// SPDX-License-Identifier: Apache-2.0
// The entries of the built-in backends `threads` and `shm`, as the library's loader sees them.
#ifndef TPFSDP_BACKENDS_HOST_TABLE_HPP
#define TPFSDP_BACKENDS_HOST_TABLE_HPP

#include <tpfsdp/backend.h>

extern "C" tpfsdp_status tpfsdp_backend_threads_entry(const tpfsdp_backend_services *services,
                                                      tpfsdp_backend_table *out_table);
extern "C" tpfsdp_status tpfsdp_backend_shm_entry(const tpfsdp_backend_services *services,
                                                  tpfsdp_backend_table *out_table);

#endif
