/* SPDX-License-Identifier: Apache-2.0
 * What one fully_shard call gathers together: how it lies, what it costs, and pins that hold it full. */
#ifndef TPFSDP_UNIT_H
#define TPFSDP_UNIT_H

#include <tpfsdp/base.h>
#include <tpfsdp/fully_shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A unit belongs to its module and lives as long as it does. PyTorch: FSDPParamGroup. */

/** What a unit holds. */
typedef int32_t tpfsdp_sharded_state;
enum {
  TPFSDP_SHARDED_UNKNOWN = -1,
  TPFSDP_SHARDED_UNSPECIFIED = 0,
  TPFSDP_SHARDED_SHARDED = 1,
  TPFSDP_SHARDED_POST_FORWARD = 2, /**< with reshard SIZE, between forward and backward */
  TPFSDP_SHARDED_UNSHARDED = 3
};

/** Where in a step a module or unit is. */
typedef int32_t tpfsdp_training_state;
enum {
  TPFSDP_TRAINING_UNKNOWN = -1,
  TPFSDP_TRAINING_UNSPECIFIED = 0,
  TPFSDP_TRAINING_IDLE = 1,
  TPFSDP_TRAINING_FORWARD = 2,
  TPFSDP_TRAINING_PRE_BACKWARD = 3,
  TPFSDP_TRAINING_POST_BACKWARD = 4
};

/** Whose memory full parameters lie in. */
typedef int32_t tpfsdp_storage;
enum {
  TPFSDP_STORAGE_UNKNOWN = -1,
  TPFSDP_STORAGE_UNSPECIFIED = 0,
  TPFSDP_STORAGE_LIBRARY = 1, /**< a slot of the library; the host computes on views */
  TPFSDP_STORAGE_HOST = 2     /**< the memory that fully_shard_options.host_memory gives */
};

/** What a unit is. Strings and handles are borrowed from it. slot is -1 before the plan and with storage HOST. */
typedef struct tpfsdp_unit_info {
  uint32_t struct_size;
  int32_t param_count;
  tpfsdp_sharded_state sharded_state;
  tpfsdp_training_state training_state;
  tpfsdp_storage storage;
  int32_t pin_count;
  int32_t slot;                     /**< units with the same number share memory */
  tpfsdp_unshard_mode unshard_mode; /**< the one in force; AUTO: not decided before the first step */
  tpfsdp_layout layout;             /**< ROWS or CONTIGUOUS */
  int32_t reserved;
  tpfsdp_dtype param_dtype;         /**< of its policy; 0: each parameter's own */
  tpfsdp_dtype reduce_dtype;        /**< of its policy; 0: each parameter's own */
  int64_t shard_bytes;              /**< of this rank, in shards */
  int64_t full_bytes;               /**< gathered, alignment included */
  int64_t logical_bytes;            /**< gathered, without alignment and padding */
  int64_t wire_bytes;               /**< what one gather brings to this rank; 0 in SHARED and MAPPED, but for a gather
                                         into a spare slot */
  int64_t grad_bytes;               /**< one full gradient in the dtype of computing, alignment included */
  int64_t version;                  /**< counts the write windows that were closed */
  int64_t unshards;                 /**< gathers that were started */
  int64_t deferred_reshards;        /**< put off to an unpin */
  tpfsdp_mesh *mesh;
  tpfsdp_module *module;
  const char *unshard_reason;       /**< why unshard_mode is what it is */
  const char *name;                 /**< "layers.3", or "norm, output" for several modules */
} tpfsdp_unit_info;

/** Fills @p out_info. Threads: serial on its tree. PyTorch: FSDPParamGroup. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_unit_get_info(tpfsdp_unit *unit, tpfsdp_unit_info *out_info,
                     TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Holds the unit full, if it is: its reshard is put off to the last unpin and counted. Pins count. Safe languages
 * hold one for every view they hand out; a write window cannot open under a pin.
 * Threads: serial on its tree. Errors: STATE (not unsharded). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_unit_pin(tpfsdp_unit *unit, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Takes one pin back, also from a finalizer: never blocks. A put-off reshard is done now, on this thread, or at the
 * end of the call that is inside the tree.
 * Threads: any. Errors: STATE (not pinned). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_unit_unpin(tpfsdp_unit *unit, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
