// SPDX-License-Identifier: Apache-2.0
// Ranks that run different programs all learn so, with every rank's values, before a byte is read.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "backends/host/comm.hpp"
#include "ranks.hpp"

namespace host_test {
namespace {

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

struct Field {
  const char *name;
  std::function<void(tpfsdp_backend_op *)> change;
};

TEST(Mismatch, EveryField) {
  const std::vector<Field> fields = {
      {"kind", [](tpfsdp_backend_op *op) { op->kind = TPFSDP_BACKEND_KIND_BARRIER; }},
      {"op", [](tpfsdp_backend_op *op) { op->op = TPFSDP_REDUCE_MAX; }},
      {"dtype", [](tpfsdp_backend_op *op) { op->dtype = TPFSDP_DTYPE_I32; }},
      {"reduce dtype", [](tpfsdp_backend_op *op) { op->reduce_dtype = TPFSDP_DTYPE_BF16; }},
      {"output dtype", [](tpfsdp_backend_op *op) { op->output_dtype = TPFSDP_DTYPE_I32; }},
      {"divisor", [](tpfsdp_backend_op *op) { op->divisor = 8; }},
      {"unit", [](tpfsdp_backend_op *op) { op->unit = 2; }},
      {"element count", [](tpfsdp_backend_op *op) { op->element_count = 25; }},
      {"counts hash", [](tpfsdp_backend_op *op) { op->counts_hash += 1; }},
      {"counts length", [](tpfsdp_backend_op *op) { op->counts_length += 1; }},
      {"source", [](tpfsdp_backend_op *op) { op->source = 1; }},
  };
  for (const Field &field : fields)
    for (int odd = 0; odd < 3; ++odd)
      for (const int64_t part : {int64_t{8}, int64_t{4}}) {
        SCOPED_TRACE(std::string(field.name) + " on rank " + std::to_string(odd));
        run_ranks(3, [&](Rank &rank) {
          std::vector<float> in(64, 1), out(64, -7);
          Op op = reduce_scatter(rank, in.data(), out.data(), {part, part, part});
          op.op.unit = 1;
          op.op.source = 0;
          if (rank.rank == odd) field.change(&op.op);
          EXPECT_EQ(rank.run(op), TPFSDP_ERR_MISMATCH) << rank.call.text;
          EXPECT_EQ(rank.call.at_fault, odd);
          EXPECT_EQ(rank.call.sequence, 1);
          EXPECT_TRUE(has(rank.call.text, "odd one out: rank " + std::to_string(odd))) << rank.call.text;
          EXPECT_TRUE(has(rank.call.text, "layer.0") && has(rank.call.text, "reduce-scatter")) << rank.call.text;
          EXPECT_EQ(out[0], -7.0F) << "a byte was moved";
          EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
          EXPECT_EQ(rank.barrier(), TPFSDP_OK) << rank.call.text;
        });
      }
}

TEST(Mismatch, Epoch) {
  for (int odd = 0; odd < 3; ++odd)
    for (const int64_t part : {int64_t{8}, int64_t{4}})
      run_ranks(3, [&](Rank &rank) {
        uint32_t &epoch = reinterpret_cast<tpfsdp::host::Comm *>(rank.comm)->epoch;
        std::vector<float> in(24, 1), out(24, -7);
        Op op = reduce_scatter(rank, in.data(), out.data(), {part, part, part});
        epoch = rank.rank == odd ? 8 : 7;
        EXPECT_EQ(rank.run(op), TPFSDP_ERR_MISMATCH) << rank.call.text;
        EXPECT_EQ(rank.call.at_fault, odd);
        EXPECT_TRUE(has(rank.call.text, "epoch 7") && has(rank.call.text, "epoch 8") &&
                    has(rank.call.text, "odd one out: rank " + std::to_string(odd)))
            << rank.call.text;
        EXPECT_EQ(out[0], -7.0F) << "a byte was moved";
        epoch = 7;
        EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
        EXPECT_EQ(rank.wait_read(rank.last), TPFSDP_OK) << rank.call.text;
      });
}

TEST(Mismatch, NoOddOneWithoutMajority) {
  run_ranks(2, [](Rank &rank) {
    Op op = barrier_op();
    op.op.unit = rank.rank;
    EXPECT_EQ(rank.run(op), TPFSDP_ERR_MISMATCH);
    EXPECT_EQ(rank.call.at_fault, -1);
    EXPECT_FALSE(has(rank.call.text, "odd one out")) << rank.call.text;
    EXPECT_TRUE(has(rank.call.text, "rank 0: barrier of unit 'embed'") &&
                has(rank.call.text, "rank 1: barrier of unit 'layer.0'"))
        << rank.call.text;
  });
}

TEST(Mismatch, ExtraOp) {
  run_ranks(3, [](Rank &rank) {
    float value = 1;
    Op op = all_reduce(&value, &value, 1);
    if (rank.rank == 1) {
      EXPECT_EQ(rank.barrier(), TPFSDP_ERR_MISMATCH) << rank.call.text;
    } else {
      EXPECT_EQ(rank.run(op), TPFSDP_ERR_MISMATCH) << rank.call.text;
    }
    EXPECT_EQ(rank.call.at_fault, 1);
    EXPECT_EQ(rank.reset(), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(rank.run(op), TPFSDP_OK) << rank.call.text;
    EXPECT_EQ(value, 3.0F);
  });
}

TEST(Mismatch, ExtraOpAtEndMeetsClose) {
  run_ranks(3, [](Rank &rank) {
    const tpfsdp_status status = rank.rank == 2 ? rank.barrier() : rank.shutdown();
    EXPECT_EQ(status, TPFSDP_ERR_ABORTED);
    EXPECT_TRUE(has(rank.call.text, "rank 0 shut down comm 'world'") && has(rank.call.text, "rank 2 was at barrier"))
        << rank.call.text;
    EXPECT_EQ(rank.submit(barrier_op()), TPFSDP_ERR_ABORTED) << "it sticks";
  });
}

}  // namespace
}  // namespace host_test
