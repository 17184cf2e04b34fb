/* SPDX-License-Identifier: Apache-2.0
 * How to shard: precision, and whose memory full parameters live in. */
#ifndef TPFSDP_POLICY_H
#define TPFSDP_POLICY_H

#include <tpfsdp/base.h>
#include <tpfsdp/param.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Dtypes of computing and reducing: f64, f32, f16, bf16, or 0. Shards, their gradients and so the optimizer's state keep
 * the parameter's own dtype; parameters of other dtypes are never cast, nor are buffers. The library touches no
 * activations: it says which dtypes they should have (tpfsdp_fsdp_module_info). PyTorch: MixedPrecisionPolicy.
 */
typedef struct tpfsdp_mixed_precision_policy {
  uint32_t struct_size;
  tpfsdp_dtype param_dtype;          /**< of full values, of the gather and of the gradients that the host gives; 0: the
                                          parameter's own */
  tpfsdp_dtype reduce_dtype;         /**< of the reduction, and of gradients that add up without sync; 0: the
                                          parameter's own */
  tpfsdp_dtype output_dtype;         /**< what the host should cast floating outputs to; 0: leave them */
  tpfsdp_toggle cast_forward_inputs; /**< ON: the host should cast floating inputs to param_dtype */
  int32_t reserved;
} tpfsdp_mixed_precision_policy;

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
