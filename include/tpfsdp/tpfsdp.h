/* SPDX-License-Identifier: Apache-2.0
 * All of tpfsdp for programs. Authors of backends include backend.h instead. */
#ifndef TPFSDP_TPFSDP_H
#define TPFSDP_TPFSDP_H

#include <tpfsdp/base.h>
#include <tpfsdp/version.h>
#include <tpfsdp/error.h>
#include <tpfsdp/list.h>
#include <tpfsdp/context.h>
#include <tpfsdp/work.h>
#include <tpfsdp/tensor.h>
#include <tpfsdp/group.h>
#include <tpfsdp/mesh.h>
#include <tpfsdp/param.h>
#include <tpfsdp/module.h>
#include <tpfsdp/policy.h>
#include <tpfsdp/fully_shard.h>
#include <tpfsdp/unit.h>
#include <tpfsdp/root.h>
#include <tpfsdp/fsdp_module.h>
#include <tpfsdp/scope.h>
#include <tpfsdp/grad.h>
#include <tpfsdp/trace.h>

#endif
