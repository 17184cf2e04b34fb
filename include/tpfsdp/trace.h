/* SPDX-License-Identifier: Apache-2.0
 * What happened on a rank, in what order, and what it cost. Counts are exact: tests assert on them. */
#ifndef TPFSDP_TRACE_H
#define TPFSDP_TRACE_H

#include <tpfsdp/base.h>
#include <tpfsdp/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The recorder belongs to the context. Counters are always kept; events only in the ring whose size
 * tpfsdp_context_options.event_capacity sets. Positions count from the oldest event kept. */

typedef int32_t tpfsdp_event_kind;
enum {
  TPFSDP_EVENT_UNKNOWN = -1,
  TPFSDP_EVENT_UNSPECIFIED = 0,
  TPFSDP_EVENT_UNSHARD = 1,    /**< only when it had an effect */
  TPFSDP_EVENT_RESHARD = 2,
  TPFSDP_EVENT_POST_BACKWARD = 3,
  TPFSDP_EVENT_REDUCE = 4,
  TPFSDP_EVENT_COLLECTIVE = 5, /**< operation, op, dtype, count and world_size are set */
  TPFSDP_EVENT_HOOK = 6,       /**< a driving call; operation is its name */
  TPFSDP_EVENT_WRITE = 7,      /**< a write window opened or closed */
  TPFSDP_EVENT_MARK = 8,       /**< by tpfsdp_trace_mark */
  TPFSDP_EVENT_WAIT_UNSHARD = 9 /**< waited for; the unit is full from here */
};

/** One thing that happened. Strings are borrowed until the ring forgets the event. */
typedef struct tpfsdp_trace_event {
  uint32_t struct_size;
  tpfsdp_event_kind kind;
  tpfsdp_training_state training_state;
  tpfsdp_reduce_op op;
  tpfsdp_dtype dtype;
  int32_t world_size;
  int64_t index;         /**< counts all events of the context, lost ones too */
  int64_t start_ns;      /**< monotonic */
  int64_t duration_ns;
  tpfsdp_sharded_state sharded_state; /**< RESHARD: the state it went to */
  int32_t reserved;
  int64_t count;         /**< elements of the input per rank */
  int64_t output_count;  /**< elements of the output per rank */
  int64_t sequence;      /**< in its group */
  const char *unit;
  const char *group;
  const char *operation; /**< "all_gather", "pre_forward", ... */
  const char *detail;    /**< REDUCE: names of its parameters; else "" */
} tpfsdp_trace_event;

/** Sums since the context was created, or since the last reset. */
typedef struct tpfsdp_counters {
  uint32_t struct_size;
  tpfsdp_bool events_lost; /**< 1: the ring was full at least once */
  int64_t event_count;     /**< events kept now */
  int64_t all_gathers;
  int64_t reduce_scatters;
  int64_t all_reduces;
  int64_t other_collectives;
  int64_t gathered_bytes;  /**< full parameters made, as their shapes say */
  int64_t reduced_bytes;   /**< full gradients reduced, as their shapes say */
  int64_t wire_bytes;      /**< moved between ranks, without what was this rank's own already */
  int64_t filled_bytes;    /**< written by this rank for gathers: its parts of common slots (unshard mode SHARED), and
                                copies of its shards in the dtype of computing where they had changed */
  int64_t copies;          /**< beside the collectives: add_grad and second commits */
  int64_t copied_bytes;
  int64_t prefetch_hits;   /**< gathers that were asked for and under way already */
  int64_t prefetch_misses; /**< gathers that backward had to start when it needed them */
  int64_t spare_slots;     /**< slots taken outside the plan */
  int64_t deferred_reshards;
  int64_t waits;           /**< on the slow path */
  int64_t wait_ns;
  int64_t allocations;     /**< of the library; 0 in a steady-state step */
} tpfsdp_counters;

/** Fills @p out_counters; @p reset 1: sums start again from 0. Threads: serial(context). Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_trace_get_counters(tpfsdp_context *context, tpfsdp_bool reset, tpfsdp_counters *out_counters,
                          TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The event at @p position. Threads: serial(context). Errors: NOT_FOUND. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_trace_get_event(tpfsdp_context *context, int64_t position, tpfsdp_trace_event *out_event,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Forgets the events kept and that some were lost. Threads: serial(context). Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_trace_clear(tpfsdp_context *context, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Adds an event of the host's own. Threads: serial(context). PyTorch: record_function. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_trace_mark(tpfsdp_context *context, const char *name, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The events as Chrome trace JSON. Threads: serial(context). PyTorch: export_chrome_trace. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_trace_export_chrome(tpfsdp_context *context, tpfsdp_blob **out_json,
                           TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
