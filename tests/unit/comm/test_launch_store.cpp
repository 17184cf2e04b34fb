// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a launch meet, and where they are on their machine: one launch one store, two launches two.
#include "base/error.hpp"
#include "comm/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

namespace tpfsdp {
namespace {

using Variables = std::map<std::string, std::string>;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

const char *const kNames[] = {"RANK",
                              "WORLD_SIZE",
                              "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE",
                              "TORCHELASTIC_RUN_ID",
                              "TORCHELASTIC_RESTART_COUNT",
                              "MASTER_ADDR",
                              "MASTER_PORT",
                              "OMPI_COMM_WORLD_RANK",
                              "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK",
                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "OMPI_MCA_ess_base_jobid",
                              "OMPI_MCA_orte_precondition_transports",
                              "PMI_RANK",
                              "PMI_SIZE",
                              "MPI_LOCALRANKID",
                              "MPI_LOCALNRANKS",
                              "I_MPI_HYDRA_UUID",
                              "PMIX_RANK",
                              "PMIX_SIZE",
                              "PMIX_NAMESPACE",
                              "PMIX_SERVER_URI2",
                              "SLURM_PROCID",
                              "SLURM_NTASKS",
                              "SLURM_LOCALID",
                              "SLURM_STEP_ID",
                              "SLURM_JOB_ID",
                              "SLURM_RESTART_COUNT",
                              "TPFSDP_STORE",
                              "XDG_RUNTIME_DIR"};

void set(const Variables &variables) {
  for (const char *name : kNames) unsetenv(name);
  for (const auto &[name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}

std::optional<Launch> read(const Variables &variables) {
  set(variables);
  return read_launch();
}

Variables with(Variables variables, const Variables &changes) {
  for (const auto &[name, value] : changes) variables[name] = value;
  return variables;
}

std::string refusal(const Variables &variables) {
  try {
    read(variables);
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_INVALID_ARGUMENT);
    return failure.what();
  }
  return {};
}

// Run as the program of rank_programs_below: says the store and ends.
const bool is_rank_program = [] {
  if (!std::getenv("TPFSDP_TEST_SAY_STORE")) return false;
  std::puts(read_launch()->store.c_str());
  std::fflush(stdout);
  _exit(0);
}();

// One launcher's row: rank 2 of 4, with the environment as the launcher sets it.
struct Row {
  const char *name;
  Variables variables;
  Variables next_rank;                // what is different at rank 3
  std::vector<Variables> other_jobs;  // each makes it another launch
  int32_t local_rank, local_world_size;
};

const Row kRows[] = {
    {"torchrun",
     {{"RANK", "2"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "2"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"TORCHELASTIC_RUN_ID", "none"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"MASTER_ADDR", "localhost"},
      {"MASTER_PORT", "29500"}},
     {{"RANK", "3"}, {"LOCAL_RANK", "3"}},
     {{{"TORCHELASTIC_RUN_ID", "other"}},
      {{"TORCHELASTIC_RESTART_COUNT", "1"}},
      {{"MASTER_ADDR", "node1"}},
      {{"MASTER_PORT", "29501"}},
      {{"WORLD_SIZE", "5"}}},
     2,
     4},
    {"Open MPI 5",
     {{"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_RANK", "2"},
      {"PMIX_NAMESPACE", "prterun-node-17322@1"},
      {"PMIX_SERVER_URI2", "prterun-node-17322@0.0;tcp4://127.0.0.1:53749"}},
     {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"PMIX_RANK", "3"}},
     {{{"PMIX_NAMESPACE", "prterun-node-17322@2"}},
      {{"PMIX_SERVER_URI2", "prterun-node-17322@0.0;tcp4://127.0.0.1:53750"}},
      {{"OMPI_COMM_WORLD_SIZE", "5"}}},
     0,
     2},
    {"Open MPI 4",
     {{"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_MCA_ess_base_jobid", "3245932545"},
      {"OMPI_MCA_orte_precondition_transports", "0123456789abcdef-0123456789abcdef"}},
     {{"OMPI_COMM_WORLD_RANK", "3"}},
     {{{"OMPI_MCA_ess_base_jobid", "3245932546"}},
      {{"OMPI_MCA_orte_precondition_transports", "1123456789abcdef-0123456789abcdef"}},
      {{"OMPI_COMM_WORLD_SIZE", "5"}}},
     -1,
     0},
    {"Intel MPI",
     {{"PMI_RANK", "2"},
      {"PMI_SIZE", "4"},
      {"MPI_LOCALRANKID", "2"},
      {"MPI_LOCALNRANKS", "4"},
      {"I_MPI_HYDRA_UUID", "bc430000-87a8-eb05-8361-0600ae775328"}},
     {{"PMI_RANK", "3"}, {"MPI_LOCALRANKID", "3"}},
     {{{"I_MPI_HYDRA_UUID", "cc430000-87a8-eb05-8361-0600ae775328"}}, {{"PMI_SIZE", "5"}}},
     2,
     4},
    {"MPICH",
     {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}, {"PMI_FD", "9"}},
     {{"PMI_RANK", "3"}, {"MPI_LOCALRANKID", "3"}, {"PMI_FD", "11"}},
     {{{"PMI_SIZE", "5"}}},
     2,
     4},
    {"PMIx",
     {{"PMIX_RANK", "2"}, {"PMIX_SIZE", "4"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}},
     {{"PMIX_RANK", "3"}},
     {{{"PMIX_NAMESPACE", "slurm.pmix.7.1"}}, {{"PMIX_SIZE", "5"}}},
     -1,
     0},
    {"Slurm",
     {{"SLURM_PROCID", "2"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_JOB_ID", "7"},
      {"SLURM_STEP_ID", "0"}},
     {{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "2"}},
     {{{"SLURM_JOB_ID", "8"}}, {{"SLURM_STEP_ID", "1"}}, {{"SLURM_RESTART_COUNT", "1"}}, {{"SLURM_NTASKS", "5"}}},
     1,
     0},
};

class LaunchStore : public testing::Test {
 protected:
  void TearDown() override { set({}); }
};

TEST_F(LaunchStore, OneForAllRanksAndAnotherForEveryOtherLaunch) {
  std::set<std::string> stores;
  size_t launches = 0;
  for (const Row &row : kRows) {
    SCOPED_TRACE(row.name);
    const auto launch = read(row.variables);
    ASSERT_TRUE(launch);
    EXPECT_EQ(launch->rank, 2);
    EXPECT_EQ(launch->world_size, 4);
    EXPECT_EQ(launch->local_rank, row.local_rank);
    EXPECT_EQ(launch->local_world_size, row.local_world_size);
    EXPECT_THAT(launch->store, MatchesRegex("file:/tmp/tpfsdp-[0-9]+-[0-9a-f]{16}"));
    EXPECT_THAT(launch->store, HasSubstr(cat("/tpfsdp-", geteuid(), "-")));
    const auto next = read(with(row.variables, row.next_rank));
    EXPECT_EQ(next->rank, 3);
    EXPECT_EQ(next->store, launch->store);
    stores.insert(launch->store);
    for (const Variables &changes : row.other_jobs) stores.insert(read(with(row.variables, changes))->store);
    launches += 1 + row.other_jobs.size();
  }
  EXPECT_EQ(stores.size(), launches);
  EXPECT_EQ(stores.count(""), 0U);
}

TEST_F(LaunchStore, LiesInTheRuntimeDirectoryIfThatIsThere) {
  Variables variables = with(kRows[6].variables, {{"XDG_RUNTIME_DIR", testing::TempDir()}});
  const std::string store = read(variables)->store;
  EXPECT_THAT(store, StartsWith("file:" + testing::TempDir() + "/tpfsdp-"));
  variables["XDG_RUNTIME_DIR"] = "/nowhere/run";
  EXPECT_THAT(read(variables)->store, StartsWith("file:/tmp/tpfsdp-"));
}

TEST_F(LaunchStore, IsUnknownWhereNothingTellsLaunchesApart) {
  for (const Variables &variables : {Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}},
                                     {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}},
                                     {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
                                     {{"PMIX_RANK", "0"}, {"PMIX_SIZE", "2"}},
                                     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "7"}}}) {
    const auto launch = read(variables);
    EXPECT_EQ(launch->store, "");
    EXPECT_EQ(launch->local_rank, -1);
    EXPECT_EQ(launch->local_world_size, 0);
  }
}

TEST_F(LaunchStore, RanksCopiedFromALauncherAreItsRanks) {
  const Variables &slurm = kRows[6].variables;
  const auto copied = read(with(slurm, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  EXPECT_EQ(copied->source, "RANK and WORLD_SIZE");
  EXPECT_EQ(copied->store, read(slurm)->store);
  // Ranks of their own, inside one task of Slurm.
  EXPECT_EQ(read(with(slurm, {{"RANK", "1"}, {"WORLD_SIZE", "2"}}))->store, "");
  EXPECT_EQ(read(with(slurm, {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "x"}}))->store, "");
}

TEST_F(LaunchStore, UsersStoreRules) {
  for (const Row &row : kRows)
    for (const char *store : {"file:/some/folder", "file:beside", "tcp:localhost:1", "tcp:[::1]:65535"})
      EXPECT_EQ(read(with(row.variables, {{"TPFSDP_STORE", store}}))->store, store);
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TPFSDP_STORE", "file:/a"}})->store, "file:/a");
  for (const char *store : {"file:", "/some/folder", "local:a", "tcp:", "tcp:host", "tcp::1", "tcp:host:", "tcp:host:0",
                            "tcp:host:65536", "tcp:host:x"})
    EXPECT_EQ(refusal(with(kRows[0].variables, {{"TPFSDP_STORE", store}})),
              cat("TPFSDP_STORE is \"", store, "\"; it is \"file:DIR\" or \"tcp:HOST:PORT\""));
}

TEST_F(LaunchStore, ContradictionsAreRefusedByName) {
  const Variables torchrun{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  EXPECT_EQ(refusal(with(torchrun, {{"RANK", "4"}})),
            "the launch variables do not fit together: RANK is 4, WORLD_SIZE is 4");
  EXPECT_EQ(refusal(with(torchrun, {{"LOCAL_RANK", "2"}})),
            "the launch variables do not fit together: LOCAL_RANK is 2, LOCAL_WORLD_SIZE is 2");
  EXPECT_EQ(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}})),
            "the launch variables do not fit together: LOCAL_WORLD_SIZE is 5, WORLD_SIZE is 4");
  EXPECT_EQ(refusal(with(torchrun, {{"LOCAL_RANK", "-1"}})),
            "the launch variable LOCAL_RANK is \"-1\", which is no number of ranks");
  EXPECT_EQ(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "2x"}})),
            "the launch variable LOCAL_WORLD_SIZE is \"2x\", which is no number of ranks");
  // Half of what is known about the machine is no contradiction.
  EXPECT_EQ(read({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}})->local_rank, -1);
  EXPECT_EQ(read({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}})->local_rank, 2);
}

// What the ranks that a shell starts say, the second through a shell in between.
std::string rank_programs_below(const std::string &launcher) {
  const std::string rank = "TPFSDP_TEST_SAY_STORE=1 PMI_SIZE=2 PMI_RANK=";
  const std::string command = "self=$(readlink /proc/" + std::to_string(getpid()) + "/exe); " + launcher + " '" + rank +
                              "0 \"$0\"; " + rank + "1 sh -c \"\\\"\\$0\\\"; true\" \"$0\"; true' \"$self\"";
  std::string output;
  FILE *pipe = popen(command.c_str(), "r");
  for (int byte; pipe && (byte = std::fgetc(pipe)) != EOF;) output.push_back(static_cast<char>(byte));
  EXPECT_EQ(pipe ? pclose(pipe) : -1, 0);
  return output;
}

TEST_F(LaunchStore, OfAnUnnamedJobComesFromItsLauncherThroughScripts) {
  set({});
  const std::string first = rank_programs_below("sh -c"), second = rank_programs_below("sh -c");
  EXPECT_THAT(first, MatchesRegex("(file:/tmp/tpfsdp-[0-9]+-[0-9a-f]{16}\n){2}"));
  const std::string line = first.substr(0, first.size() / 2);
  EXPECT_EQ(first, line + line);
  EXPECT_EQ(second.size(), first.size());
  EXPECT_NE(second, first);
}

}  // namespace
}  // namespace tpfsdp
