// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_args.hpp"

#include "base/hash.hpp"

#include <numeric>

namespace tpfsdp {
namespace {

const char *name_of_op(tpfsdp_reduce_op op) {
  switch (op) {
    case TPFSDP_REDUCE_SUM: return "SUM";
    case TPFSDP_REDUCE_AVG: return "AVG";
    case TPFSDP_REDUCE_MIN: return "MIN";
    case TPFSDP_REDUCE_MAX: return "MAX";
    default: return nullptr;
  }
}

int64_t check_memory(const tpfsdp_view &view, const char *what, bool is_output) {
  check_view(view, what);
  if (view.device_type != TPFSDP_DEVICE_CPU && view.device_type != TPFSDP_DEVICE_DEFAULT)
    fail(TPFSDP_ERR_UNSUPPORTED, what, " is on device type ", view.device_type, "; this backend moves CPU memory only");
  if (is_output && view.read_only) fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " is read-only");
  return element_count(shape_of(view));
}

void check_same_dtype(const tpfsdp_view &input, const tpfsdp_view &output) {
  if (input.dtype != output.dtype)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "input is ", dtype_name(input.dtype), ", output is ", dtype_name(output.dtype),
         "; both are of one dtype");
}

void check_reduction(tpfsdp_dtype dtype, tpfsdp_reduce_op op) {
  if (!name_of_op(op)) fail(TPFSDP_ERR_INVALID_ARGUMENT, "op is ", op, "; it is SUM, AVG, MIN or MAX");
  if (!is_reducible(dtype))
    fail(TPFSDP_ERR_UNSUPPORTED, dtype_name(dtype), " cannot be reduced by ", name_of_op(op),
         "; f64, f32, f16, bf16 and integers of 8 to 64 bits can");
}

// `input` may lie exactly at `place`, or apart from output altogether.
void check_overlap(const tpfsdp_view &input, const tpfsdp_view &output, const char *in_place_rule, bool in_place) {
  if (input.size_bytes == 0 || output.size_bytes == 0 || in_place) return;
  const auto *in = static_cast<const std::byte *>(input.data);
  const auto *out = static_cast<const std::byte *>(output.data);
  if (in + input.size_bytes <= out || out + output.size_bytes <= in) return;
  fail(TPFSDP_ERR_INVALID_ARGUMENT, "input and output overlap; ", in_place_rule);
}

const std::byte *at(const tpfsdp_view &view, int64_t offset_bytes) {
  return static_cast<const std::byte *>(view.data) + offset_bytes;
}

// Types smaller than a byte move as bytes; what ranks must agree on then is in the hash.
void finish_plan(tpfsdp_dtype dtype, const std::vector<int64_t> &counts, GatherPlan *plan) {
  plan->counts_hash = hash_bytes(counts.data(), counts.size() * sizeof(int64_t), static_cast<uint64_t>(dtype));
  plan->dtype = dtype_bits(dtype) % 8 == 0 ? dtype : TPFSDP_DTYPE_U8;
}

}  // namespace

GatherPlan plan_all_gather(const Group &group, const tpfsdp_view &input, const tpfsdp_view &output,
                           const std::vector<int64_t> &counts) {
  const int64_t own = check_memory(input, "input", false);
  const int64_t total = check_memory(output, "output", true);
  check_same_dtype(input, output);
  const auto world = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank());
  std::vector<int64_t> parts = counts;
  if (parts.empty()) parts.assign(world, own);
  if (parts.size() != world)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "counts has ", parts.size(), " entries, group \"", group.name(), "\" has ", world,
         " ranks");
  for (size_t i = 0; i < world; ++i) {
    if (parts[i] < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "counts[", i, "] is ", parts[i]);
  }
  if (parts[me] != own)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "input has ", own, " elements, counts[", me, "] is ", parts[me]);
  int64_t sum = 0;
  for (const int64_t part : parts) {
    if (__builtin_add_overflow(sum, part, &sum)) fail(TPFSDP_ERR_INVALID_ARGUMENT, "the sum of counts does not fit");
  }
  if (sum != total)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "output has ", total, " elements, the parts of ", world, " ranks have ", sum);

  GatherPlan plan;
  finish_plan(input.dtype, parts, &plan);
  const int64_t bits = dtype_bits(input.dtype);
  int64_t offset_bytes = 0;
  for (size_t i = 0; i < world; ++i) {
    if (parts[i] * bits % 8 != 0)
      fail(TPFSDP_ERR_UNSUPPORTED, "the part of rank ", i, ", ", parts[i], " elements of ", dtype_name(input.dtype),
           ", does not end at a whole byte");
    const int64_t part_bytes = dtype_bytes(input.dtype, parts[i]);
    const int64_t moved = plan.dtype == input.dtype ? parts[i] : part_bytes;
    plan.element_count += moved;
    if (i == me)
      check_overlap(input, output, "input may lie in its own place in output, or apart from it",
                    input.data == at(output, offset_bytes));
    if (moved > 0)
      plan.pieces.push_back(
          {static_cast<int32_t>(i), 0, 0, moved, static_cast<std::byte *>(output.data) + offset_bytes});
    offset_bytes += part_bytes;
  }
  return plan;
}

GatherPlan plan_broadcast(const Group &group, const tpfsdp_view &data, int32_t source) {
  const int64_t count = check_memory(data, "data", source != group.rank());
  if (source < 0 || source >= group.size())
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "source is ", source, "; group \"", group.name(), "\" has ranks 0 to ",
         group.size() - 1);
  GatherPlan plan;
  finish_plan(data.dtype, {count}, &plan);
  plan.element_count = plan.dtype == data.dtype ? count : data.size_bytes;
  return plan;
}

int64_t check_reduce_scatter(const Group &group, const tpfsdp_view &input, const tpfsdp_view &output,
                             tpfsdp_reduce_op op) {
  const int64_t total = check_memory(input, "input", false);
  const int64_t part = check_memory(output, "output", true);
  check_same_dtype(input, output);
  check_reduction(input.dtype, op);
  if (total % group.size() != 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "input has ", total, " elements, which ", group.size(),
         " ranks cannot share equally");
  if (total / group.size() != part)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "output has ", part, " elements; the part of one of ", group.size(),
         " ranks of an input of ", total, " is ", total / group.size());
  check_overlap(input, output, "output may be this rank's own part of input, or apart from it",
                output.data == at(input, output.size_bytes * group.rank()));
  return part;
}

int64_t check_all_reduce(const Group &, const tpfsdp_view &input, const tpfsdp_view &output, tpfsdp_reduce_op op) {
  const int64_t count = check_memory(input, "input", false);
  const int64_t out_count = check_memory(output, "output", true);
  check_same_dtype(input, output);
  check_reduction(input.dtype, op);
  if (count != out_count) fail(TPFSDP_ERR_INVALID_ARGUMENT, "input has ", count, " elements, output has ", out_count);
  check_overlap(input, output, "output may be input itself, or apart from it", input.data == output.data);
  return count;
}

int64_t all_reduce_wire_bytes(const Group &group, const tpfsdp_view &input) {
  const int64_t peers = group.size() - 1;
  constexpr int64_t kInlineBytes = 64;
  if (input.size_bytes <= kInlineBytes) return peers * input.size_bytes;
  const int64_t count = element_count(shape_of(input));
  const int64_t rank = group.rank(), world = group.size();
  const int64_t slice = count * (rank + 1) / world - count * rank / world;
  const int64_t slice_bytes = dtype_bytes(input.dtype, slice);
  return peers * slice_bytes + input.size_bytes - slice_bytes;
}

}  // namespace tpfsdp
