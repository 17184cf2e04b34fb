// SPDX-License-Identifier: Apache-2.0
// The collectives that a host may use itself, on its own memory. Each posts its own failure to the peers. A result of
// null means done; else the memory stays borrowed until the work is finished.
#pragma once

#include "comm/group.hpp"
#include "comm/work.hpp"
#include "tensor/shape.hpp"

namespace tpfsdp {

Ref<Work> all_gather(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output,
                     const std::vector<int64_t> &counts, bool async);
Ref<Work> reduce_scatter(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output,
                         tpfsdp_reduce_op op, bool async);
Ref<Work> all_reduce(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output, tpfsdp_reduce_op op,
                     bool async);
Ref<Work> broadcast(const Ref<Group> &group, const tpfsdp_view &data, int32_t source, bool async);
void barrier(const Ref<Group> &group);

}  // namespace tpfsdp
