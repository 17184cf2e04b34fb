/* SPDX-License-Identifier: Apache-2.0
 * Full gradients on their way to averaged shards, for hosts that drive segments. */
#ifndef TPFSDP_GRAD_H
#define TPFSDP_GRAD_H

#include <tpfsdp/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Segment mode: starts the reduction of every full gradient handed over below @p module, inside an open scope;
 * gradients handed over by another block meanwhile overlap it. tpfsdp_module_end_backward on the root finishes all.
 * Collective: its meshes. Errors: STATE. Since: 0.1.
 */
TPFSDP_API TPFSDP_CHECK_RESULT tpfsdp_status
tpfsdp_grad_reduce(tpfsdp_module *module, TPFSDP_NULLABLE tpfsdp_error **error) TPFSDP_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
