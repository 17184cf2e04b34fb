/* SPDX-License-Identifier: Apache-2.0
 * The vocabulary of every other header: macros, status, numbers, handle names, plain records. Two functions. */
#ifndef TPFSDP_BASE_H
#define TPFSDP_BASE_H

#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "tpfsdp supports 64-bit targets only: a handle's value needs 64 bits"
#endif

/*
 * HOW TO READ THESE HEADERS. Every rule is stated once, here.
 *
 * Ranks      everything that belongs to a rank comes from that rank's tpfsdp_context (context.h). No rank is kept per
 *            process or per thread. Handles of two ranks in one call give INVALID_ARGUMENT naming both ranks.
 * Ownership  inputs: borrowed (for the call), shared (the callee takes its own reference), consumed (given away on
 *            success, kept by the caller on failure). Results: a handle in an out_x is owned, give it back with
 *            tpfsdp_handle_release; but a handle from a get function or in a record is borrowed: it is the one
 *            canonical handle, never released by the caller, valid while the object asked lives. Retain it to keep it
 *            longer.
 * Null       a pointer is never NULL unless marked TPFSDP_NULLABLE; NULL elsewhere gives INVALID_ARGUMENT, for a
 *            handle INVALID_HANDLE.
 * Handles    opaque pointers whose value names kind, library instance, slot and generation; callers never dereference
 *            them. Null, stale, freed, foreign or wrong-kind handles give INVALID_HANDLE in every function.
 * Results    a function that can fail returns tpfsdp_status and takes `tpfsdp_error **error` last (error.h has no
 *            need to). On failure all other outputs are untouched and *error becomes owned, its former value is
 *            overwritten; on success *error is untouched. error may always be NULL.
 * Strings    UTF-8, NUL-terminated. In: borrowed. Out: borrowed from the object they describe; a binding copies them.
 * Lists      in: pointer and count, side by side. Out: one owned tpfsdp_list, a snapshot.
 * Sizes      int64_t elements, or bytes where the name ends in _bytes; negative is refused. Times end in _ms or _ns.
 * Records    *_options and *_policy (in) and *_info (out) start with struct_size and only ever grow at the end.
 *            Start each from TPFSDP_INIT(type). In: 0 is the default of every field; an unknown non-zero tail is
 *            refused (ABI). Out: the library fills what both sides know and zeroes the rest. Records without
 *            struct_size are frozen for ever.
 * Callbacks  {call, user, drop} records, borrowed and copied. `call` returns TPFSDP_OK or a negative status, which
 *            the library reports as CALLBACK, and must not unwind. `drop(user)`, if any, runs exactly once: after the
 *            last call, or before return when the registration fails. Callbacks run on the thread whose call caused
 *            them and with no lock held, unless said otherwise; *_args records are borrowed for the call.
 * Enums      int32_t plus constants. 0 is the default where there is one (and then named _DEFAULT or _AUTO, with an
 *            explicit _NONE or _OFF beside it where nothing may be meant); elsewhere it is _UNSPECIFIED, refused as
 *            input. A newer library may return numbers that this header does not list: treat them as _UNKNOWN, which
 *            is never a legal input.
 *
 * The last line of each comment is the contract, in this order, each part left out when it says the default:
 *   Threads:     any (at any time) | serial(x) (one thread at a time on x and its whole module tree; a second one gets
 *                BUSY. Default: serial on the first handle). A rank that waits needs an operating system thread of its
 *                own: tasks of a pool and virtual threads can starve each other for ever.
 *   Collective:  every rank of x calls it, in the same order (default: no communication at all). A call that is
 *                collective may wait.
 *   Errors:      besides INVALID_ARGUMENT, INVALID_HANDLE, BUSY, ABI, OUT_OF_MEMORY, FORKED and INTERNAL, which any
 *                may give; a collective may also give REMOTE, MISMATCH, CANCELLED, TIMEOUT, PEER_LOST, ABORTED and
 *                BACKEND, and a call that runs callbacks CALLBACK.
 *   PyTorch:     the name users know, where there is one.
 *   Since:       the first release.
 */

#ifdef __cplusplus
#define TPFSDP_NOEXCEPT noexcept
#else
#define TPFSDP_NOEXCEPT
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TPFSDP_API __attribute__((visibility("default")))
#define TPFSDP_CHECK_RESULT __attribute__((warn_unused_result))
#else
#define TPFSDP_API
#define TPFSDP_CHECK_RESULT
#endif

/** Marks a pointer that may be NULL. Empty for compilers; tools define it. */
#ifndef TPFSDP_NULLABLE
#define TPFSDP_NULLABLE
#endif

/**
 * The initial value of a record with struct_size: all else zero. An expression, for automatic variables.
 *   tpfsdp_group_info me = TPFSDP_INIT(tpfsdp_group_info);
 */
#ifdef __cplusplus
template <class Record>
inline Record tpfsdp_record_init() noexcept {
  Record record{};
  record.struct_size = static_cast<uint32_t>(sizeof(Record));
  return record;
}
#define TPFSDP_INIT(type) tpfsdp_record_init<type>()
#else
#define TPFSDP_INIT(type) ((type){.struct_size = (uint32_t)sizeof(type)})
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Outcome of a call: 0 done, positive not an error, negative an error. The hundreds of an error are its class
 * (tpfsdp_error_class), also for codes that a newer library adds.
 */
typedef int32_t tpfsdp_status;
enum {
  TPFSDP_OK = 0,
  TPFSDP_PENDING = 1,                 /**< not finished; nothing is lost: call again, or the form that waits */

  /* Fix the program. */
  TPFSDP_ERR_INVALID_ARGUMENT = -101,
  TPFSDP_ERR_INVALID_HANDLE = -102,   /**< null, stale, freed, foreign or of another kind */
  TPFSDP_ERR_NOT_FOUND = -103,
  TPFSDP_ERR_STATE = -104,            /**< legal call, wrong moment; the text says what to do first */
  TPFSDP_ERR_BUSY = -105,             /**< another thread, or a callback of this one, is inside the same tree */
  TPFSDP_ERR_ABI = -106,              /**< record size, library version or plugin do not fit */
  TPFSDP_ERR_UNSUPPORTED = -107,

  /* This machine or its data. */
  TPFSDP_ERR_OUT_OF_MEMORY = -201,    /**< memory, or a limit on files, shared or locked memory */
  TPFSDP_ERR_IO = -202,
  TPFSDP_ERR_CORRUPT = -203,          /**< a file fails its own checks; nothing was loaded */
  TPFSDP_ERR_NON_FINITE = -204,       /**< infinity or NaN where the host asked to be told */

  /* Repair the step: tpfsdp_fsdp_module_reset_iter_state on every rank, then go on. */
  TPFSDP_ERR_CALLBACK = -301,         /**< a host callback failed; backend_code is its status */
  TPFSDP_ERR_REMOTE = -302,           /**< a peer failed; its rank and text are carried */
  TPFSDP_ERR_MISMATCH = -303,         /**< ranks disagree; each rank's value is in the text, nothing was reduced */
  TPFSDP_ERR_CANCELLED = -304,        /**< the host's interrupt callback said so */

  /* Restart the group. These stick: every later call on the group repeats the first one. */
  TPFSDP_ERR_TIMEOUT = -401,          /**< alive but not here, or bytes that do not move; names ranks and sequences */
  TPFSDP_ERR_PEER_LOST = -402,        /**< a rank died, stopped or left */
  TPFSDP_ERR_ABORTED = -403,          /**< this or another rank called an abort function */
  TPFSDP_ERR_BACKEND = -404,          /**< the transport failed; see backend_code */

  /* Choose another, or create anew. */
  TPFSDP_ERR_BACKEND_UNAVAILABLE = -501, /**< the text has the reason for each candidate */
  TPFSDP_ERR_FORKED = -502,           /**< the handle was born before a fork; a new context works */

  /* Report a bug. */
  TPFSDP_ERR_INTERNAL = -601
};

/** 0 or 1 in calls and results; another value is refused. */
typedef int32_t tpfsdp_bool;

/** A boolean inside an options record, where 0 must mean "the default". */
typedef int32_t tpfsdp_toggle;
enum { TPFSDP_TOGGLE_OFF = -1, TPFSDP_TOGGLE_DEFAULT = 0, TPFSDP_TOGGLE_ON = 1 };

/**
 * Element types: all of DLPack's. Sub-byte types count elements; sizes in bytes are rounded up per tensor. 0 in an
 * option means "as the parameter".
 */
typedef int32_t tpfsdp_dtype;
enum {
  TPFSDP_DTYPE_UNKNOWN = -1,
  TPFSDP_DTYPE_DEFAULT = 0,
  TPFSDP_DTYPE_F32 = 1,
  TPFSDP_DTYPE_F64 = 2,
  TPFSDP_DTYPE_F16 = 3,
  TPFSDP_DTYPE_BF16 = 4,
  TPFSDP_DTYPE_I8 = 5,
  TPFSDP_DTYPE_I16 = 6,
  TPFSDP_DTYPE_I32 = 7,
  TPFSDP_DTYPE_I64 = 8,
  TPFSDP_DTYPE_U8 = 9,
  TPFSDP_DTYPE_U16 = 10,
  TPFSDP_DTYPE_U32 = 11,
  TPFSDP_DTYPE_U64 = 12,
  TPFSDP_DTYPE_BOOL = 13,
  TPFSDP_DTYPE_C64 = 14,
  TPFSDP_DTYPE_C128 = 15,
  TPFSDP_DTYPE_F8_E3M4 = 16,
  TPFSDP_DTYPE_F8_E4M3 = 17,
  TPFSDP_DTYPE_F8_E4M3B11FNUZ = 18,
  TPFSDP_DTYPE_F8_E4M3FN = 19,
  TPFSDP_DTYPE_F8_E4M3FNUZ = 20,
  TPFSDP_DTYPE_F8_E5M2 = 21,
  TPFSDP_DTYPE_F8_E5M2FNUZ = 22,
  TPFSDP_DTYPE_F8_E8M0FNU = 23,
  TPFSDP_DTYPE_F6_E2M3FN = 24,
  TPFSDP_DTYPE_F6_E3M2FN = 25,
  TPFSDP_DTYPE_F4_E2M1FN = 26
};

/**
 * Device types, with DLPack's numbers; META (shape and dtype, no memory) is our own. 0 in an option means "the
 * context's", in the context's own options CPU.
 */
typedef int32_t tpfsdp_device_type;
enum {
  TPFSDP_DEVICE_UNKNOWN = -1,
  TPFSDP_DEVICE_DEFAULT = 0,
  TPFSDP_DEVICE_CPU = 1,
  TPFSDP_DEVICE_CUDA = 2,
  TPFSDP_DEVICE_CUDA_HOST = 3,
  TPFSDP_DEVICE_ROCM = 10,
  TPFSDP_DEVICE_ROCM_HOST = 11,
  TPFSDP_DEVICE_CUDA_MANAGED = 13,
  TPFSDP_DEVICE_META = 1000
};

/**
 * Reductions. On host memory sums are kept in f32 (f64 for f64), ranks left to right, scaled once and rounded once;
 * AVG scales by 1/world, integers divide last, truncating; MIN and MAX propagate NaN.
 */
typedef int32_t tpfsdp_reduce_op;
enum {
  TPFSDP_REDUCE_UNKNOWN = -1,
  TPFSDP_REDUCE_UNSPECIFIED = 0,
  TPFSDP_REDUCE_SUM = 1,
  TPFSDP_REDUCE_AVG = 2,
  TPFSDP_REDUCE_MIN = 3,
  TPFSDP_REDUCE_MAX = 4
};

/**
 * A stream of the host. native_handle is its cudaStream_t (hipStream_t), NULL the device's default; unused on CPU.
 * Frozen.
 */
typedef struct tpfsdp_stream {
  tpfsdp_device_type device_type;
  int32_t device_id;
  TPFSDP_NULLABLE void *native_handle;
} tpfsdp_stream;

/**
 * The description of memory that somebody else owns. One cache line, frozen. shape and strides (in elements; NULL:
 * dense row-major) have ndim entries and are borrowed like data. Layouts that are not dense row-major are refused
 * with UNSUPPORTED, by name, never copied silently. data is NULL exactly when there are no elements or the memory is
 * META. epoch changes whenever the answer to the same question moves or is re-used, so a host may keep what it built
 * on a view until the number changes; 0 in a host's own views.
 */
typedef struct tpfsdp_view {
  TPFSDP_NULLABLE void *data;
  int64_t size_bytes;
  TPFSDP_NULLABLE const int64_t *shape; /**< NULL: ndim is 0 */
  TPFSDP_NULLABLE const int64_t *strides;
  int32_t ndim;
  tpfsdp_dtype dtype;
  tpfsdp_device_type device_type;
  int32_t device_id;
  int64_t epoch;
  tpfsdp_bool read_only;
  int32_t reserved;
} tpfsdp_view;

/** Keeps host memory alive: drop(user) runs once, from any thread, when the library needs it no more. Frozen. */
typedef struct tpfsdp_owner {
  TPFSDP_NULLABLE void *user;
  void (*drop)(void *user);
} tpfsdp_owner;

/* Every handle type of the library, and its header. */
typedef struct tpfsdp_error tpfsdp_error;
typedef struct tpfsdp_context tpfsdp_context; /* context.h */
typedef struct tpfsdp_list tpfsdp_list; /* list.h */
typedef struct tpfsdp_blob tpfsdp_blob; /* list.h */
typedef struct tpfsdp_tensor tpfsdp_tensor; /* tensor.h */
typedef struct tpfsdp_work tpfsdp_work; /* work.h */
typedef struct tpfsdp_group tpfsdp_group; /* group.h */
typedef struct tpfsdp_mesh tpfsdp_mesh; /* mesh.h */
typedef struct tpfsdp_param tpfsdp_param; /* param.h */
typedef struct tpfsdp_module tpfsdp_module; /* module.h */
typedef struct tpfsdp_unit tpfsdp_unit; /* unit.h */
typedef struct tpfsdp_scope tpfsdp_scope; /* scope.h */
typedef struct tpfsdp_hook tpfsdp_hook; /* module.h */

/**
 * Adds one reference to a handle of any kind and returns it; NULL for a handle that is not alive.
 * Threads: any. Since: 0.1.
 */
TPFSDP_API TPFSDP_NULLABLE void *tpfsdp_handle_retain(TPFSDP_NULLABLE void *handle) TPFSDP_NOEXCEPT;

/**
 * Drops one reference to a handle of any kind, in any order, also from a finalizer: never blocks, never communicates,
 * never calls back except a drop, and a memory callback where a unit loses its last pin. Children keep their parents
 * alive; a release during a call on the same tree is done at that call's end. NULL, stale and foreign values and
 * handles born before a fork do nothing.
 * Threads: any. Since: 0.1.
 */
TPFSDP_API void tpfsdp_handle_release(TPFSDP_NULLABLE void *handle) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
