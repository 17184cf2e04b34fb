// SPDX-License-Identifier: Apache-2.0
// Every collective, dtype, world, size, in place or not, waited for or not, and how the group ends afterwards: the
// right values bit for bit, the exact counts, the right end.
#include "conformance/pairwise.hpp"
#include "conformance/ranks.hpp"
#include "conformance/reference.hpp"
#include "support/shared.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

using ranks::Error;
using ranks::Rank;
using Bytes = std::vector<uint8_t>;

enum Op { kAllGather, kAllGatherUnequal, kReduceScatter, kAllReduce, kBroadcast };
enum End { kShutdown, kAbort, kAbsent, kEnds };

struct Dtype {
  tpfsdp_dtype dtype;
  bool is_reducible;
};
const std::vector<Dtype> kDtypes = {
    {TPFSDP_DTYPE_F64, true},        {TPFSDP_DTYPE_F32, true},      {TPFSDP_DTYPE_F16, true},
    {TPFSDP_DTYPE_BF16, true},       {TPFSDP_DTYPE_I8, true},       {TPFSDP_DTYPE_I16, true},
    {TPFSDP_DTYPE_I32, true},        {TPFSDP_DTYPE_I64, true},      {TPFSDP_DTYPE_U8, true},
    {TPFSDP_DTYPE_U16, true},        {TPFSDP_DTYPE_U32, true},      {TPFSDP_DTYPE_U64, true},
    {TPFSDP_DTYPE_BOOL, false},      {TPFSDP_DTYPE_C64, false},     {TPFSDP_DTYPE_C128, false},
    {TPFSDP_DTYPE_F8_E4M3FN, false}, {TPFSDP_DTYPE_F8_E5M2, false}, {TPFSDP_DTYPE_F4_E2M1FN, false}};
// What is done: a collective, and for reductions which.
const std::vector<std::pair<Op, tpfsdp_reduce_op>> kDone = {{kAllGather, 0},
                                                            {kAllGatherUnequal, 0},
                                                            {kBroadcast, 0},
                                                            {kReduceScatter, TPFSDP_REDUCE_SUM},
                                                            {kReduceScatter, TPFSDP_REDUCE_AVG},
                                                            {kReduceScatter, TPFSDP_REDUCE_MIN},
                                                            {kReduceScatter, TPFSDP_REDUCE_MAX},
                                                            {kAllReduce, TPFSDP_REDUCE_SUM},
                                                            {kAllReduce, TPFSDP_REDUCE_AVG},
                                                            {kAllReduce, TPFSDP_REDUCE_MIN},
                                                            {kAllReduce, TPFSDP_REDUCE_MAX}};
const std::vector<int32_t> kWorlds = {1, 2, 3, 4, 5, 7};
const std::vector<int64_t> kSizes = {0, 1, 1031, 300007};

struct Case {
  Op op;
  Dtype dtype;
  tpfsdp_reduce_op reduction;
  int32_t world;
  int64_t size;
  bool in_place, async, host_threads;
  End end;

  bool reduces() const { return op == kReduceScatter || op == kAllReduce; }
  int bits() const { return reference::bits_of(dtype.dtype); }
  int64_t bytes(int64_t count) const { return (count * bits() + 7) / 8; }
  std::string text() const {
    static const char *const kNames[] = {"all_gather", "all_gather unequal", "reduce_scatter", "all_reduce",
                                         "broadcast"};
    return std::string(kNames[op]) + " of " + std::to_string(size) + " " + tpfsdp_tensor_dtype_name(dtype.dtype) +
           ", reduction " + std::to_string(reduction) + ", world " + std::to_string(world) +
           (in_place ? ", in place" : "") + (async ? ", async" : "") + (host_threads ? ", host threads" : "") +
           ", end " + std::to_string(end);
  }
};

// Elements of rank `rank`'s part.
int64_t part_of(const Case &c, int32_t rank) {
  if (c.op != kAllGatherUnequal) return c.size;
  return rank == 1 ? 0 : c.size + 2 * rank * (c.size > 0 ? 1 : 0);
}

int64_t input_count(const Case &c, int32_t rank) {
  return c.op == kReduceScatter ? c.size * c.world : part_of(c, rank);
}

// The bytes that rank `rank` gives: any bits at all, except that a reduction gets no zero of either sign, since which
// zero a minimum has is nobody's promise.
Bytes input_of(const Case &c, int32_t rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 977 + static_cast<uint64_t>(c.size) * 31 + c.dtype.dtype);
  const int64_t count = input_count(c, rank);
  Bytes bytes(static_cast<size_t>(c.bytes(count)));
  for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(random());
  if (!c.reduces() || !c.dtype.is_reducible) return bytes;
  const size_t width = static_cast<size_t>(c.bits()) / 8;
  for (size_t i = 0; i < bytes.size(); i += width) {
    bytes[i] |= 1;
    // Most floats near one, so that sums round; the rest are what chance gives: NaN, infinities, huge, subnormal.
    if (random() % 16 == 0) continue;
    if (c.dtype.dtype == TPFSDP_DTYPE_F32) bytes[i + 3] = (bytes[i + 3] & 0x80) | 0x3f;
    if (c.dtype.dtype == TPFSDP_DTYPE_BF16) bytes[i + 1] = (bytes[i + 1] & 0x80) | 0x3f;
    if (c.dtype.dtype == TPFSDP_DTYPE_F64) bytes[i + 7] = (bytes[i + 7] & 0x80) | 0x3f;
    if (c.dtype.dtype == TPFSDP_DTYPE_F16) bytes[i + 1] = (bytes[i + 1] & 0x83) | 0x38;
  }
  return bytes;
}

// UNSUPPORTED is what some cases must give.
tpfsdp_status expected_status(const Case &c) {
  if (c.reduces() && !c.dtype.is_reducible) return TPFSDP_ERR_UNSUPPORTED;
  if (c.op == kAllGather && c.size * c.bits() % 8 != 0) return TPFSDP_ERR_UNSUPPORTED;
  if (c.op == kAllGatherUnequal) {
    for (int32_t rank = 0; rank < c.world; ++rank)
      if (part_of(c, rank) * c.bits() % 8 != 0) return TPFSDP_ERR_UNSUPPORTED;
  }
  return TPFSDP_OK;
}

int64_t expected_wire_bytes(const Case &c, int32_t rank) {
  if (c.world == 1) return 0;
  const int64_t own = c.bytes(part_of(c, rank));
  switch (c.op) {
    case kReduceScatter: return own * (c.world - 1);
    case kBroadcast: return rank == c.world - 1 ? 0 : own;
    case kAllReduce: {
      if (own <= 64) return own * (c.world - 1);
      const int64_t share = c.bytes(c.size * (rank + 1) / c.world - c.size * rank / c.world);
      return share * (c.world - 1) + own - share;
    }
    default: {
      int64_t all = 0;
      for (int32_t peer = 0; peer < c.world; ++peer) all += c.bytes(part_of(c, peer));
      return all - own;
    }
  }
}

void expect_counts(const Case &c, const Rank &me) {
  const tpfsdp_counters counted = ranks::counters(me.context, true);
  const int64_t one = c.world > 1 ? 1 : 0;
  EXPECT_EQ(counted.all_gathers, c.op <= kAllGatherUnequal ? one : 0) << c.text();
  EXPECT_EQ(counted.reduce_scatters, c.op == kReduceScatter ? one : 0) << c.text();
  EXPECT_EQ(counted.all_reduces, c.op == kAllReduce ? one : 0) << c.text();
  EXPECT_EQ(counted.other_collectives, c.op == kBroadcast ? one : 0) << c.text();
  EXPECT_EQ(counted.wire_bytes, expected_wire_bytes(c, me.rank)) << c.text() << " rank " << me.rank;
  // Threads read each other's memory; processes only what is copied to where they can, unless it travels with the call.
  const bool gives = c.world > 1 && (c.op != kBroadcast || me.rank == c.world - 1);
  const int64_t given = gives ? c.bytes(input_count(c, me.rank)) : 0;
  const int64_t copied = ranks_are_processes() && given > 64 ? given : 0;
  EXPECT_EQ(counted.copies, copied > 0 ? 1 : 0) << c.text() << " rank " << me.rank;
  EXPECT_EQ(counted.copied_bytes, copied) << c.text() << " rank " << me.rank;
}

// One run of one rank: memory, call, comparison.
class Execution {
 public:
  Execution(const Case &c, const Rank &me, const std::vector<Bytes> &inputs) : case_(c), me_(me), inputs_(inputs) {
    counts_ = {input_count(c, me.rank), output_count()};
    output_.assign(static_cast<size_t>(c.bytes(counts_[1])), 0xa5);
    input_ = inputs_[static_cast<size_t>(me.rank)];
    if (c.op == kBroadcast && me.rank == source()) output_ = input_;
    if (c.in_place && (c.op == kAllGather || c.op == kAllGatherUnequal)) {
      // Parts that do not fill their last byte are refused, but must have somewhere to lie before.
      const auto own = static_cast<size_t>(own_offset());
      output_.resize(std::max(output_.size(), own + input_.size()), 0xa5);
      std::copy(input_.begin(), input_.end(), output_.begin() + static_cast<std::ptrdiff_t>(own));
    } else if (c.in_place && c.op == kAllReduce) {
      output_ = input_;
    }
  }

  tpfsdp_status run(tpfsdp_error **error) {
    tpfsdp_work *work = nullptr;
    tpfsdp_status status = start(case_.async ? &work : nullptr, error);
    if (status == TPFSDP_OK && case_.async) {
      EXPECT_NE(work, nullptr);
      status = tpfsdp_work_wait(work, nullptr, error);
      EXPECT_EQ(tpfsdp_work_test(work, nullptr), status);
      tpfsdp_handle_release(work);
    }
    return status;
  }

  void expect_result() const {
    const uint8_t *got = output_data();
    if (!case_.reduces()) {
      Bytes expected;
      if (case_.op == kBroadcast) expected = inputs_[static_cast<size_t>(source())];
      for (const Bytes &input : inputs_)
        if (case_.op != kBroadcast) expected.insert(expected.end(), input.begin(), input.end());
      ASSERT_EQ(Bytes(got, got + expected.size()), expected) << case_.text() << " rank " << me_.rank;
      return;
    }
    const int64_t first = case_.op == kReduceScatter ? case_.size * me_.rank : 0;
    // Of large results each rank looks at other elements, and all at the tail.
    const int64_t step = counts_[1] > 10000 ? 29 : 1;
    for (int64_t i = me_.rank % step; i < counts_[1]; i += i + 100 < counts_[1] ? step : 1) {
      ASSERT_TRUE(reference::is_reduction(case_.reduction, case_.dtype.dtype, inputs_, first + i, got + case_.bytes(i)))
          << case_.text() << " rank " << me_.rank << " element " << i;
    }
  }

 private:
  int32_t source() const { return case_.world - 1; }
  int64_t output_count() const {
    if (case_.op != kAllGather && case_.op != kAllGatherUnequal) return case_.size;
    int64_t all = 0;
    for (int32_t rank = 0; rank < case_.world; ++rank) all += part_of(case_, rank);
    return all;
  }
  int64_t own_offset() const {
    int64_t before = 0;
    for (int32_t rank = 0; rank < me_.rank; ++rank) before += case_.bytes(part_of(case_, rank));
    return before;
  }
  bool output_in_input() const { return case_.in_place && case_.op == kReduceScatter; }
  const uint8_t *output_data() const {
    return output_in_input() ? input_.data() + case_.bytes(case_.size) * me_.rank : output_.data();
  }

  tpfsdp_status start(tpfsdp_work **work, tpfsdp_error **error) {
    const bool input_in_output = case_.in_place && !output_in_input();
    const uint8_t *in = input_.data();
    if (input_in_output) in = output_.data() + (case_.op <= kAllGatherUnequal ? own_offset() : 0);
    const tpfsdp_view input = ranks::view(in, case_.dtype.dtype, counts_[0]);
    const tpfsdp_view output = ranks::view(output_data(), case_.dtype.dtype, counts_[1]);
    std::vector<int64_t> parts;
    for (int32_t rank = 0; rank < case_.world; ++rank) parts.push_back(part_of(case_, rank));
    switch (case_.op) {
      case kAllGather: return tpfsdp_group_all_gather(me_.group, &input, &output, nullptr, 0, nullptr, work, error);
      case kAllGatherUnequal:
        return tpfsdp_group_all_gather(me_.group, &input, &output, parts.data(), case_.world, nullptr, work, error);
      case kReduceScatter:
        return tpfsdp_group_reduce_scatter(me_.group, &input, &output, case_.reduction, nullptr, work, error);
      case kAllReduce:
        return tpfsdp_group_all_reduce(me_.group, &input, &output, case_.reduction, nullptr, work, error);
      default: return tpfsdp_group_broadcast(me_.group, &output, source(), nullptr, work, error);
    }
  }

  const Case &case_;
  const Rank &me_;
  const std::vector<Bytes> &inputs_;
  Bytes input_, output_;
  std::vector<int64_t> counts_;
};

// How the group ends, and that it is the end.
tpfsdp_status end_group(const Case &c, const Rank &me) {
  if (c.world == 1 || c.end == kShutdown) return TPFSDP_OK;
  Error error;
  if (c.end == kAbort) {
    if (me.rank == 0) tpfsdp_group_abort(me.group, "test ends it");
    EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_ABORTED) << c.text();
    EXPECT_NE(error.text().find("test ends it"), std::string::npos) << error.text();
    EXPECT_EQ(tpfsdp_group_check(me.group, nullptr), TPFSDP_ERR_ABORTED);
    return TPFSDP_ERR_ABORTED;
  }
  // The last rank comes when the others have given it up.
  static const auto wait_for_failure = [](tpfsdp_group *group) {
    while (tpfsdp_group_check(group, nullptr) == TPFSDP_OK) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  if (me.rank == c.world - 1) wait_for_failure(me.group);
  EXPECT_EQ(tpfsdp_group_barrier(me.group, &error), TPFSDP_ERR_TIMEOUT) << c.text();
  EXPECT_NE(error.text().find("rank " + std::to_string(c.world - 1) + " (last posted"), std::string::npos)
      << error.text();
  EXPECT_EQ(error.info().is_sticky, 1);
  return TPFSDP_ERR_TIMEOUT;
}

void run_case(const Case &c) {
  SCOPED_TRACE(c.text());
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.arrival_timeout_ms = c.end == kAbsent ? 200 : 60000;
  const shared::Shared<std::atomic<int>> ran(0);
  std::vector<Bytes> inputs;
  for (int32_t rank = 0; rank < c.world; ++rank) inputs.push_back(input_of(c, rank));
  // Ranks meet here and not in the group: making and comparing data takes longer than a short arrival clock allows.
  shared::Meeting meet(c.world);
  const tpfsdp_status expected = expected_status(c);
  const ranks::Body body = [&](const Rank &me) -> tpfsdp_status {
    Execution execution(c, me, inputs);
    ranks::counters(me.context, true);
    meet.arrive_and_wait();
    Error error;
    const tpfsdp_status status = execution.run(&error);
    EXPECT_EQ(status, expected) << c.text() << ": " << error.text();
    if (status == TPFSDP_OK) {
      expect_counts(c, me);
      execution.expect_result();
    } else {
      EXPECT_NE(error.text().find(tpfsdp_tensor_dtype_name(c.dtype.dtype)), std::string::npos) << error.text();
      EXPECT_EQ(ranks::counters(me.context, true).wire_bytes, 0);
    }
    ++*ran;
    meet.arrive_and_wait();
    return end_group(c, me);
  };
  const tpfsdp_status end =
      c.host_threads ? ranks::run_host(c.world, body, options) : ranks::run_library(c.world, body, options);
  EXPECT_EQ(*ran, c.world);
  const bool ends_well = c.world == 1 || c.end == kShutdown;
  EXPECT_EQ(end, ends_well ? TPFSDP_OK : c.end == kAbort ? TPFSDP_ERR_ABORTED : TPFSDP_ERR_TIMEOUT);
}

TEST(Collectives, MatrixOfOpDtypeWorldSizePlaceAndEnd) {
  const std::vector<int> sizes = {static_cast<int>(kDone.size()),
                                  static_cast<int>(kDtypes.size()),
                                  static_cast<int>(kWorlds.size()),
                                  static_cast<int>(kSizes.size()),
                                  2,
                                  2,
                                  2,
                                  kEnds};
  constexpr uint32_t kSeed = 20240607;
  const char *full = std::getenv("TPFSDP_TEST_SCALE");
  const uint32_t covers = full && std::string(full) == "full" ? 10 : 1;
  std::vector<pairwise::Row> rows;
  for (uint32_t seed = kSeed; seed < kSeed + covers; ++seed) {
    for (const pairwise::Row &row : pairwise::cover(sizes, seed)) rows.push_back(row);
  }
  std::printf("%zu cases, every pair %u times, seeds from %u\n", rows.size(), covers, kSeed);
  for (const pairwise::Row &row : rows) {
    Case c{kDone[static_cast<size_t>(row[0])].first,
           kDtypes[static_cast<size_t>(row[1])],
           kDone[static_cast<size_t>(row[0])].second,
           kWorlds[static_cast<size_t>(row[2])],
           kSizes[static_cast<size_t>(row[3])],
           row[4] == 1,
           row[5] == 1,
           row[6] == 1,
           static_cast<End>(row[7])};
    // The short clock of that end is for waiting, not for moving megabytes on a busy machine.
    if (c.end == kAbsent) c.size = std::min<int64_t>(c.size, 1031);
    run_case(c);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
