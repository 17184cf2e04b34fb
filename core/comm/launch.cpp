// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.hpp"

#include "base/error.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace tpfsdp {
namespace {

struct Variables {
  const char *rank;
  const char *world_size;
};
// The order is from what a user sets to what a cluster sets for every process.
constexpr std::array kVariables = {
    Variables{"RANK", "WORLD_SIZE"},           Variables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    Variables{"PMI_RANK", "PMI_SIZE"},         Variables{"PMIX_RANK", "PMIX_SIZE"},
    Variables{"SLURM_PROCID", "SLURM_NTASKS"},
};

int32_t number(const char *name, const char *text) {
  int32_t value = -1;
  const char *end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variable ", name, " is \"", text, "\", which is no number of ranks");
  return value;
}

const char *value_of(const char *name) {
  const char *text = std::getenv(name);
  return text && *text ? text : nullptr;
}

}  // namespace

std::optional<Launch> read_launch() {
  const Variables *lone = nullptr;
  for (const Variables &variables : kVariables) {
    const char *rank = value_of(variables.rank);
    const char *world_size = value_of(variables.world_size);
    if (rank && world_size) {
      Launch launch{number(variables.rank, rank), number(variables.world_size, world_size),
                    cat(variables.rank, " and ", variables.world_size)};
      if (launch.rank >= launch.world_size)
        fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variables do not fit together: ", variables.rank, " is ",
             launch.rank, ", ", variables.world_size, " is ", launch.world_size);
      return launch;
    }
    if ((rank || world_size) && !lone) lone = &variables;
  }
  if (!lone) return std::nullopt;
  const bool has_rank = value_of(lone->rank) != nullptr;
  fail(TPFSDP_ERR_INVALID_ARGUMENT, "the launch variable ", has_rank ? lone->rank : lone->world_size, " is \"",
       value_of(has_rank ? lone->rank : lone->world_size), "\", but ", has_rank ? lone->world_size : lone->rank,
       " is not set: set both, or neither for a world of one");
}

}  // namespace tpfsdp
