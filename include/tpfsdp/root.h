/* SPDX-License-Identifier: Apache-2.0
 * What a tree's outermost sharded module owns: the plan, the memory, the write window, and the end of a failed step. */
#ifndef TPFSDP_ROOT_H
#define TPFSDP_ROOT_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The root of a tree is its outermost sharded module. The first forward settles it (so it must run on that
 * module), or a scope, or tpfsdp_root_prepare. All functions here but tpfsdp_root_fail give STATE on any other module,
 * naming the root. */

/**
 * What a root's tree holds on this rank, exactly: the memory that its regions and slots were given, alignment
 * included. total_bytes is shards + their casts + gradient shards + slots + gradient slots + parts + accumulators. Of memory that
 * all ranks of a host have mapped each rank counts its part: those of all add up to the whole.
 */
typedef struct tpfsdp_memory_info {
  uint32_t struct_size;
  int32_t slot_count;         /**< planned slots for full parameters */
  int32_t grad_slot_count;
  int32_t spare_slot_count;   /**< slots for unshards outside the plan, allocated once */
  int64_t shard_bytes;        /**< shards of parameters */
  int64_t cast_bytes;         /**< copies of shards in the dtype of computing, where a policy has another one */
  int64_t grad_shard_bytes;   /**< shards of gradients */
  int64_t slot_bytes;         /**< all slots, spares included */
  int64_t grad_slot_bytes;
  int64_t part_bytes;         /**< what stays between forward and backward with reshard SIZE */
  int64_t accumulator_bytes;  /**< full gradients that add up without sync: a unit's from its first such backward on */
  int64_t host_bytes;         /**< lent by the host's memory callback now */
  int64_t total_bytes;        /**< held now, host_bytes not counted */
  int64_t planned_peak_bytes; /**< what the plan says total_bytes can reach with sync in every backward */
  int64_t peak_bytes;         /**< what it has reached */
} tpfsdp_memory_info;

typedef int32_t tpfsdp_plan_format;
enum {
  TPFSDP_PLAN_UNKNOWN = -1,
  TPFSDP_PLAN_DEFAULT = 0, /**< JSON */
  TPFSDP_PLAN_JSON = 1,
  TPFSDP_PLAN_HTML = 2,    /**< one page that stands by itself */
  TPFSDP_PLAN_TEXT = 3     /**< for a terminal */
};

/**
 * Does now what the first step would do: settles the root, compares what the ranks start with (MISMATCH names
 * parameter and ranks), assigns slots and allocates them. Again: no effect.
 * Collective: its meshes. Errors: STATE, UNSUPPORTED. PyTorch: _lazy_init. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_root_prepare(tpfsdp_module *root, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Reports the host's own failure inside a step, on the tree that @p module belongs to, or on every sharded tree below it:
 * peers return REMOTE with this rank and @p why from the collective that this rank does not reach. Never waits. Next, on
 * every rank: tpfsdp_fsdp_module_reset_iter_state.
 * Errors: STATE (nothing is sharded there, or the step has failed already). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_root_fail(tpfsdp_module *module, const char *why, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Fills @p out_info. Errors: STATE (before the first step or tpfsdp_root_prepare). PyTorch: memory_stats. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_root_get_memory_info(tpfsdp_module *root, tpfsdp_memory_info *out_info,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The plan of this rank: units, owners of rows, slots, padding, planned peak, collectives and bytes received per step of
 * one forward and one backward. Runs nothing.
 * Errors: STATE (before the first step or tpfsdp_root_prepare), INVALID_ARGUMENT. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_root_export_plan(tpfsdp_module *root, tpfsdp_plan_format format, tpfsdp_blob **out_text,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* Shards are written only inside a write window, because peers read them in place. One opens by itself when
 * end_backward is done and closes at the next call that reads shards; tpfsdp_param_set_tensor opens one for
 * itself. These two are for everything else: averages of weights, editing, a step after evaluation.
 * Before the first gather of a tree the window is open. */

/**
 * Waits until no peer reads this rank's published shards any more, then opens the window of the whole tree. Until
 * end_write, calls that would read shards for a gather give STATE. A window that had opened by itself becomes this
 * one. Not collective, each rank opens and closes its own; but all ranks should, between the same two steps: a unit that
 * is full is gathered anew after a window, so a rank that had none meets MISMATCH at the next collective.
 * Errors: STATE (inside a step, open already, or pinned: the text lists names), REMOTE, CANCELLED, TIMEOUT,
 * PEER_LOST, ABORTED. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_shards_begin_write(tpfsdp_module *root, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Closes the window and publishes: each unit's version goes up. Never waits.
 * Errors: STATE (not open). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_shards_end_write(tpfsdp_module *root, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
