/* SPDX-License-Identifier: Apache-2.0
 * The two containers that results of unknown length come in: lists of named things, and bytes. */
#ifndef TPFSDP_LIST_H
#define TPFSDP_LIST_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A list is a snapshot: it keeps its entries alive and can be walked many times. Every entry has a name ("" if
 * none) and at most one thing, a module, a parameter or a tensor, as the function that made the list says. */

/** Number of entries. Threads: any. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_list_get_count(const tpfsdp_list *list, int64_t *out_count,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Name of entry @p index, borrowed from the list. Threads: any. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_list_get_name(const tpfsdp_list *list, int64_t index, const char **out_name,
                     TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Module of entry @p index, borrowed.
 * Threads: any. Errors: NOT_FOUND (the entry holds something else). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_list_get_module(const tpfsdp_list *list, int64_t index, tpfsdp_module **out_module,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Parameter of entry @p index, borrowed. Threads: any. Errors: NOT_FOUND. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_list_get_param(const tpfsdp_list *list, int64_t index, tpfsdp_param **out_param,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Tensor of entry @p index, borrowed. Threads: any. Errors: NOT_FOUND. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_list_get_tensor(const tpfsdp_list *list, int64_t index, tpfsdp_tensor **out_tensor,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The bytes, borrowed from the blob and unchanging; a text is followed by a NUL that size_bytes does not count.
 * Threads: any. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_blob_get(const tpfsdp_blob *blob, const void **out_data, int64_t *out_size_bytes,
                TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
