/* SPDX-License-Identifier: Apache-2.0
 * Full parameters outside forward and backward hooks: segment mode and inspection. */
#ifndef TPFSDP_SCOPE_H
#define TPFSDP_SCOPE_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A scope counts: parameters stay full until the last scope, forward or unshard that needs them is over. Inside it
 * tpfsdp_param_get_view(FULL), get_grad_buffer and add_grad work. SEGMENT MODE, for hosts without module calls:
 * for each block in order, open a scope on it, run its function, close; then for each block in reverse, open a
 * scope, run its vector-Jacobian product, hand over gradients, tpfsdp_grad_reduce, close; at last
 * tpfsdp_module_end_backward on the root. The next block's tpfsdp_fsdp_module_unshard with a work, called before
 * this block computes, overlaps its gather. A host that has one function for the whole model opens one scope on
 * the root instead. */

typedef struct tpfsdp_scope_options {
  uint32_t struct_size;
  tpfsdp_toggle recurse; /**< ON: units below too */
} tpfsdp_scope_options;

/**
 * Gathers the units of @p modules (shared). Scopes nest.
 * Collective: their meshes. Errors: STATE (an explicit write window), UNSUPPORTED. PyTorch: summon_full_params,
 * unshard. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_scope_open(tpfsdp_module *const *modules, int64_t module_count,
                  TPFSDP_NULLABLE const tpfsdp_scope_options *options, tpfsdp_scope **out_scope,
                  TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

/**
 * Lets go. The handle stays the caller's to release; releasing an open scope closes it.
 * Errors: STATE (closed already). PyTorch: __exit__. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_scope_close(tpfsdp_scope *scope, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
