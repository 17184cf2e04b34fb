/* SPDX-License-Identifier: Apache-2.0
 * One rank: how it joins the others, what it may use, whom it tells, and how it ends. */
#ifndef TPFSDP_CONTEXT_H
#define TPFSDP_CONTEXT_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A context is one rank of a job. Ranks are processes, or threads of one process each with its own context.
 * Everything that belongs to the rank is made from it: groups, meshes, module trees. Releasing the last handle
 * that needs a context without tpfsdp_context_shutdown is an abandonment: peers that wait for the rank see
 * PEER_LOST. The scope exit of a binding aborts instead, with the reason. */

typedef int32_t tpfsdp_log_level;
enum {
  TPFSDP_LOG_UNKNOWN = -1,
  TPFSDP_LOG_DEFAULT = 0, /**< WARNING */
  TPFSDP_LOG_DEBUG = 1,
  TPFSDP_LOG_INFO = 2,
  TPFSDP_LOG_WARNING = 3,
  TPFSDP_LOG_ERROR = 4,
  TPFSDP_LOG_OFF = 5
};

/** One log record. */
typedef struct tpfsdp_log_args {
  uint32_t struct_size;
  tpfsdp_log_level level;
  int32_t rank;
  int32_t reserved;
  int64_t time_ns;       /**< since the Unix epoch */
  const char *component; /**< "comm", "fsdp", "checkpoint", ... */
  const char *message;   /**< one line, no newline */
} tpfsdp_log_args;

/**
 * Receives log records, from any thread, one at a time per thread; must not call the library. A wait for a late rank
 * reports after 30 s and at each doubling, naming the missing ranks and their last sequence.
 */
typedef struct tpfsdp_log_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_log_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_log_callback;

/** A wait that has lasted 100 ms, and again each 100 ms. */
typedef struct tpfsdp_interrupt_args {
  uint32_t struct_size;
  int32_t waited_ms;
  const char *operation; /**< "all_gather" */
  const char *unit;      /**< "layers.3", "" if none */
} tpfsdp_interrupt_args;

/**
 * Asked on the slow path of every wait, on the waiting thread. A negative status ends the wait with CANCELLED here
 * and REMOTE on the peers; the group stays usable. This is how Ctrl-C works in every language.
 */
typedef struct tpfsdp_interrupt_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_interrupt_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_interrupt_callback;

/** The store of rank 0 takes connections now. */
typedef struct tpfsdp_listening_args {
  uint32_t struct_size;
  int32_t port;      /**< of the machine of rank 0 */
  const char *store; /**< "tcp:HOST:PORT": the `store` of the other ranks */
} tpfsdp_listening_args;

/**
 * Called on rank 0, on the thread of tpfsdp_context_create, once its "tcp:" store listens and before it waits for the
 * other ranks: the place to tell them a port that the system chose. A negative status ends the join with CALLBACK.
 * PyTorch: TCPStore(port=0).port.
 */
typedef struct tpfsdp_listening_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_listening_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_listening_callback;

/** One rank of tpfsdp_context_run_ranks. */
typedef struct tpfsdp_rank_args {
  uint32_t struct_size;
  int32_t rank;
  int32_t world_size;
  int32_t reserved;
  tpfsdp_context *context; /**< borrowed; run_ranks shuts it down after OK and aborts it after a failure */
  tpfsdp_error **error;    /**< where the function may leave the error that its own status comes from */
} tpfsdp_rank_args;

/** What a rank does. Called once per rank, each on a thread of its own, all at the same time. */
typedef struct tpfsdp_rank_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_rank_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_rank_callback;

/** How to join. Strings and records are borrowed and copied. */
typedef struct tpfsdp_context_options {
  uint32_t struct_size;
  int32_t rank;                              /**< with world_size */
  int32_t world_size;                        /**< 0: the launcher's, see create */
  int32_t arrival_timeout_ms;                /**< a peer lives but is not here yet; 0: 1800000; -1: no limit */
  int32_t progress_timeout_ms;               /**< all are here and bytes do not move; 0: 60000; -1: no limit */
  int32_t join_timeout_ms;                   /**< until all ranks have joined; 0: 300000; -1: no limit */
  tpfsdp_log_level log_level;                /**< lowest level that `log` receives */
  int32_t event_capacity;                    /**< events kept for trace.h, allocated here; 0: none, counters only */
  int64_t memory_budget_bytes;               /**< of this rank and tree, for units whose unshard mode is AUTO
                                                  (fully_shard.h); 0: no bound */
  TPFSDP_NULLABLE const char *backend;       /**< "threads", "shm"; NULL: the best that can run here */
  TPFSDP_NULLABLE const char *store;         /**< where ranks meet: "local:NAME" (threads of one process), "file:DIR"
                                                  (a directory that is new for each job, and private to the user),
                                                  "tcp:HOST:PORT" (rank 0 listens, with port 0 at one that is free
                                                  and told by `listening`; TPFSDP_TOKEN in the environment of all);
                                                  NULL or "env": as the launcher says */
  TPFSDP_NULLABLE const char *name;          /**< of the default group, for messages; NULL: "world" */
  TPFSDP_NULLABLE const tpfsdp_log_callback *log; /**< NULL: nothing is logged */
  TPFSDP_NULLABLE const tpfsdp_interrupt_callback *interrupt;
  TPFSDP_NULLABLE const tpfsdp_listening_callback *listening; /**< of rank 0 with a "tcp:" store */
} tpfsdp_context_options;

/** What a context is. Strings and the group are borrowed from it. */
typedef struct tpfsdp_context_info {
  uint32_t struct_size;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;         /**< among the ranks of this host */
  int32_t local_world_size;
  int32_t arrival_timeout_ms;
  int32_t progress_timeout_ms;
  int32_t event_capacity;
  tpfsdp_group *group;        /**< the default group: all ranks */
  const char *backend;
  const char *backend_version;
  const char *backend_report; /**< each candidate: where it was looked for, and why it was taken or refused */
} tpfsdp_context_info;

/**
 * Joins a job as one rank. With world_size 0 rank, world and store come from the launcher (tpfsdp-run, torchrun,
 * mpirun, srun); without one it is a world of one. A world of one inside a launch of several is refused (STATE), never
 * granted silently. Ranks are threads with a "local:" store, else processes of one machine and user.
 * Threads: any. Collective: all ranks of the job, which have all joined when it returns. Errors: INVALID_ARGUMENT (also
 * a store directory that others can write), STATE, UNSUPPORTED (ranks of several machines or users), TIMEOUT (a rank did
 * not come; the text names it), PEER_LOST, BACKEND_UNAVAILABLE, OUT_OF_MEMORY.
 * PyTorch: init_process_group. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_context_create(TPFSDP_NULLABLE const tpfsdp_context_options *options, tpfsdp_context **out_context,
                      TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Runs @p callback as @p rank_count ranks, each on a thread of its own with its own context, and waits for all. The
 * first rank that fails aborts the others; its status is returned, its error handed out. rank, world_size, store and
 * listening of @p options are ignored; its interrupt is asked on the calling thread.
 * Threads: any. Errors: any that a rank gives. PyTorch: MultiThreadedTestCase. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_context_run_ranks(int32_t rank_count, TPFSDP_NULLABLE const tpfsdp_context_options *options,
                         const tpfsdp_rank_callback *callback, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Fills @p out_info; never communicates.
 * Threads: any. PyTorch: get_rank, get_world_size, get_backend. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_context_get_info(tpfsdp_context *context, tpfsdp_context_info *out_info,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Replaces the interrupt callback; NULL: none. Takes effect with the next wait. Threads: any. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_context_set_interrupt(tpfsdp_context *context, TPFSDP_NULLABLE const tpfsdp_interrupt_callback *callback,
                             TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Ends the rank in order: waits for pending work and for all ranks, then ends every group. Later communication gives
 * STATE; shards and trees stay readable.
 * Collective: all ranks of the job. PyTorch: destroy_process_group. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_context_shutdown(tpfsdp_context *context, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Emergency stop: every call that waits in a group of this context, here and on other ranks, returns ABORTED with
 * @p reason in its text. Never blocks.
 * Threads: any. PyTorch: ProcessGroup.abort. Since: 0.1.
 */
TPFSDP_API void tpfsdp_context_abort(tpfsdp_context *context, TPFSDP_NULLABLE const char *reason) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
