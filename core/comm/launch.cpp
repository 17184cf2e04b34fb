// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.hpp"

#include "base/error.hpp"
#include "base/hash.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace tpfsdp {
namespace {

struct Launcher {
  const char *rank;
  const char *world_size;
  const char *local_rank;  // nullptr: it does not say
  const char *local_world_size;
  // What is equal in all ranks of a launch on one machine, and in no other launch. The first must be set.
  std::array<const char *, 4> identity;
  // Whether the launcher's own process is part of it: torchrun's run id is "none" unless a user gives one, and MPICH
  // names its job nowhere. Then the ranks of one launch must have one launcher on each machine.
  bool is_process;
};
// The order is from what a user sets to what a cluster sets for every process.
constexpr std::array kLaunchers = {
    Launcher{"RANK",
             "WORLD_SIZE",
             "LOCAL_RANK",
             "LOCAL_WORLD_SIZE",
             {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"},
             true},
    // Open MPI 5 and 4. Their job ids are made of a process id, which comes again: the server's address has a port.
    Launcher{"OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE",
             {"PMIX_NAMESPACE", "PMIX_SERVER_URI2"},
             false},
    Launcher{"OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE",
             {"OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_precondition_transports"},
             false},
    // Intel MPI, and MPICH.
    Launcher{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"I_MPI_HYDRA_UUID"}, false},
    Launcher{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {}, true},
    Launcher{"PMIX_RANK", "PMIX_SIZE", nullptr, nullptr, {"PMIX_NAMESPACE", "PMIX_SERVER_URI2"}, false},
    Launcher{"SLURM_PROCID",
             "SLURM_NTASKS",
             "SLURM_LOCALID",
             nullptr,
             {"SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"},
             false},
};

const char *value_of(const char *name) {
  const char *text = name ? std::getenv(name) : nullptr;
  return text && *text ? text : nullptr;
}

template <class Number>
bool parse(std::string_view text, Number &value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && stop == text.data() + text.size();
}

// Of a variable that is set.
int32_t number(const char *name) {
  int32_t value = -1;
  if (!parse(value_of(name), value) || value < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variable ", name, " is \"", value_of(name),
         "\", which is no number of ranks");
  return value;
}

bool says(const char *name, int32_t wanted) {
  int32_t value = -1;
  return value_of(name) && parse(value_of(name), value) && value == wanted;
}

[[noreturn]] void refuse_pair(const char *one, int32_t first, const char *other, int32_t second) {
  fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variables do not fit together: ", one, " is ", first, ", ", other,
       " is ", second);
}

Launch read_numbers(const Launcher &launcher) {
  Launch launch;
  launch.rank = number(launcher.rank);
  launch.world_size = number(launcher.world_size);
  launch.source = cat(launcher.rank, " and ", launcher.world_size);
  if (launch.rank >= launch.world_size) refuse_pair(launcher.rank, launch.rank, launcher.world_size, launch.world_size);
  if (value_of(launcher.local_rank)) launch.local_rank = number(launcher.local_rank);
  if (!value_of(launcher.local_world_size)) return launch;
  launch.local_world_size = number(launcher.local_world_size);
  if (launch.local_rank >= launch.local_world_size)
    refuse_pair(launcher.local_rank, launch.local_rank, launcher.local_world_size, launch.local_world_size);
  if (launch.local_world_size > launch.world_size)
    refuse_pair(launcher.local_world_size, launch.local_world_size, launcher.world_size, launch.world_size);
  return launch;
}

std::string read_file(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The nearest ancestor that was not itself started with this rank's variables: a script between the launcher and the
// rank has them too. Named by process id and start time, which together are never used twice; empty if unknown.
std::string launcher_process(const Launcher &launcher) {
  const auto setting = [](const char *name) { return cat('\0', name, '=', value_of(name), '\0'); };
  const std::string rank = setting(launcher.rank), world_size = setting(launcher.world_size);
  for (int64_t process = getppid(); process > 0;) {
    const std::string folder = cat("/proc/", process);
    const std::string status = read_file(folder + "/stat");  // PID (NAME) STATE PARENT ... START TIME, the 22nd
    const size_t name_end = status.rfind(')');
    if (name_end == std::string::npos) return {};
    std::istringstream fields(status.substr(name_end + 1));
    const std::vector<std::string> field{std::istream_iterator<std::string>(fields), {}};
    if (field.size() < 20) return {};
    const std::string environment = '\0' + read_file(folder + "/environ");
    if (environment.find(rank) == std::string::npos || environment.find(world_size) == std::string::npos)
      return cat(process, " started at ", field[19]);
    if (!parse(field[1], process)) return {};
  }
  return {};
}

// Text that is equal in all ranks of this launch and in no other; empty if there is none.
std::string identity_of(const Launcher &launcher) {
  std::string identity;
  for (const char *name : launcher.identity) {
    if (!name) break;
    const char *value = value_of(name);
    if (!value && identity.empty()) return {};
    identity += cat(name, '=', value ? value : "", '\n');
  }
  return launcher.is_process ? identity + launcher_process(launcher) : identity;
}

// A directory of this user and of this launch. $XDG_RUNTIME_DIR may come from another machine, as under Slurm.
std::string store_of(const Launch &launch, const std::string &identity) {
  const char *runtime = value_of("XDG_RUNTIME_DIR");
  if (!runtime || access(runtime, W_OK | X_OK) != 0) runtime = "/tmp";
  char key[17];
  std::snprintf(key, sizeof key, "%016llx",
                static_cast<unsigned long long>(hash_text(cat(identity, "\nworld size ", launch.world_size))));
  // One component: in a folder that everybody can write, nobody but its owner can move or replace it.
  return cat("file:", runtime, "/tpfsdp-", geteuid(), '-', key);
}

std::string checked_store(std::string_view store) {
  const size_t colon = store.rfind(':');
  const std::string_view port = store.substr(colon + 1);
  uint16_t number = 0;
  const bool is_file = store.starts_with("file:") && store.size() > 5;
  const bool is_tcp = store.starts_with("tcp:") && colon > 4 && parse(port, number) && number > 0;
  if (!is_file && !is_tcp)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "TPFSDP_STORE is \"", store, "\"; it is \"file:DIR\" or \"tcp:HOST:PORT\"");
  return std::string(store);
}

// Of the first launcher that says the same ranks and tells its launches apart: under Slurm users often set RANK and
// WORLD_SIZE from Slurm's own variables.
std::string find_store(const Launch &launch) {
  if (const char *given = value_of("TPFSDP_STORE")) return checked_store(given);
  for (const Launcher &launcher : kLaunchers) {
    if (!says(launcher.rank, launch.rank) || !says(launcher.world_size, launch.world_size)) continue;
    const std::string identity = identity_of(launcher);
    if (!identity.empty()) return store_of(launch, cat(launcher.rank, '\n', identity));
  }
  return {};
}

}  // namespace

std::optional<Launch> read_launch() {
  const Launcher *lone = nullptr;
  for (const Launcher &launcher : kLaunchers) {
    const bool has_rank = value_of(launcher.rank) != nullptr, has_world_size = value_of(launcher.world_size) != nullptr;
    if (has_rank && has_world_size) {
      Launch launch = read_numbers(launcher);
      launch.store = find_store(launch);
      launch.is_store_given = value_of("TPFSDP_STORE") != nullptr;
      return launch;
    }
    if ((has_rank || has_world_size) && !lone) lone = &launcher;
  }
  if (!lone) return std::nullopt;
  const bool has_rank = value_of(lone->rank) != nullptr;
  fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variable ", has_rank ? lone->rank : lone->world_size, " is \"",
       value_of(has_rank ? lone->rank : lone->world_size), "\", but ", has_rank ? lone->world_size : lone->rank,
       " is not set: set both, or neither for a world of one");
}

std::string read_job_token() {
  const char *token = std::getenv("TPFSDP_TOKEN");
  if (!token || !*token)
    fail(TPFSDP_ERR_INVALID_ARGUMENT,
         "TPFSDP_TOKEN is not set: a store \"tcp:HOST:PORT\" lets in who knows the job's "
         "token only; set it to the same secret of 16 characters or more on every rank");
  return token;
}

}  // namespace tpfsdp
