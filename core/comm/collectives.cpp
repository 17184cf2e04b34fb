// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.hpp"

#include "comm/collective_args.hpp"
#include "comm/collective_log.hpp"
#include "comm/collective_work.hpp"
#include "device/kernels.hpp"

#include <new>
#include <utility>

namespace tpfsdp {
namespace {

// Runs the preparation of a collective: what it refuses, the peers hear instead of waiting for this rank.
template <class Body>
auto prepare(Group &group, const char *operation, Body &&body) {
  try {
    return body();
  } catch (const Failure &failure) {
    ErrorDetail detail = *failure.detail();
    if (detail.operation.empty()) detail.operation = operation;
    fail_collective(group, Failure(std::move(detail)));
  } catch (const std::bad_alloc &) {
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_OUT_OF_MEMORY;
    detail.operation = operation;
    detail.message = cat(operation, ": out of memory");
    fail_collective(group, Failure(std::move(detail)));
  }
}

Ref<Work> start(const Ref<Group> &group, tpfsdp_backend_op op, std::vector<tpfsdp_backend_piece> pieces,
                int64_t wire_bytes, bool async) {
  op.struct_size = sizeof op;
  op.unit = -1;
  op.pieces = pieces.data();
  op.piece_count = static_cast<int64_t>(pieces.size());
  Ref<CollectiveWork> work;
  std::shared_ptr<PendingCollective> pending;
  int64_t sequence = 0;
  prepare(*group, collective_name(op.kind), [&] {
    if (async) {
      pending = std::make_shared<PendingCollective>();
      pending->pieces = std::move(pieces);
      work = make<CollectiveWork>(group, pending);
    }
    group->submit(op, wire_bytes, true, &sequence);
  });
  if (!async) {
    finish_collective(*group, sequence, true);
    return nullptr;
  }
  pending->sequence = sequence;
  group->keep(std::move(pending));
  return work;
}

tpfsdp_backend_op reduction(tpfsdp_backend_kind kind, tpfsdp_reduce_op reduce_op, const tpfsdp_view &input,
                            int32_t world_size) {
  tpfsdp_backend_op op{};
  op.kind = kind;
  op.op = reduce_op;
  op.dtype = op.reduce_dtype = op.output_dtype = input.dtype;
  op.source = -1;
  op.divisor = reduce_op == TPFSDP_REDUCE_AVG ? world_size : 0;
  op.input = input.data;
  return op;
}

// The result in a group of one, where everything is done at once.
Ref<Work> done_alone(const Ref<Group> &group, bool async) {
  if (!async) return nullptr;
  auto pending = std::make_shared<PendingCollective>();
  pending->is_complete = true;
  return make<CollectiveWork>(group, std::move(pending));
}

// A reduction over one rank: nothing moves, but NaN and integers are treated as anywhere.
void reduce_alone(tpfsdp_reduce_op op, const tpfsdp_view &input, const tpfsdp_view &output, int64_t count) {
  if (count == 0) return;
  const void *inputs[] = {input.data};
  reduce(op, inputs, 1, input.dtype, input.dtype, output.data, output.dtype, count, op == TPFSDP_REDUCE_AVG ? 1.0 : 0.0,
         false);
}

}  // namespace

Ref<Work> all_gather(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output,
                     const std::vector<int64_t> &counts, bool async) {
  GatherPlan plan = prepare(*group, "all_gather", [&] { return plan_all_gather(*group, input, output, counts); });
  if (group->size() == 1) {
    group->check();
    if (input.data != output.data) copy_bytes(output.data, input.data, input.size_bytes);
    return done_alone(group, async);
  }
  tpfsdp_backend_op op{};
  op.kind = TPFSDP_BACKEND_KIND_ALL_GATHER;
  op.dtype = plan.dtype;
  op.source = -1;
  op.input = input.data;
  op.element_count = plan.element_count;
  op.counts_hash = plan.counts_hash;
  op.counts_length = group->size();
  return start(group, op, std::move(plan.pieces), output.size_bytes - input.size_bytes, async);
}

Ref<Work> reduce_scatter(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output,
                         tpfsdp_reduce_op reduce_op, bool async) {
  const int64_t part =
      prepare(*group, "reduce_scatter", [&] { return check_reduce_scatter(*group, input, output, reduce_op); });
  if (group->size() == 1) {
    group->check();
    reduce_alone(reduce_op, input, output, part);
    return done_alone(group, async);
  }
  tpfsdp_backend_op op = reduction(TPFSDP_BACKEND_KIND_REDUCE_SCATTER, reduce_op, input, group->size());
  op.element_count = part * group->size();
  std::vector<tpfsdp_backend_piece> pieces;
  if (part > 0) pieces.push_back({group->rank(), 0, part * group->rank(), part, output.data});
  return start(group, op, std::move(pieces), output.size_bytes * (group->size() - 1), async);
}

Ref<Work> all_reduce(const Ref<Group> &group, const tpfsdp_view &input, const tpfsdp_view &output,
                     tpfsdp_reduce_op reduce_op, bool async) {
  const int64_t count =
      prepare(*group, "all_reduce", [&] { return check_all_reduce(*group, input, output, reduce_op); });
  if (group->size() == 1) {
    group->check();
    reduce_alone(reduce_op, input, output, count);
    return done_alone(group, async);
  }
  tpfsdp_backend_op op = reduction(TPFSDP_BACKEND_KIND_ALL_REDUCE, reduce_op, input, group->size());
  op.output = output.data;
  op.element_count = count;
  return start(group, op, {}, all_reduce_wire_bytes(*group, input), async);
}

Ref<Work> broadcast(const Ref<Group> &group, const tpfsdp_view &data, int32_t source, bool async) {
  const GatherPlan plan = prepare(*group, "broadcast", [&] { return plan_broadcast(*group, data, source); });
  if (group->size() == 1) {
    group->check();
    return done_alone(group, async);
  }
  tpfsdp_backend_op op{};
  op.kind = TPFSDP_BACKEND_KIND_BROADCAST;
  op.dtype = plan.dtype;
  op.source = source;
  op.input = data.data;
  op.output = data.data;
  op.element_count = plan.element_count;
  op.counts_hash = plan.counts_hash;
  return start(group, op, {}, source == group->rank() ? 0 : data.size_bytes, async);
}

void barrier(const Ref<Group> &group) {
  if (group->size() == 1) return group->check();
  tpfsdp_backend_op op{};
  op.kind = TPFSDP_BACKEND_KIND_BARRIER;
  op.source = -1;
  start(group, op, {}, 0, false);
}

}  // namespace tpfsdp
