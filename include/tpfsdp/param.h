/* SPDX-License-Identifier: Apache-2.0
 * One trainable tensor and its four faces: local shard, full values, gradient shard, full gradient. */
#ifndef TPFSDP_PARAM_H
#define TPFSDP_PARAM_H

#include <tpfsdp/base.h>
#include <tpfsdp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter handle means the same parameter for ever, before and after sharding; optimizers keep it. Registering
 * one handle in several places ties them. It belongs to the rank of the tree it is registered in. Threads: serial
 * on that tree. */

/** Which memory of a parameter. */
typedef int32_t tpfsdp_face;
enum {
  TPFSDP_FACE_UNKNOWN = -1,
  TPFSDP_FACE_UNSPECIFIED = 0, /**< refused */
  TPFSDP_FACE_SHARD = 1,       /**< this rank's part, in the original dtype; written only inside a write window
                                    (root.h) */
  TPFSDP_FACE_FULL = 2,        /**< all of it, in compute dtype; there while its unit is UNSHARDED */
  TPFSDP_FACE_GRAD = 3       /**< this rank's part of the reduced gradient; NOT_FOUND when there is none */
};

/** What a parameter is. Strings and arrays are borrowed from it; the name changes when the tree does. */
typedef struct tpfsdp_param_info {
  uint32_t struct_size;
  int32_t ndim;                      /**< of the whole; 0 stays 0 */
  tpfsdp_dtype dtype;                /**< of the shard, its gradient and the optimizer */
  tpfsdp_dtype compute_dtype;        /**< of the full values */
  tpfsdp_dtype reduce_dtype;         /**< of the reduction */
  tpfsdp_bool requires_grad;
  tpfsdp_bool is_sharded;            /**< in a unit */
  tpfsdp_bool is_unsharded;          /**< FULL is there */
  tpfsdp_bool has_grad;              /**< GRAD is there: "none" and "zero" differ */
  int32_t shard_dim;                 /**< -1: in no unit, or cut inside rows */
  int32_t place_count;               /**< registrations; more than 1: tied */
  int32_t reserved;
  int64_t id;                        /**< unique in the process, never used again */
  const int64_t *global_shape;
  TPFSDP_NULLABLE tpfsdp_unit *unit; /**< borrowed; NULL: not sharded */
  const char *name;                  /**< first dotted name below the root, "" while unregistered */
} tpfsdp_param_info;

/** A gradient shard is complete: reduced, on its device, safe to read on this thread. */
typedef struct tpfsdp_grad_reduced_args {
  uint32_t struct_size;
  int32_t reserved;
  tpfsdp_param *param; /**< borrowed */
} tpfsdp_grad_reduced_args;

typedef struct tpfsdp_grad_reduced_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_grad_reduced_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_grad_reduced_callback;

/**
 * A parameter over memory of the host, without a copy: the memory must stay until fully_shard has cut its part out or
 * the parameter is released. A view on META has no memory yet.
 * Threads: any. Errors: UNSUPPORTED (not dense row-major). PyTorch: nn.Parameter. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_create(const tpfsdp_view *values, tpfsdp_bool requires_grad, tpfsdp_param **out_param,
                    TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The same over a tensor (shared), which may come from DLPack or have an owner. Threads: any. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_create_from_tensor(tpfsdp_tensor *tensor, tpfsdp_bool requires_grad, tpfsdp_param **out_param,
                                TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Fills @p out_info. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_get_info(tpfsdp_param *param, tpfsdp_param_info *out_info,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * HOT. The memory behind @p face, borrowed until the next reshard (FULL), zero_grad (GRAD) or end of the parameter; a
 * few nanoseconds. Rebuild what the host keeps on it only when epoch has changed.
 * Errors: STATE (not unsharded), NOT_FOUND (no gradient). PyTorch: param.data, param.grad. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_get_view(tpfsdp_param *param, tpfsdp_face face, tpfsdp_view *out_view,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The same memory as a tensor; of FULL it holds a pin on the unit (unit.h) until it and what was made from it are
 * released.
 * Errors: STATE (not unsharded), NOT_FOUND (no gradient). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_to_tensor(tpfsdp_param *param, tpfsdp_face face, tpfsdp_tensor **out_tensor,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Where its shard lies in the whole. PyTorch: DTensor metadata. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_get_shard_info(tpfsdp_param *param, tpfsdp_shard_info *out_info,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Freezes or unfreezes, the same on all ranks, between steps. Errors: STATE. PyTorch: requires_grad_. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_set_requires_grad(tpfsdp_param *param, tpfsdp_bool requires_grad,
                               TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Replaces the memory by that of @p tensor (shared): the whole before sharding, the local shard after (copied where
 * peers read shards in place); also the way from META to memory. Opens a write window by itself: as there, on every rank.
 * Errors: STATE. PyTorch: param.data = x, load_state_dict(assign=True). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_set_tensor(tpfsdp_param *param, tpfsdp_tensor *tensor,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Sets the gradient shard to a copy of @p grad, or to none with NULL. PyTorch: param.grad = x. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_set_grad(tpfsdp_param *param, TPFSDP_NULLABLE const tpfsdp_view *grad,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * HOT. Library memory for the full gradient, in compute dtype (what the host's autograd makes); valid from
 * pre_backward to post_backward of its unit (segment mode: while a scope is open, until grad_reduce). @p accumulate 0: content undefined, write every
 * element; 1: holds zeros or what this backward has committed so far, add to it. Counts only after grad_ready. Waits
 * only in segment mode, for an earlier reduction to leave its memory.
 * Errors: STATE (wrong moment, frozen). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_get_grad_buffer(tpfsdp_param *param, tpfsdp_bool accumulate, tpfsdp_view *out_view,
                             TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * HOT. The buffer is written (on a device: in the order of the compute stream) and becomes the gradient; a second one
 * with accumulate 0 in the same backward is added to the first, one counted copy.
 * Errors: STATE (no buffer). PyTorch: AccumulateGrad. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_grad_ready(tpfsdp_param *param, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * HOT. Hands over a full gradient in the host's own memory and any floating dtype: copied or added before return (on
 * a device: enqueued), one counted copy. At the same moments as get_grad_buffer.
 * Errors: STATE (wrong moment, frozen), UNSUPPORTED (not dense). PyTorch: AccumulateGrad. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_add_grad(tpfsdp_param *param, const tpfsdp_view *grad,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Calls @p callback once per backward when the gradient shard is there, on the thread that runs backward; NULL: none.
 * An optimizer may write the parameter's shard in it: by then no peer reads it.
 * PyTorch: register_post_accumulate_grad_hook. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_param_set_grad_reduced_callback(tpfsdp_param *param,
                                       TPFSDP_NULLABLE const tpfsdp_grad_reduced_callback *callback,
                                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
