/* SPDX-License-Identifier: Apache-2.0
 * The methods a module gains by fully_shard. On a module that was not sharded they give STATE. */
#ifndef TPFSDP_FSDP_MODULE_H
#define TPFSDP_FSDP_MODULE_H

#include <tpfsdp/base.h>
#include <tpfsdp/fully_shard.h>
#include <tpfsdp/module.h>
#include <tpfsdp/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A sharded module as it stands. */
typedef struct tpfsdp_fsdp_module_info {
  uint32_t struct_size;
  int32_t unit_count;            /**< 0: no parameters of its own */
  int32_t is_root;               /**< -1 before that is settled, then 0 or 1 */
  int32_t module_count;          /**< modules of the fully_shard call */
  tpfsdp_training_state training_state;
  tpfsdp_reshard reshard_after_forward; /**< of the call; AUTO is settled with the root */
  int32_t reserved;
} tpfsdp_fsdp_module_info;

/** Fills @p out_info. PyTorch: fully_shard.state. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_get_info(tpfsdp_module *module, tpfsdp_fsdp_module_info *out_info,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Unit @p index of the module, borrowed; unit_count of them.
 * Errors: NOT_FOUND. PyTorch: FSDPParamGroup. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_get_unit(tpfsdp_module *module, int32_t index, tpfsdp_unit **out_unit,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Gathers its units. out_work NULL: they are full on return. Otherwise it only starts and gives an owned work, which
 * pre_forward or a scope waits for if nobody does. Already full or under way: no effect.
 * Collective: its meshes. Errors: STATE. PyTorch: unshard, UnshardHandle. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_unshard(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_work **out_work,
                           TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Frees its full parameters; inside forward by the reshard_after_forward rule; pinned units later. Never waits.
 * PyTorch: reshard. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_reshard(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * After any failed call inside a step, or tpfsdp_root_fail, on the root of every rank: gives up what is under way, drops the
 * step's gradients, prefetches and order; everything is SHARDED again.
 * Collective: its meshes. Errors: STATE (not the root). PyTorch: reset_iter_state. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_reset_iter_state(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
