// SPDX-License-Identifier: Apache-2.0
// Launch variables, and what join makes of them.
#include "comm/context.hpp"
#include "comm/launch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tpfsdp {
namespace {

const char *const kNames[] = {
    "RANK",      "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
    "PMIX_RANK", "PMIX_SIZE",  "SLURM_PROCID",         "SLURM_NTASKS"};

class Launching : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char *name : kNames) unsetenv(name);
  }
  static void set(const char *rank_name, const char *rank, const char *size_name, const char *size) {
    setenv(rank_name, rank, 1);
    setenv(size_name, size, 1);
  }
};

struct Refusal {
  Status status = TPFSDP_OK;
  std::string text;
};
template <class Body>
Refusal refusal(Body &&body) {
  try {
    body();
  } catch (const Failure &failure) {
    return {failure.status(), failure.what()};
  }
  return {};
}
bool contains(const Refusal &refusal, const std::string &part) { return refusal.text.find(part) != std::string::npos; }

JoinOptions with(int32_t rank, int32_t world_size, std::string store) {
  JoinOptions options;
  options.rank.rank = rank;
  options.world_size = world_size;
  options.store = std::move(store);
  return options;
}

TEST_F(Launching, NothingIsSet) {
  EXPECT_FALSE(read_launch());
  setenv("RANK", "", 1);  // empty counts as not set
  EXPECT_FALSE(read_launch());
}

TEST_F(Launching, EveryLauncherIsKnown) {
  for (size_t i = 0; i < std::size(kNames); i += 2) {
    set(kNames[i], "3", kNames[i + 1], "8");
    const auto launch = read_launch();
    ASSERT_TRUE(launch) << kNames[i];
    EXPECT_EQ(launch->rank, 3);
    EXPECT_EQ(launch->world_size, 8);
    EXPECT_EQ(launch->source, std::string(kNames[i]) + " and " + kNames[i + 1]);
    TearDown();
  }
}

TEST_F(Launching, UsersVariablesRule) {
  set("SLURM_PROCID", "1", "SLURM_NTASKS", "4");
  set("RANK", "0", "WORLD_SIZE", "1");
  EXPECT_EQ(read_launch()->world_size, 1);
}

TEST_F(Launching, NonsenseIsRefusedByName) {
  for (const char *bad : {"x", "-1", "1x", "99999999999"}) {
    set("RANK", bad, "WORLD_SIZE", "4");
    const Refusal refused = refusal([] { read_launch(); });
    EXPECT_EQ(refused.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(refused, std::string("RANK is \"") + bad)) << refused.text;
  }
  set("RANK", "4", "WORLD_SIZE", "4");
  EXPECT_EQ(refusal([] { read_launch(); }).status, TPFSDP_ERR_INVALID_ARGUMENT);
  TearDown();
  setenv("WORLD_SIZE", "4", 1);
  EXPECT_TRUE(contains(refusal([] { read_launch(); }), "RANK is not set"));
}

TEST_F(Launching, WorldOfOneWhereNothingElseIsSaid) {
  const Ref<Context> context = join({});
  EXPECT_EQ(context->rank().describe(), "rank 0 of 1");
  EXPECT_EQ(context->group().comm(), nullptr);
  set("RANK", "0", "WORLD_SIZE", "1");
  EXPECT_EQ(join({})->rank().world_size(), 1);
  EXPECT_EQ(join(with(0, 1, "env"))->rank().world_size(), 1);
}

TEST_F(Launching, WorldOfOneInALaunchOfSeveralIsState) {
  set("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4");
  const Refusal refused = refusal([] { join(with(0, 1, "")); });
  EXPECT_EQ(refused.status, TPFSDP_ERR_STATE);
  EXPECT_TRUE(contains(refused, "launched as rank 1 of 4")) << refused.text;
  EXPECT_TRUE(contains(refused, "but no group was joined")) << refused.text;
  EXPECT_TRUE(contains(refused, "local:NAME")) << refused.text;
  // A store of its own is a join of its own.
  EXPECT_EQ(join(with(0, 1, "local:own"))->rank().world_size(), 1);
}

TEST_F(Launching, RanksThatCannotMeetAreTold) {
  set("RANK", "1", "WORLD_SIZE", "4");
  for (const JoinOptions &options : {JoinOptions{}, with(0, 0, "env"), with(1, 4, "env")}) {
    const Refusal refused = refusal([&] { join(options); });
    EXPECT_EQ(refused.status, TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(refused, "launched as rank 1 of 4 (RANK and WORLD_SIZE)")) << refused.text;
    EXPECT_TRUE(contains(refused, "set TPFSDP_STORE=file:DIR")) << refused.text;
  }
  EXPECT_TRUE(contains(refusal([] { join(with(2, 4, "env")); }), "RANK and WORLD_SIZE say rank 1 of 4"));
}

TEST_F(Launching, ProcessesNeedABackendForProcesses) {
  set("PMI_RANK", "2", "PMI_SIZE", "3");
  JoinOptions options;
  options.backend = "threads";
  const Refusal refused = refusal([&] { join(options); });
  EXPECT_EQ(refused.status, TPFSDP_ERR_BACKEND_UNAVAILABLE);
  EXPECT_TRUE(contains(refused, "threads (built in): refused, it cannot join ranks that are processes"))
      << refused.text;
}

TEST_F(Launching, BadOptionsAreRefused) {
  EXPECT_TRUE(contains(refusal([] { join(with(-1, 2, "local:a")); }), "rank is -1"));
  EXPECT_TRUE(contains(refusal([] { join(with(2, 2, "local:a")); }), "rank is 2, but world_size is 2"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, -1, "local:a")); }), "world_size is -1"));
  EXPECT_TRUE(contains(refusal([] { join(with(1, 0, "")); }), "world_size is not given"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, 2, "")); }), "no store says where the ranks meet"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, 2, "env")); }), "no launch variable is set"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, 0, "local:a")); }), "world_size is not given"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, 2, "local:")); }), "local:NAME"));
  EXPECT_TRUE(contains(refusal([] { join(with(0, 2, "udp:host:1")); }), "store is \"udp:host:1\""));
  JoinOptions options;
  options.rank.arrival_timeout_ms = -2;
  EXPECT_TRUE(contains(refusal([&] { join(options); }), "arrival_timeout_ms is -2"));
  options = {};
  options.rank.event_capacity = -5;
  EXPECT_TRUE(contains(refusal([&] { join(options); }), "event_capacity is -5"));
  options = {};
  options.backend = "smoke";
  const Refusal refused = refusal([&] { join(options); });
  EXPECT_EQ(refused.status, TPFSDP_ERR_BACKEND_UNAVAILABLE);
  EXPECT_TRUE(contains(refused, "no backend \"smoke\"")) << refused.text;
  EXPECT_TRUE(contains(refused, "threads (built in): refused, \"smoke\" was asked for")) << refused.text;
}

}  // namespace
}  // namespace tpfsdp
