/* SPDX-License-Identifier: Apache-2.0
 * This rank's membership of a set of ranks, and the collectives a host may use itself. */
#ifndef TPFSDP_GROUP_H
#define TPFSDP_GROUP_H

#include <tpfsdp/base.h>
#include <tpfsdp/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group handle is one rank's membership. The default group comes from the context (context.h), others from
 * split or a mesh. Sticky errors (TIMEOUT, PEER_LOST, ABORTED, BACKEND, INTERNAL) end a group:
 * every later call repeats the first one. All others leave it usable: a rank that fails before bytes move tells
 * its peers, which return REMOTE at once. */

/** What a group is. Strings and the array are borrowed from it. */
typedef struct tpfsdp_group_info {
  uint32_t struct_size;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;               /**< among the ranks of this host */
  int32_t local_world_size;
  tpfsdp_bool has_failed;
  int64_t sequence;                 /**< collectives started so far */
  const int32_t *global_ranks;      /**< world_size entries: each member's rank in the context */
  const char *backend;
  const char *name;
} tpfsdp_group_info;

/**
 * Splits by @p color; ranks are ordered by @p order, then by old rank. A negative color gets no group (*out_group
 * NULL).
 * Collective: group. PyTorch: new_group, MPI_Comm_split. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_split(tpfsdp_group *group, int32_t color, int32_t order, TPFSDP_NULLABLE const char *name,
                   tpfsdp_group **out_group, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Fills @p out_info; never communicates. Threads: any. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_get_info(tpfsdp_group *group, tpfsdp_group_info *out_info,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * OK, or the sticky error of the group, also one that came between calls. Never blocks.
 * Threads: any. Errors: TIMEOUT, PEER_LOST, ABORTED, BACKEND. PyTorch: ncclCommGetAsyncError. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_check(tpfsdp_group *group, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Ends the group in order: waits for pending work and for all its ranks. Later calls give STATE.
 * Collective: group. PyTorch: destroy_process_group. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_shutdown(tpfsdp_group *group, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Emergency stop: every call that waits in the group, here and on other ranks, returns ABORTED with @p reason in its
 * text. Never blocks.
 * Threads: any. PyTorch: ProcessGroup.abort. Since: 0.1.
 */
TPFSDP_API void tpfsdp_group_abort(tpfsdp_group *group, TPFSDP_NULLABLE const char *reason) TPFSDP_NOEXCEPT;

/**
 * After a failed collective outside any sharded tree: all ranks of the group agree on a fresh start, as reset_iter_state
 * does for a root.
 * Collective: group. Errors: TIMEOUT, PEER_LOST, ABORTED. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_reset(tpfsdp_group *group, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The last collectives of this rank and what each peer was last seen doing, as JSON: which rank is behind, and where.
 * Never communicates; also after a sticky error.
 * Threads: any. PyTorch: flight recorder dump. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_dump_recorder(tpfsdp_group *group, tpfsdp_blob **out_text, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* Collectives. Views are borrowed, of one dtype, dense. With a stream, inputs are ready and outputs used in its
 * order. out_work NULL: done on return (with a stream: enqueued). Otherwise the memory stays borrowed until the
 * work, owned, is waited for. */

/**
 * Every rank's @p input, in rank order, into @p output of all. input may lie in its own place in output. @p counts
 * (NULL: all parts are equal, count_count 0): elements of each rank's part, the same on every rank.
 * Collective: group. PyTorch: all_gather_into_tensor. MPI: Allgatherv. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_all_gather(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output,
                        TPFSDP_NULLABLE const int64_t *counts, int64_t count_count,
                        TPFSDP_NULLABLE const tpfsdp_stream *stream, TPFSDP_NULLABLE tpfsdp_work **out_work,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Reduces @p input of all ranks; each gets its equal part in @p output, which may be that part of input.
 * Collective: group. PyTorch: reduce_scatter_tensor. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_reduce_scatter(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output,
                            tpfsdp_reduce_op op, TPFSDP_NULLABLE const tpfsdp_stream *stream,
                            TPFSDP_NULLABLE tpfsdp_work **out_work,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Reduces @p input of all ranks into @p output of all; the two may be the same.
 * Collective: group. PyTorch: all_reduce. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_all_reduce(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output, tpfsdp_reduce_op op,
                        TPFSDP_NULLABLE const tpfsdp_stream *stream, TPFSDP_NULLABLE tpfsdp_work **out_work,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Copies @p data of rank @p source to @p data of all. Collective: group. PyTorch: broadcast. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_broadcast(tpfsdp_group *group, const tpfsdp_view *data, int32_t source,
                       TPFSDP_NULLABLE const tpfsdp_stream *stream, TPFSDP_NULLABLE tpfsdp_work **out_work,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Returns when all ranks have called it. Collective: group. PyTorch: barrier. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_group_barrier(tpfsdp_group *group, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
