/* SPDX-License-Identifier: Apache-2.0
 * The one call this library is for. Children first, then parents: a call takes what no earlier call took. */
#ifndef TPFSDP_FULLY_SHARD_H
#define TPFSDP_FULLY_SHARD_H

#include <tpfsdp/base.h>
#include <tpfsdp/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What stays of the full parameters between forward and backward. */
typedef int32_t tpfsdp_reshard_kind;
enum {
  TPFSDP_RESHARD_UNKNOWN = -1,
  TPFSDP_RESHARD_AUTO = 0,   /**< ALWAYS, but NEVER for the root. PyTorch: None */
  TPFSDP_RESHARD_ALWAYS = 1, /**< nothing. PyTorch: True */
  TPFSDP_RESHARD_NEVER = 2,  /**< everything. PyTorch: False */
  TPFSDP_RESHARD_SIZE = 3    /**< a part: each `size` ranks in order hold one copy between them, and backward gathers
                                  among them. 1 is NEVER, with a warning; all ranks is ALWAYS. PyTorch: int */
};

/** Frozen. */
typedef struct tpfsdp_reshard {
  tpfsdp_reshard_kind kind;
  int32_t size; /**< with SIZE: a divisor of the shard world; else 0 */
} tpfsdp_reshard;

/** Which elements of a unit's parameters each rank owns. */
typedef int32_t tpfsdp_layout;
enum {
  TPFSDP_LAYOUT_UNKNOWN = -1,
  TPFSDP_LAYOUT_DEFAULT = 0,    /**< ROWS */
  TPFSDP_LAYOUT_ROWS = 1,       /**< of each parameter as many rows (dimension 0) as of the others, the last ranks fewer or
                                     none. PyTorch: Shard(0) */
  TPFSDP_LAYOUT_CONTIGUOUS = 2  /**< of all parameters in a row one slice, as large as that of the others but for a
                                     granule: with granules that are small beside the slice nobody is left without,
                                     and small parameters are not cut to shreds */
};

/** Where CONTIGUOUS may cut a parameter. */
typedef int32_t tpfsdp_granule;
enum {
  TPFSDP_GRANULE_UNKNOWN = -1,
  TPFSDP_GRANULE_DEFAULT = 0, /**< ROW */
  TPFSDP_GRANULE_ELEMENT = 1, /**< anywhere: shards are 1-D runs of the row-major whole */
  TPFSDP_GRANULE_ROW = 2,
  TPFSDP_GRANULE_BLOCK = 3    /**< after each granule_size rows */
};

/**
 * How full parameters come to be. The host sees pointers in any mode; views of full values are read-only in SHARED and
 * MAPPED, where other ranks read the same memory. unit.h tells the mode in force, and why. A unit that is still full when
 * a last backward ends goes stale in PRIVATE and is STATE in the others.
 */
typedef int32_t tpfsdp_unshard_mode;
enum {
  TPFSDP_UNSHARD_UNKNOWN = -1,
  TPFSDP_UNSHARD_AUTO = 0,    /**< PRIVATE, or SHARED if that would not fit tpfsdp_context_options.memory_budget_bytes on
                                   every rank; decided at the first step */
  TPFSDP_UNSHARD_PRIVATE = 1, /**< a copy per rank, read from the shards of all */
  TPFSDP_UNSHARD_SHARED = 2,  /**< a copy per host, of which each rank writes its part */
  TPFSDP_UNSHARD_MAPPED = 3   /**< no copy: the shards of all ranks lie in order in memory that all have mapped, and an
                                   unshard moves nothing. Shards are aligned for their elements only. Where a policy
                                   casts, casts lie there, one copy per host, and shards elsewhere */
};

/**
 * How ranks make sure that they start with the same values. Names, shapes, dtypes, ties and policies are always
 * compared.
 */
typedef int32_t tpfsdp_init_mode;
enum {
  TPFSDP_INIT_UNKNOWN = -1,
  TPFSDP_INIT_DEFAULT = 0,   /**< VERIFY */
  TPFSDP_INIT_VERIFY = 1,    /**< compare a hash of each full parameter, once, before the first step; loading
                                  replaces the hash */
  TPFSDP_INIT_TRUST = 2,     /**< do not compare values */
  TPFSDP_INIT_BROADCAST = 3  /**< take rank 0's values of the shard group, parameter by parameter, inside
                                  fully_shard */
};

/** The array, the policy and the callback are borrowed and copied; handles in the array are borrowed. */
typedef struct tpfsdp_fully_shard_options {
  uint32_t struct_size;
  tpfsdp_init_mode init;
  tpfsdp_reshard reshard_after_forward;
  tpfsdp_unshard_mode unshard_mode;  /**< with storage HOST, reshard SIZE or a backend that has no such memory it is
                                          PRIVATE */
  tpfsdp_layout layout;
  tpfsdp_granule granule;   /**< of CONTIGUOUS */
  int32_t granule_size;     /**< rows of a BLOCK; else 0 */
  TPFSDP_NULLABLE const tpfsdp_mixed_precision_policy *mp_policy; /**< NULL: everything in the parameter's own dtype */
  TPFSDP_NULLABLE const tpfsdp_memory_callback *host_memory; /**< storage HOST: full parameters live there; NULL:
                                                                  storage LIBRARY */
  TPFSDP_NULLABLE tpfsdp_param *const *ignored_params; /**< never touched: not cut, moved or reduced */
  int64_t ignored_param_count;
} tpfsdp_fully_shard_options;

/**
 * Makes the parameters below @p modules (borrowed) that are in no unit yet one unit, cut by its layout over the 1-D
 * @p mesh (shared); NULL: the context's default group. Shards may be uneven and empty. On failure no module has
 * changed, and the mesh is told.
 * Collective: mesh, if init is BROADCAST or unshard_mode MAPPED; else every rank only makes the same calls in the same
 * order. Errors: STATE (sharded already), UNSUPPORTED. PyTorch: fully_shard. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fully_shard(tpfsdp_module *const *modules, int64_t module_count, TPFSDP_NULLABLE tpfsdp_mesh *mesh,
                   TPFSDP_NULLABLE const tpfsdp_fully_shard_options *options,
                   TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * tpfsdp_module_call_method(@p method_name) then runs pre_forward and post_forward around it. No effect on modules that
 * are not sharded.
 * Errors: NOT_FOUND. PyTorch: register_fsdp_forward_method. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fully_shard_register_forward_method(tpfsdp_module *module, const char *method_name,
                                           TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
