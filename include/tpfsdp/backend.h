/* SPDX-License-Identifier: Apache-2.0
 * What a transport is. A backend includes this header and nothing else of ours, links nothing of ours, and offers one
 * entry function; the built-in ones come through the same tables and tests. Not part of tpfsdp.h. */
#ifndef TPFSDP_BACKEND_H
#define TPFSDP_BACKEND_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * HAND-SHAKE. The library calls the entry function with its services and room for the backend's table. Both start with
 * a head. Equal majors are required; the smaller minor rules; slots past the other's struct_size do not exist. New
 * slots go to the end and raise the minor; a break raises the major. No slot throws, prints, exits, installs handlers
 * or calls the program.
 *
 * A comm is used by one thread at a time, comm_abort and comm_check excepted; all state hangs off comms. Errors are
 * negative tpfsdp_status values after services->set_error. A slot with may_wait gives PENDING instead of waiting when
 * it is 0; called again it goes on from there.
 *
 * COLLECTIVES are numbered by sequence, from 1, in the order of submit, the same on every rank, and complete in that
 * order. A failure of one rank is told to the others in place of its next sequence (post_failure); they return REMOTE
 * for it. After any error that is not sticky the ranks agree on a fresh start by post_reset and wait_reset.
 *
 * COMMON REGIONS, where the backend can share regions, are memory that all ranks of a comm have mapped: a host has one
 * copy of what lies there, and each rank writes its own part of it. Nothing moves in the gathers there: a SHARED_GATHER
 * says that this rank has just written its part, a MAPPED_GATHER that it was there already. Once one is complete this
 * rank uses the memory until its region_release. Before a rank writes, region_wait_released: for a SHARED_GATHER each
 * time (wait, write, submit, complete, read, release); what is gathered MAPPED, in a write window or when a copy of lower
 * precision is made anew. Memory is used by this rule even after a failure and a reset, until its release.
 */
#define TPFSDP_BACKEND_ABI_MAJOR 1
#define TPFSDP_BACKEND_ABI_MINOR 1

typedef struct tpfsdp_backend_head {
  uint32_t struct_size;
  uint16_t major;
  uint16_t minor;
} tpfsdp_backend_head;

typedef struct tpfsdp_backend_comm tpfsdp_backend_comm;     /* the backend's own */
typedef struct tpfsdp_backend_region tpfsdp_backend_region; /* the backend's own */
typedef struct tpfsdp_backend_call tpfsdp_backend_call;     /* the library's: one call, for its errors and its store */

typedef int32_t tpfsdp_backend_kind;
enum {
  TPFSDP_BACKEND_KIND_UNKNOWN = -1,
  TPFSDP_BACKEND_KIND_UNSPECIFIED = 0,
  TPFSDP_BACKEND_KIND_ALL_GATHER = 1,
  TPFSDP_BACKEND_KIND_REDUCE_SCATTER = 2,
  TPFSDP_BACKEND_KIND_ALL_REDUCE = 3,
  TPFSDP_BACKEND_KIND_BROADCAST = 4,
  TPFSDP_BACKEND_KIND_BARRIER = 5,
  TPFSDP_BACKEND_KIND_SHARED_GATHER = 6, /**< in a common region, of which each rank has just written its part */
  TPFSDP_BACKEND_KIND_MAPPED_GATHER = 7  /**< in a common region, where all parts are written in windows only */
};

/** What a backend can do. Bits of tpfsdp_backend_table.capabilities. */
typedef int32_t tpfsdp_backend_capability;
enum {
  TPFSDP_BACKEND_CAN_UNKNOWN = -1,
  TPFSDP_BACKEND_CAN_UNSPECIFIED = 0,
  TPFSDP_BACKEND_CAN_READ_PEERS = 1,         /**< reads peers' regions in place: PARAM_MAJOR order */
  TPFSDP_BACKEND_CAN_CHECK_FINGERPRINT = 2,  /**< compares what ranks must agree on before data moves */
  TPFSDP_BACKEND_CAN_ADD_IN_RANK_ORDER = 4,  /**< sums ranks 0 to the last, kept in f32 (f64 for f64) */
  TPFSDP_BACKEND_CAN_USE_THREADS = 8,        /**< ranks may be threads of one process */
  TPFSDP_BACKEND_CAN_USE_PROCESSES = 16,     /**< ranks may be processes */
  TPFSDP_BACKEND_CAN_READ_CALLER = 32,       /**< reads the caller's own memory in place, not only regions; else it is
                                                  copied through a region, in bounded pieces */
  TPFSDP_BACKEND_CAN_SHARE_REGIONS = 64      /**< has common regions and the gathers in them; without it their slots
                                                  give UNSUPPORTED or do nothing */
};

/** Elements that come from one rank's input (all-gather), or from every rank's (reduce-scatter). Frozen. */
typedef struct tpfsdp_backend_piece {
  int32_t rank;            /**< all-gather: whose part; reduce-scatter: unused */
  tpfsdp_bool accumulate;  /**< reduce-scatter: 1 adds to what target holds */
  int64_t source_offset;   /**< elements from the start of that rank's input, or of every rank's */
  int64_t count;           /**< elements */
  void *target;            /**< in this rank's memory; an all-gather's own part may lie there already */
} tpfsdp_backend_piece;

/**
 * One collective. What ranks must agree on: kind, op, dtypes, divisor, source, unit, element_count, counts_hash and
 * counts_length; a difference is MISMATCH on every rank with each rank's values, before a byte is read. Sums run over
 * ranks 0 to the last in f32 (f64 for f64), are multiplied once by 1 / divisor, rounded once to reduce_dtype and cast
 * once to output_dtype; an input wider than reduce_dtype is first rounded to it. Integers wrap; AVG truncates.
 */
typedef struct tpfsdp_backend_op {
  uint32_t struct_size;
  tpfsdp_backend_kind kind;
  tpfsdp_reduce_op op;          /**< of reductions, else 0 */
  tpfsdp_dtype dtype;           /**< of the input; of what a gather or broadcast moves */
  tpfsdp_dtype reduce_dtype;    /**< of reductions, else 0 */
  tpfsdp_dtype output_dtype;    /**< of reductions, else 0 */
  int32_t source;               /**< BROADCAST, else -1 */
  int32_t unit;                 /**< number of the sharded unit for messages; -1: none */
  double divisor;               /**< AVG: what the sum is divided by; else 0 */
  TPFSDP_NULLABLE const void *input;  /**< in input_region, or the caller's own memory (then input_region is NULL) */
  TPFSDP_NULLABLE tpfsdp_backend_region *input_region; /**< of SHARED_GATHER and MAPPED_GATHER the common region that
                                                            they are in, the same on every rank; they have no input */
  TPFSDP_NULLABLE void *output; /**< ALL_REDUCE and BROADCAST; may equal input */
  int64_t element_count;        /**< elements of this rank's input for ALL_REDUCE and BROADCAST; for the pieced kinds
                                     the same on every rank: of the whole result of a gather, of the whole input of
                                     REDUCE_SCATTER */
  uint64_t counts_hash;         /**< of the vector of all parts of all ranks */
  int64_t counts_length;        /**< entries of that vector */
  TPFSDP_NULLABLE const tpfsdp_backend_piece *pieces; /**< ALL_GATHER, REDUCE_SCATTER: unchanged until complete;
                                                           of other gathers they only say what each rank's part is */
  int64_t piece_count;
} tpfsdp_backend_op;

/** What a new comm is. */
typedef struct tpfsdp_backend_comm_options {
  uint32_t struct_size;
  int32_t rank;
  int32_t world_size;
  int32_t arrival_timeout_ms;   /**< -1: none */
  int32_t progress_timeout_ms;  /**< -1: none */
  int32_t join_timeout_ms;      /**< -1: none */
  const char *name;             /**< unique among the comms of the store; for messages too */
} tpfsdp_backend_comm_options;

/** What one rank was last seen doing. */
typedef struct tpfsdp_backend_peer {
  uint32_t struct_size;
  int32_t rank;
  int64_t posted;            /**< its last sequence; what it was is in the caller's own log */
  int64_t done;
  int64_t step;              /**< sequence at the end of its last backward */
  int64_t moving;            /**< sequence whose bytes it moves now, 0: none */
  const char *life;          /**< "alive", "closed", "left", "gone"; static */
} tpfsdp_backend_peer;

/* ---- 1. What the library lends. `call` is the argument of the slot that is running. ---- */

typedef struct tpfsdp_backend_services {
  tpfsdp_backend_head head;
  int64_t (*clock_ns)(void);
  void (*log)(tpfsdp_backend_call *call, int32_t level, const char *message);
  /* rank: the one at fault in the comm, -1 unknown; sequence -1 unknown. */
  void (*set_error)(tpfsdp_backend_call *call, tpfsdp_status status, int32_t rank, int64_t sequence,
                    const char *message);
  /* Pages of their own, zero-filled and present; NULL: there is no memory. */
  void *(*allocate)(int64_t size_bytes);
  void (*deallocate)(void *data, int64_t size_bytes);
  /* The store of the ranks of the comm being made; get waits until the key is there, TIMEOUT past the deadline. */
  tpfsdp_status (*store_set)(tpfsdp_backend_call *call, const char *key, const void *value, int64_t size_bytes);
  tpfsdp_status (*store_get)(tpfsdp_backend_call *call, const char *key, void *value, int64_t size_bytes,
                             int64_t deadline_ns);
  /* Asked every 100 ms on the slow path of a wait: OK, or CANCELLED. Counts the wait. */
  tpfsdp_status (*poll_interrupt)(tpfsdp_backend_call *call, const char *operation, int32_t unit, int64_t waited_ns);
  const char *(*unit_name)(tpfsdp_backend_call *call, int32_t unit); /* "" if none */
  /* output = or += as tpfsdp_backend_op says, over inputs of input_count ranks. UNSUPPORTED for other dtypes. */
  tpfsdp_status (*reduce)(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
                          tpfsdp_dtype reduce_dtype, void *output, tpfsdp_dtype output_dtype, int64_t count,
                          double divisor, tpfsdp_bool accumulate);
  void (*copy)(void *target, const void *source, int64_t size_bytes);
  int64_t (*dtype_bytes)(tpfsdp_dtype dtype, int64_t count); /* rounded up */
} tpfsdp_backend_services;

/* ---- 2. What the backend offers. Strings are static. All slots are required. ---- */

typedef struct tpfsdp_backend_table {
  tpfsdp_backend_head head;
  const char *name;                    /**< "threads" */
  const char *version;                 /**< its own */
  const char *license;                 /**< SPDX */
  uint64_t capabilities;               /**< bits of tpfsdp_backend_capability */
  /* A score for this machine, 0: cannot run here; the reason goes to the report. */
  int32_t (*probe)(char *reason, int64_t reason_bytes);
  /* Collective. Ranks meet by the store under options->name. */
  tpfsdp_status (*comm_create)(tpfsdp_backend_call *call, const tpfsdp_backend_comm_options *options,
                               tpfsdp_backend_comm **out_comm);
  /* Collective, in order: waits until every rank has closed. */
  tpfsdp_status (*comm_shutdown)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm);
  /* Sticky on every rank; never blocks; any thread. PEER_LOST: this rank itself is lost (its thread ended); its life
   * is "gone" after comm_destroy. A status that does not stick becomes ABORTED. */
  void (*comm_abort)(tpfsdp_backend_comm *comm, tpfsdp_status status, const char *reason);
  /* OK or the sticky error; never blocks; any thread. */
  tpfsdp_status (*comm_check)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm);
  /* Leaves, if not shut down; never communicates; as give_up for the caller's own memory. */
  void (*comm_destroy)(tpfsdp_backend_comm *comm);
  /* Never blocks; any thread. */
  tpfsdp_status (*comm_get_peer)(tpfsdp_backend_comm *comm, int32_t rank, tpfsdp_backend_peer *out_peer);
  /* Posts op. Waits only when too many are in flight, and within what takes several sequences: an ALL_REDUCE, and
   * large data that is copied through a region. On an error nothing of it is under way; but the error may be that of a
   * collective before it, told while this one waited: submitted again it goes on. */
  tpfsdp_status (*submit)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, const tpfsdp_backend_op *op,
                          tpfsdp_bool may_wait, int64_t *out_sequence);
  /* Completes everything up to sequence, in order. The first error ends it, and is that of the sequence at which it
   * came; asked again for a sequence that failed, the same error. */
  tpfsdp_status (*complete)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t sequence,
                            tpfsdp_bool may_wait);
  /* OK when every peer has finished with what this rank published up to sequence, which is complete here. */
  tpfsdp_status (*wait_read)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t sequence,
                             tpfsdp_bool may_wait);
  /* In place of the next collective: peers return REMOTE with this status and text. No effect while an earlier
   * failure of this rank has not been read by itself. Never waits. */
  void (*post_failure)(tpfsdp_backend_comm *comm, tpfsdp_status status, const char *message);
  /* What is in flight is given up: peers may finish it. The caller's own memory shown to peers is taken back; the
   * only wait, here and in post_failure and post_reset, is for a peer in the middle of reading that. */
  void (*give_up)(tpfsdp_backend_comm *comm);
  /* The end of a failed step: gives up and posts RESET with the number of windows opened. wait_reset reads one
   * sequence of all ranks: out_all_reset 1 when all have reset, then the epoch advances; 0: post again. Unequal
   * windows are STATE. */
  void (*post_reset)(tpfsdp_backend_comm *comm, int64_t windows_opened);
  tpfsdp_status (*wait_reset)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, tpfsdp_bool may_wait,
                              tpfsdp_bool *out_all_reset);
  /* The end of backward: all collectives of this rank are complete; wait_step is OK when every peer has said so. An
   * interrupt posts nothing: call again. */
  void (*publish_step)(tpfsdp_backend_comm *comm);
  tpfsdp_status (*wait_step)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, tpfsdp_bool may_wait);
  /* Memory that peers may read: zero-filled, page-aligned, kept until no rank can read it any more. */
  tpfsdp_status (*region_create)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t size_bytes,
                                 void **out_data, tpfsdp_backend_region **out_region);
  /* Debug: this rank's own view of the region cannot be written while read_only is 1. */
  tpfsdp_status (*region_protect)(tpfsdp_backend_call *call, tpfsdp_backend_region *region, tpfsdp_bool read_only);
  void (*region_destroy)(tpfsdp_backend_region *region);
  /* Collective, of two sequences; what was submitted before it is complete then. Memory that all ranks have mapped:
   * zero-filled, page-aligned, present. It is written at out_data and read at out_readable, which may be the same; where
   * ranks are processes the latter cannot be written. The same size on every rank, else MISMATCH. A failure of one rank,
   * OUT_OF_MEMORY say, is its caller's to post, is REMOTE on the others, and leaves nothing. Asked again for the same
   * size it goes on, after PENDING, CANCELLED, OUT_OF_MEMORY or the error of an earlier sequence; give_up and post_reset
   * end it. Each rank destroys its own, in any order, also after comm_destroy; the memory goes with the last.
   * region_protect acts on out_data, and does nothing where ranks share addresses. */
  tpfsdp_status (*region_create_common)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm, int64_t size_bytes,
                                        tpfsdp_bool may_wait, void **out_data, const void **out_readable,
                                        tpfsdp_backend_region **out_region);
  /* This rank uses what it gathered in the common region no more, complete or not. Never waits; no effect on other
   * regions. A reset does it for every region of its comm in which this rank has no complete gather. */
  void (*region_release)(tpfsdp_backend_region *region);
  /* OK when no peer uses what was gathered in the common region: it may be written. Completes this rank's own gathers
   * there first. STATE while this rank itself uses it, and after it gave up a gather there, until the reset. A failure
   * of a peer that has not released it is REMOTE. An interrupt posts nothing: call again. */
  tpfsdp_status (*region_wait_released)(tpfsdp_backend_call *call, tpfsdp_backend_comm *comm,
                                        tpfsdp_backend_region *region, tpfsdp_bool may_wait);
} tpfsdp_backend_table;

/** A backend's entry: fills @p out_table, whose head the library has set. */
typedef tpfsdp_status (*tpfsdp_backend_entry)(const tpfsdp_backend_services *services, tpfsdp_backend_table *out_table);

#ifdef __cplusplus
}
#endif

#endif
