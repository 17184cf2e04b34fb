/* SPDX-License-Identifier: Apache-2.0
 * The host's module tree, mirrored, and the calls that drive it through forward and backward. */
#ifndef TPFSDP_MODULE_H
#define TPFSDP_MODULE_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One tree belongs to one rank. Threads: serial on the tree, for every call here and in param.h, unit.h, root.h,
 * fsdp_module.h, scope.h, grad.h and optimizer.h; different ranks' trees are independent. Names may not be empty
 * or contain a dot; targets are dotted paths. */

typedef struct tpfsdp_module_options {
  uint32_t struct_size;
  tpfsdp_toggle has_forward;                 /**< ON; OFF: a plain container (list, dict), not to be sharded by
                                                  itself */
  TPFSDP_NULLABLE const char *class_name;    /**< "Linear"; NULL: "Module" */
  TPFSDP_NULLABLE const char *const *base_names; /**< classes it is also an instance of, for wrap policies */
  int64_t base_name_count;
  TPFSDP_NULLABLE const char *extra_repr;    /**< shown by describe, "in=64, out=32" */
  TPFSDP_NULLABLE void *user;                /**< the host's own object, given back by get_info */
} tpfsdp_module_options;

/** What a module is. Strings are borrowed until the tree changes. */
typedef struct tpfsdp_module_info {
  uint32_t struct_size;
  tpfsdp_bool training;
  tpfsdp_bool grad_enabled;
  tpfsdp_bool has_forward;
  tpfsdp_bool is_fsdp;     /**< fully_shard was called on it, alone or in a list */
  int32_t reserved;
  int64_t id;              /**< unique in the process, never used again */
  tpfsdp_context *context; /**< borrowed */
  const char *class_name;
  const char *name;        /**< first dotted name below the root, "" for the root */
  TPFSDP_NULLABLE void *user;
} tpfsdp_module_info;

/** What a method or hook is called with. */
typedef struct tpfsdp_module_args {
  uint32_t struct_size;
  tpfsdp_bool failed;            /**< forward hooks: forward failed, and the hook was registered with always_call */
  tpfsdp_module *module;         /**< borrowed */
  const char *method;            /**< "forward", "backward", ... */
  TPFSDP_NULLABLE void *payload; /**< what the host gave to the driving call, never looked at; NULL in manual mode */
} tpfsdp_module_args;

/**
 * A method or a hook of a module, written by the host. Runs on the thread of the driving call and may call the library,
 * to drive modules below the one it is called for.
 */
typedef struct tpfsdp_module_callback {
  tpfsdp_status (*call)(void *user, const tpfsdp_module_args *args);
  TPFSDP_NULLABLE void *user;
  TPFSDP_NULLABLE void (*drop)(void *user);
} tpfsdp_module_callback;

typedef int32_t tpfsdp_hook_kind;
enum {
  TPFSDP_HOOK_UNKNOWN = -1,
  TPFSDP_HOOK_UNSPECIFIED = 0,  /**< refused */
  TPFSDP_HOOK_FORWARD_PRE = 1,  /**< before forward, parameters are full */
  TPFSDP_HOOK_FORWARD = 2,      /**< after forward, parameters are still full */
  TPFSDP_HOOK_BACKWARD_PRE = 3, /**< before backward, parameters are full */
  TPFSDP_HOOK_BACKWARD = 4      /**< after backward, full gradients are there and not yet reduced */
};

typedef struct tpfsdp_hook_options {
  uint32_t struct_size;
  tpfsdp_toggle prepend;     /**< OFF: after the hooks that exist */
  tpfsdp_toggle always_call; /**< OFF; ON: a forward hook also runs when forward failed; what it returns then is not
                                  looked at */
  int32_t reserved;
} tpfsdp_hook_options;

/* ---- The tree ---- */

/** A module without children, of the rank of @p context (shared). Threads: any. PyTorch: nn.Module. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_create(tpfsdp_context *context, TPFSDP_NULLABLE const tpfsdp_module_options *options,
                     tpfsdp_module **out_module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Fills @p out_info. PyTorch: training, __class__. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_get_info(tpfsdp_module *module, tpfsdp_module_info *out_info,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The tree as text, one module a line, with classes, shapes and sharding. PyTorch: repr, extra_repr. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_describe(tpfsdp_module *module, tpfsdp_blob **out_text,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Hangs @p child (shared; NULL: an empty place) under @p name.
 * Errors: STATE (a cycle, or sharded already). PyTorch: add_module, register_module. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_add_module(tpfsdp_module *module, const char *name, TPFSDP_NULLABLE tpfsdp_module *child,
                         TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Puts @p child (shared) at @p target; @p strict 1: only in place of one that is there.
 * Errors: NOT_FOUND, STATE. PyTorch: set_submodule. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_set_submodule(tpfsdp_module *module, const char *target, tpfsdp_module *child, tpfsdp_bool strict,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The module at @p target, borrowed; "" is the module itself.
 * Errors: NOT_FOUND. PyTorch: get_submodule. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_get_submodule(tpfsdp_module *module, const char *target, tpfsdp_module **out_module,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Registers @p param (shared; NULL: an empty place, not saved). One handle in two places is tied.
 * Errors: STATE. PyTorch: register_parameter. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_register_parameter(tpfsdp_module *module, const char *name, TPFSDP_NULLABLE tpfsdp_param *param,
                                 TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The parameter at @p target, borrowed. Errors: NOT_FOUND. PyTorch: get_parameter. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_get_parameter(tpfsdp_module *module, const char *target, tpfsdp_param **out_param,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Registers or replaces a buffer (shared; NULL: an empty place); @p persistent 1: part of state dicts.
 * PyTorch: register_buffer. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_register_buffer(tpfsdp_module *module, const char *name, TPFSDP_NULLABLE tpfsdp_tensor *tensor,
                              tpfsdp_bool persistent, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The buffer at @p target, borrowed. Errors: NOT_FOUND. PyTorch: get_buffer. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_get_buffer(tpfsdp_module *module, const char *target, tpfsdp_tensor **out_tensor,
                         TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Direct children as modules, in order of registration. PyTorch: children, named_children. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_list_children(tpfsdp_module *module, tpfsdp_list **out_list,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * The module and all below it as modules, pre-order, names after @p prefix (NULL: "").
 * PyTorch: modules, named_modules. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_list_modules(tpfsdp_module *module, TPFSDP_NULLABLE const char *prefix, tpfsdp_bool remove_duplicates,
                           tpfsdp_list **out_list, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Parameters, tied ones once; the same names in the same order on all ranks, empty shards included.
 * PyTorch: parameters, named_parameters. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_list_parameters(tpfsdp_module *module, tpfsdp_bool recurse, tpfsdp_list **out_list,
                              TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Buffers as tensors. PyTorch: buffers, named_buffers. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_list_buffers(tpfsdp_module *module, tpfsdp_bool recurse, tpfsdp_list **out_list,
                           TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* ---- The whole subtree ---- */

/** Training (1) or evaluation (0) mode of every module, read back by get_info. PyTorch: train, eval. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_train(tpfsdp_module *module, tpfsdp_bool mode, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** 0: no backward will follow the coming forwards. Start: 1. PyTorch: no_grad. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_set_grad_enabled(tpfsdp_module *module, tpfsdp_bool enabled,
                               TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Freezes (0) or unfreezes (1) all parameters. Errors: STATE. PyTorch: requires_grad_. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_set_requires_grad(tpfsdp_module *module, tpfsdp_bool requires_grad,
                                TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Drops all gradient shards (@p set_to_none 1) or zeroes those that exist (0). PyTorch: zero_grad. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_zero_grad(tpfsdp_module *module, tpfsdp_bool set_to_none,
                        TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* ---- Call mode: the library calls the host. A callback that fails is CALLBACK, with its status as backend code and
 * the failure of the last call inside it as cause; one that hands on the status of that call fails as it did. The
 * outermost call tells the peers, as tpfsdp_root_fail would; then tpfsdp_fsdp_module_reset_iter_state. A host may mix
 * call and manual mode. ---- */

/**
 * Sets method @p name ("forward", "backward", or any other); NULL removes it.
 * Errors: INVALID_ARGUMENT. PyTorch: def forward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_set_method(tpfsdp_module *module, const char *name,
                         TPFSDP_NULLABLE const tpfsdp_module_callback *callback,
                         TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * pre_forward, method "forward" with @p payload, post_forward, and the forward hooks around the method; post_forward
 * also when the method failed.
 * Collective: its meshes, if anything is gathered. Errors: NOT_FOUND, CALLBACK, and those of the two. PyTorch:
 * __call__. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_call(tpfsdp_module *module, TPFSDP_NULLABLE void *payload,
                   TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * pre_backward, method "backward" with @p payload, post_backward, and the backward hooks around the method; on the
 * outermost call end_backward of every tree that took part.
 * Collective: its meshes. Errors: NOT_FOUND, CALLBACK, and those of the three. PyTorch: backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_backward(tpfsdp_module *module, TPFSDP_NULLABLE void *payload,
                       TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Method @p name with @p payload; as tpfsdp_module_call where it is "forward" or was registered as a forward method.
 * Collective: its meshes, in that case. Errors: NOT_FOUND, CALLBACK. PyTorch: module.encode(x). Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_call_method(tpfsdp_module *module, const char *name, TPFSDP_NULLABLE void *payload,
                          TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Adds a hook, run by call mode and by the matching manual call (pre_forward, post_forward, pre_backward,
 * post_backward; of a backward once). It stays until tpfsdp_hook_remove; releasing the handle keeps it. A hook added
 * by a hook runs the next time.
 * Errors: INVALID_ARGUMENT. PyTorch: register_forward_pre_hook, register_forward_hook, register_full_backward_pre_hook,
 * register_full_backward_hook. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_register_hook(tpfsdp_module *module, tpfsdp_hook_kind kind, const tpfsdp_module_callback *callback,
                            TPFSDP_NULLABLE const tpfsdp_hook_options *options,
                            TPFSDP_NULLABLE tpfsdp_hook **out_hook,
                            TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** Takes a hook off again; twice is harmless. PyTorch: RemovableHandle.remove. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_hook_remove(tpfsdp_hook *hook, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/* ---- Manual mode: the host calls the library, from its own hooks. HOT: no strings, no allocation. On a module
 * that is not sharded only its hooks run, so a host may call these for every module. The try forms never wait:
 * they do what can be done at once and return OK, or PENDING when a wait is left; then the same try again or the
 * plain form goes on from there. A host holding a lock of its interpreter tries first and gives the lock up only
 * to wait. ---- */

/**
 * Before a forward: its parameters are full on return (on a device: for work enqueued on the stream).
 * Collective: its meshes, if anything is gathered. Errors: STATE (meta or unwritten values, an explicit write window,
 * not the root). PyTorch: FSDPState._pre_forward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_pre_forward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The same without waiting: OK or PENDING. Collective: as pre_forward. Errors: as pre_forward. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_try_pre_forward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * After it: frees what reshard_after_forward says. Never waits.
 * Errors: STATE, CALLBACK. PyTorch: FSDPState._post_forward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_post_forward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Instead of post_forward when forward failed: only hooks that were registered with always_call run. Never waits.
 * Errors: STATE. PyTorch: always_call of register_forward_hook. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_fail_forward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Before its backward, when the first gradient of an output is there: parameters are full, gradient memory is there,
 * the next unit is prefetched. Again: no effect.
 * Collective: its meshes. Errors: STATE. PyTorch: FSDPState._pre_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_pre_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The same without waiting: OK or PENDING. Collective: as pre_backward. Errors: as pre_backward. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_try_pre_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * After its backward, all gradients handed over: frees parameters, starts the reduction. May be left out;
 * end_backward makes up for it.
 * Collective: its meshes. Errors: STATE. PyTorch: FSDPParamGroup.post_backward. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_post_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The same without waiting: OK or PENDING. Collective: as post_backward. Errors: as post_backward. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_try_post_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Once at the end of each backward, on the root: finishes every unit and reduction, then opens the write window:
 * gradient shards may be read, shards written. A pinned unit or a gather in flight is STATE here, naming the units,
 * and REMOTE on the peers.
 * Collective: its meshes. Errors: STATE. PyTorch: _root_post_backward_final_callback. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_end_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/** The same without waiting: OK or PENDING. Collective: as end_backward. Errors: as end_backward. Since: 0.1. */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_module_try_end_backward(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
