/* SPDX-License-Identifier: Apache-2.0
 * What every language shares: the groups of names that a language's file walks over, and the headers. A typemap is
 * written once for a group, never for a function. */
%include <stdint.i>

/* The headers are read as C, also where the wrapper is C++. */
#undef __cplusplus
#define TPFSDP_API
#define TPFSDP_NULLABLE
#define TPFSDP_CHECK_RESULT

%{
#include <tpfsdp/tpfsdp.h>
%}

%define TPFSDP_EACH_HANDLE(M)
M(context) M(list) M(blob) M(tensor) M(work) M(group) M(mesh) M(param) M(module) M(unit) M(scope)
M(hook)
%enddef

/* Callbacks that are an argument of a function, and those that are a member of an options record too. */
%define TPFSDP_EACH_CALLBACK(M)
M(log) M(interrupt) M(listening) M(rank) M(grad_reduced) M(memory) M(module)
%enddef

%define TPFSDP_EACH_RECORD(M)
M(error_info) M(context_options) M(context_info) M(shard_info) M(hook_options) M(group_info) M(mesh_info) M(param_info)
M(module_options) M(module_info) M(fully_shard_options) M(mixed_precision_policy) M(unit_info) M(memory_info) M(fsdp_module_info)
M(scope_options) M(trace_event) M(counters)
%enddef

/* Functions that give PENDING instead of waiting. */
%define TPFSDP_EACH_POLL(M)
M(work_test) M(module_try_pre_forward) M(module_try_pre_backward) M(module_try_post_backward)
M(module_try_end_backward)
%enddef

/* Functions that may wait, for peers or for a lock that a callback holds, or move many bytes: a language with an
 * interpreter lock gives it up around them, and around nothing else. */
%define TPFSDP_EACH_WAITING(M)
M(context_create) M(context_run_ranks) M(context_set_interrupt) M(context_shutdown)
M(group_split) M(group_shutdown) M(group_reset) M(group_all_gather) M(group_reduce_scatter) M(group_all_reduce)
M(group_broadcast) M(group_barrier)
M(mesh_create) M(mesh_create_from_groups) M(mesh_flatten)
M(work_wait) M(tensor_copy)
M(param_get_grad_buffer) M(param_add_grad) M(param_set_grad) M(param_set_tensor)
M(module_pre_forward) M(module_pre_backward) M(module_post_backward) M(module_end_backward)
M(fully_shard) M(root_prepare) M(shards_begin_write)
M(fsdp_module_unshard) M(fsdp_module_reset_iter_state) M(fsdp_module_finalize_backward)
M(module_call) M(module_backward) M(module_call_method)
M(scope_open) M(grad_reduce)
%enddef

/* A binding's exceptions hold what these tell. */
%ignore tpfsdp_error_message;
%ignore tpfsdp_error_get_info;
%ignore tpfsdp_error_get_cause;
/* A C program's initializer; bindings describe memory in their own way. */
%ignore tpfsdp_tensor_view_init;
%ignore tpfsdp_view;
%ignore tpfsdp_owner;
%ignore tpfsdp_stream;
/* Pointers to the host's own objects: a binding keeps its own map from handle to object. */
%ignore tpfsdp_module_options::user;
%ignore tpfsdp_module_info::user;

/* A record that grows is made with its size set: TPFSDP_INIT in every language. */
%define TPFSDP_RECORD(X)
%ignore tpfsdp_##X::struct_size;
%ignore tpfsdp_##X::reserved;
%extend tpfsdp_##X {
  tpfsdp_##X() { return new tpfsdp_##X(TPFSDP_INIT(tpfsdp_##X)); }
}
%enddef
TPFSDP_EACH_RECORD(TPFSDP_RECORD)

%define TPFSDP_HEADERS
%include "tpfsdp/base.h"
%include "tpfsdp/version.h"
%include "tpfsdp/error.h"
%include "tpfsdp/list.h"
%include "tpfsdp/context.h"
%include "tpfsdp/work.h"
%include "tpfsdp/tensor.h"
%include "tpfsdp/group.h"
%include "tpfsdp/mesh.h"
%include "tpfsdp/param.h"
%include "tpfsdp/module.h"
%include "tpfsdp/policy.h"
%include "tpfsdp/fully_shard.h"
%include "tpfsdp/unit.h"
%include "tpfsdp/root.h"
%include "tpfsdp/fsdp_module.h"
%include "tpfsdp/scope.h"
%include "tpfsdp/grad.h"
%include "tpfsdp/trace.h"
%enddef
