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

/** Every switch of a sharded module as it stands. */
typedef struct tpfsdp_fsdp_module_info {
  uint32_t struct_size;
  int32_t unit_count;            /**< 0: no parameters of its own */
  int32_t is_root;               /**< -1 before that is settled, then 0 or 1 */
  int32_t module_count;          /**< modules of the fully_shard call */
  tpfsdp_training_state training_state;
  tpfsdp_bool reshard_after_backward;
  tpfsdp_reshard reshard_after_forward; /**< AUTO is settled with the root */
  tpfsdp_bool requires_gradient_sync;
  tpfsdp_bool is_last_backward;
  tpfsdp_bool manual_backward_finalization;
  tpfsdp_bool unshard_in_backward;
  tpfsdp_bool reduce_unused_params;
  tpfsdp_dtype input_dtype;      /**< the host should cast floating inputs of forward to this; 0: leave them */
  tpfsdp_dtype output_dtype;     /**< the host should cast floating outputs to this; 0: leave them */
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

/* ---- Now ---- */

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

/**
 * The end of the step, where end_backward leaves it to this (manual finalization), on the root: what end_backward does
 * for a last backward. out_work NULL: done on return. Otherwise it only starts and gives an owned work; nothing else of
 * the tree may be called before that is done. Before the first forward: no effect.
 * Collective: its meshes. Errors: STATE (not the root). PyTorch: finalize_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_finalize_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_work **out_work,
                                     TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* ---- Switches: hold until changed, read back by get_info, the same on every rank. recurse 1: every sharded module
 * below as well. ---- */

/**
 * 0: gradients only add up on each rank, full-size, until a backward with 1 reduces their sum. Looked at when the
 * backward of a module ends. Start: 1.
 * PyTorch: set_requires_gradient_sync, no_sync. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_requires_gradient_sync(tpfsdp_module *module, tpfsdp_bool enabled, tpfsdp_bool recurse,
                                              TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * 0: end_backward neither waits for reductions nor opens the write window, and the recorded order stays; for
 * micro-batches. With a window between them, parameters that stay full would be gathered again. Whole tree. Start: 1.
 * PyTorch: set_is_last_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_is_last_backward(tpfsdp_module *module, tpfsdp_bool enabled,
                                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * 1: end_backward leaves the end of the step to finalize_backward; overrides is_last_backward. Root, not inside a
 * backward. Start: 0.
 * Errors: STATE. PyTorch: set_manual_backward_finalization. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_manual_backward_finalization(tpfsdp_module *module, tpfsdp_bool enabled,
                                                    TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * ALWAYS or NEVER from the next forward on; ends the automatic rule for the root. Slots are planned anew for the next
 * step.
 * Errors: INVALID_ARGUMENT (AUTO, SIZE). PyTorch: set_reshard_after_forward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_reshard_after_forward(tpfsdp_module *module, tpfsdp_reshard_kind kind, tpfsdp_bool recurse,
                                             TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * 0: parameters stay full after backward, and the next forward of the same step gathers nothing. From the first 0 on
 * the unit has a slot of its own. Start: 1.
 * PyTorch: set_reshard_after_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_reshard_after_backward(tpfsdp_module *module, tpfsdp_bool enabled, tpfsdp_bool recurse,
                                              TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * 0: its backward does not need its parameters (an embedding), so nothing gathers them for it. Start: 1.
 * PyTorch: set_unshard_in_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_unshard_in_backward(tpfsdp_module *module, tpfsdp_bool enabled,
                                           TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * 1: trainable parameters without gradient count as zero, so ranks may use different ones of a unit that has been full
 * on all of them. Start: 0.
 * PyTorch: set_reduce_scatter_unused_params. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_reduce_scatter_unused_params(tpfsdp_module *module, tpfsdp_bool enabled, tpfsdp_bool recurse,
                                                    TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* ---- Order ---- */

/**
 * In its forward, also starts the gathers of @p modules (borrowed; one that ends falls out of the list), in order, once
 * its own parameters are full. Replaces the last list; count 0 clears it. Slots are planned for it: what is gathered
 * ahead has its own until its turn.
 * Errors: STATE, INVALID_ARGUMENT (another tree). PyTorch: set_modules_to_forward_prefetch. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_modules_to_forward_prefetch(tpfsdp_module *module,
                                                   TPFSDP_NULLABLE tpfsdp_module *const *modules,
                                                   int64_t module_count,
                                                   TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The same in backward, in place of the recorded order.
 * Errors: STATE, INVALID_ARGUMENT (another tree). PyTorch: set_modules_to_backward_prefetch. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_fsdp_module_set_modules_to_backward_prefetch(tpfsdp_module *module,
                                                    TPFSDP_NULLABLE tpfsdp_module *const *modules,
                                                    int64_t module_count,
                                                    TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
