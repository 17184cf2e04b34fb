// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <numeric>
#include <thread>

namespace host_test {

Rank::Rank(int r, int w, Store *store) : rank(r), world(w) {
  call.store = store;
  call.rank = r;
}

Rank::~Rank() { leave(); }

tpfsdp_status Rank::join(const Options &options) {
  tpfsdp_backend_comm_options o{};
  o.struct_size = sizeof o;
  o.rank = rank;
  o.world_size = world;
  o.arrival_timeout_ms = options.arrival_ms;
  o.progress_timeout_ms = options.progress_ms;
  o.join_timeout_ms = options.join_ms;
  o.name = options.name.c_str();
  return table().comm_create(call.handle(), &o, &comm);
}

tpfsdp_status Rank::shutdown() { return table().comm_shutdown(call.handle(), comm); }

void Rank::leave() {
  if (comm != nullptr) table().comm_destroy(comm);
  comm = nullptr;
}

tpfsdp_status Rank::submit(const tpfsdp_backend_op &op, bool may_wait) {
  return table().submit(call.handle(), comm, &op, may_wait ? 1 : 0, &last);
}

tpfsdp_status Rank::complete(int64_t sequence, bool may_wait) {
  return table().complete(call.handle(), comm, sequence, may_wait ? 1 : 0);
}

tpfsdp_status Rank::run(const tpfsdp_backend_op &op) {
  const tpfsdp_status status = submit(op);
  return status == TPFSDP_OK ? complete(last) : status;
}

tpfsdp_status Rank::wait_read(int64_t sequence, bool may_wait) {
  return table().wait_read(call.handle(), comm, sequence, may_wait ? 1 : 0);
}

void Rank::fail(tpfsdp_status status, const char *text) {
  table().post_failure(comm, status, text);
  table().give_up(comm);
}

tpfsdp_status Rank::reset(int64_t windows) {
  for (;;) {
    table().post_reset(comm, windows);
    tpfsdp_bool all = 0;
    const tpfsdp_status status = table().wait_reset(call.handle(), comm, 1, &all);
    if (status != TPFSDP_OK || all != 0) return status;
  }
}

tpfsdp_status Rank::window() {
  table().publish_step(comm);
  return table().wait_step(call.handle(), comm, 1);
}

tpfsdp_status Rank::barrier() { return run(barrier_op()); }

tpfsdp_status Rank::make_common(int64_t floats, CommonMemory *out, bool may_wait) {
  void *data = nullptr;
  const void *readable = nullptr;
  const tpfsdp_status status =
      table().region_create_common(call.handle(), comm, floats * 4, may_wait ? 1 : 0, &data, &readable, &out->region);
  if (status != TPFSDP_OK) return status;
  out->data = static_cast<float *>(data);
  out->readable = static_cast<const float *>(readable);
  return status;
}

tpfsdp_status Rank::wait_released(const CommonMemory &memory, bool may_wait) {
  return table().region_wait_released(call.handle(), comm, memory.region, may_wait ? 1 : 0);
}

void run_ranks(int world, const std::function<void(Rank &)> &body, const Options &options) {
  Store store;
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      Rank rank(r, world, &store);
      if (rank.join(options) == TPFSDP_OK) body(rank);
    });
  for (std::thread &thread : threads) thread.join();
}

namespace {

Op blank(tpfsdp_backend_kind kind, int64_t count) {
  Op result;
  result.op.struct_size = sizeof result.op;
  result.op.kind = kind;
  result.op.dtype = TPFSDP_DTYPE_F32;
  result.op.source = -1;
  result.op.unit = -1;
  result.op.element_count = count;
  return result;
}

void reduces(Op *op) {
  op->op.op = TPFSDP_REDUCE_SUM;
  op->op.reduce_dtype = TPFSDP_DTYPE_F32;
  op->op.output_dtype = TPFSDP_DTYPE_F32;
}

void vector_of(Op *op, const std::vector<int64_t> &counts) {
  op->op.counts_length = static_cast<int64_t>(counts.size());
  for (const int64_t count : counts) op->op.counts_hash = op->op.counts_hash * 31 + static_cast<uint64_t>(count) + 1;
}

}  // namespace

Op all_gather(const Rank &, const float *input, float *output, const std::vector<int64_t> &counts,
              tpfsdp_backend_region *region) {
  Op op = blank(TPFSDP_BACKEND_KIND_ALL_GATHER, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  op.op.input = input;
  op.op.input_region = region;
  vector_of(&op, counts);
  int64_t at = 0;
  for (size_t r = 0; r < counts.size(); at += counts[r++])
    op.pieces.push_back({static_cast<int32_t>(r), 0, 0, counts[r], output + at});
  return op;
}

Op reduce_scatter(const Rank &rank, const float *input, float *output, const std::vector<int64_t> &counts,
                  tpfsdp_backend_region *region) {
  Op op = blank(TPFSDP_BACKEND_KIND_REDUCE_SCATTER, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  op.op.input = input;
  op.op.input_region = region;
  reduces(&op);
  vector_of(&op, counts);
  const int64_t at = std::accumulate(counts.begin(), counts.begin() + rank.rank, int64_t{0});
  op.pieces.push_back({0, 0, at, counts[static_cast<size_t>(rank.rank)], output});
  return op;
}

Op all_reduce(const float *input, float *output, int64_t count, tpfsdp_backend_region *region) {
  Op op = blank(TPFSDP_BACKEND_KIND_ALL_REDUCE, count);
  op.op.input = input;
  op.op.output = output;
  op.op.input_region = region;
  reduces(&op);
  return op;
}

Op broadcast(int source, const float *input, float *output, int64_t count, tpfsdp_backend_region *region) {
  Op op = blank(TPFSDP_BACKEND_KIND_BROADCAST, count);
  op.op.input = input;
  op.op.output = output;
  op.op.input_region = region;
  op.op.source = source;
  return op;
}

Op barrier_op() { return blank(TPFSDP_BACKEND_KIND_BARRIER, 0); }

Op gather_in(const CommonMemory &memory, tpfsdp_backend_kind kind, int64_t count, int32_t unit) {
  Op op = blank(kind, count);
  op.op.input_region = memory.region;
  op.op.unit = unit;
  return op;
}

}  // namespace host_test
