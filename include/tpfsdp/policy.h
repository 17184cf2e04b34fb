/* SPDX-License-Identifier: Apache-2.0
 * Where full parameters live: the host's own memory, on request. */
#ifndef TPFSDP_POLICY_H
#define TPFSDP_POLICY_H

#include <tpfsdp/base.h>
#include <tpfsdp/param.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t tpfsdp_memory_op;
enum {
  TPFSDP_MEMORY_UNKNOWN = -1,
  TPFSDP_MEMORY_UNSPECIFIED = 0,
  TPFSDP_MEMORY_ACQUIRE = 1, /**< set *data to size_bytes bytes */
  TPFSDP_MEMORY_RELEASE = 2  /**< *data is not needed any more; the library forgets the pointer */
};

/** One request for the host's memory. alignment_bytes is a wish; the element's own alignment is enough. */
typedef struct tpfsdp_memory_args {
  uint32_t struct_size;
  tpfsdp_memory_op op;
  int64_t size_bytes;
  int64_t alignment_bytes;
  tpfsdp_device_type device_type;
  int32_t device_id;
  tpfsdp_param *param;            /**< borrowed: whose full values */
  void **data;
  const tpfsdp_stream *stream;
} tpfsdp_memory_args;

/**
 * Full parameters in memory of the host, one request per parameter: ACQUIRE when its unit's gather is issued, RELEASE
 * when it reshards; none for a parameter without elements. The gather writes straight into that memory, with no extra
 * copy. The callback may ask for infos of its parameter, nothing else of the tree. PyTorch: Comm.allocate.
 */
typedef struct tpfsdp_memory_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_memory_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_memory_callback;

#ifdef __cplusplus
}
#endif
#endif
