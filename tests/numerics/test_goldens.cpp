// SPDX-License-Identifier: Apache-2.0
// The toy models of tests/goldens, which ran through PyTorch's own fully_shard, run through ours: shapes, shards,
// losses, gradients, steps, and the order of events as whole strings.
#include "goldens/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using goldens::Golden;
using goldens::json;
using goldens::Outcome;
using testing::HasSubstr;

std::filesystem::path file_of(const std::string &name) {
  return std::filesystem::path(TPFSDP_TESTS_DIR) / "goldens" / (name + ".json");
}

std::vector<std::string> names(bool that_run) {
  std::vector<std::string> out;
  for (const auto &file : goldens::files_in(file_of("").parent_path())) {
    if (goldens::missing_features(goldens::load(file)).empty() == that_run) out.push_back(file.stem());
  }
  return out;
}

class FullyShard : public testing::TestWithParam<std::string> {};

TEST_P(FullyShard, RunsAsInPyTorch) {
  const Outcome outcome = goldens::run(goldens::load(file_of(GetParam())));
  EXPECT_EQ(outcome.kind, Outcome::Kind::kPass) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(Golden, FullyShard, testing::ValuesIn(names(true)),
                         [](const auto &name) { return name.param; });

// A file is left out for what its set-up says, not for what the runner did not understand.
TEST(Golden, FilesThatDoNotRunSayWhatTheyNeed) {
  for (const std::string &name : names(false)) {
    const json setup = goldens::load(file_of(name)).setup;
    ASSERT_TRUE(setup.contains("needs")) << name;
    EXPECT_THAT(goldens::missing_features(goldens::load(file_of(name))),
                testing::Each(testing::AnyOfArray(setup.at("needs").get<std::vector<std::string>>())))
        << name;
  }
}

// ---- A difference in any field is found ----

void expect_difference(const Golden &golden, const std::string &text) {
  const Outcome outcome = goldens::run(golden);
  EXPECT_EQ(outcome.kind, Outcome::Kind::kFail) << text;
  EXPECT_THAT(outcome.text, HasSubstr(text));
}

struct Change {
  const char *name, *pointer;
  json value;
  const char *text;
};
void PrintTo(const Change &change, std::ostream *out) { *out << change.name << change.pointer; }
class OneChange : public testing::TestWithParam<Change> {};

TEST_P(OneChange, IsFound) {
  const Change &change = GetParam();
  Golden golden = goldens::load(file_of(change.name));
  golden.data.at(json::json_pointer(change.pointer)) = change.value;
  expect_difference(golden, change.text);
}

INSTANTIATE_TEST_SUITE_P(
    Golden, OneChange,
    testing::Values(Change{"raf_true_w2", "/log_it0/2", "AG f32 in=10 out=21 ws=2", "log_it0 line 2"},
                    Change{"raf_true_w2", "/local_shapes/0/0", 4, "local_shapes"},
                    Change{"raf_true_w2", "/per_rank_output0/1/3", 0.63450, "rank 1: output0[3]"},
                    Change{"raf_true_w2", "/per_rank_losses/0/1", 0.7, "rank 0: losses[1]"},
                    Change{"raf_true_w2", "/per_rank_grad_shards_it0/1/2", nullptr, "rank 1: grad_shards_it0[2]"},
                    Change{"raf_true_w2", "/grad_dtype/0", "bf16", "grad_dtype"},
                    Change{"raf_true_w2", "/output_dtype", "bf16", "output_dtype"},
                    Change{"raf_true_w2", "/params_after_sgd/b1.lin.bias/0", 9, "params_after_sgd[b1.lin.bias][0]"},
                    Change{"mlp2_even_w2", "/params_after_adamw/l1.bias/3", 9, "adamw, rank"},
                    Change{"tied_two_groups_error_w2", "/error/type", "NotImplementedError", "the error is"}),
    [](const auto &change) { return "Change" + std::to_string(change.index); });

TEST(Golden, LogsThatEndEarlyOrLateAreFound) {
  Golden golden = goldens::load(file_of("raf_true_w2"));
  golden.data["log_it0"].push_back("P b2 IDLE");
  expect_difference(golden, "\"(end)\", want \"P b2 IDLE\"");
  for (int i = 0; i < 2; ++i) golden.data["log_it0"].erase(golden.data["log_it0"].size() - 1);
  expect_difference(golden, "want \"(end)\"");
}

TEST(Golden, AnotherSecondIterationIsFound) {
  Golden golden = goldens::load(file_of("raf_true_w2"));
  golden.data["log_it1"] = golden.data["log_it0"];
  expect_difference(golden, "log_it1 line 0");
}

TEST(Golden, AnErrorThatDoesNotComeIsFound) {
  Golden golden = goldens::load(file_of("raf_true_w2"));
  golden.data["error"] = {{"when", "run"}, {"type", "RuntimeError"}, {"text", "no"}};
  expect_difference(golden, "nothing failed");
}

TEST(Golden, WhatTheRunnerDoesNotKnowIsNotRun) {
  Golden golden = goldens::load(file_of("raf_true_w2"));
  const auto reason = [&] { return goldens::run(golden).text; };
  golden.setup["colour"] = 1;
  EXPECT_EQ(reason(), "needs the field colour");
  golden.setup = {{"needs", {"colour"}}};
  EXPECT_EQ(reason(), "needs colour");
  golden.setup = {{"after_shard", {{{"method", "set_colour"}}}}};
  EXPECT_EQ(reason(), "needs the call set_colour");
  golden.setup = json::object();
  golden.data["params"][0]["dtype"] = "bf16";
  EXPECT_EQ(reason(), "needs the dtype bf16");
  golden = goldens::load(file_of("raf_true_w2"));
  golden.data["params"][0]["shape"] = {16};
  EXPECT_EQ(reason(), "needs a layer with inp.weight");
  golden = goldens::load(file_of("raf_true_w2"));
  golden.data["norms"] = {1};
  EXPECT_EQ(reason(), "needs the result norms");
}

}  // namespace
