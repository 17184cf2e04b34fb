// SPDX-License-Identifier: Apache-2.0
// What a launcher said about this process, by its environment. The only place where it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tpfsdp {

struct Launch {
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = -1;       // among the ranks of this machine; -1 unknown
  int32_t local_world_size = 0;  // ranks of this machine; 0 unknown
  std::string source;            // "RANK and WORLD_SIZE"
  // Where the ranks of this launch, and of no other, meet: "file:DIR" or "tcp:HOST:PORT" as TPFSDP_STORE says, else
  // "file:DIR" of a directory that need not be there yet. Empty: nothing tells this launch from another.
  std::string store;
  bool is_store_given = false;  // by TPFSDP_STORE
};

// The first of torchrun's, Open MPI's, PMI's and Slurm's variables that are set. Throws INVALID_ARGUMENT for values
// that are no numbers or do not fit together, and for a TPFSDP_STORE that is no store.
std::optional<Launch> read_launch();

// TPFSDP_TOKEN: what the processes of one job know and nobody else does. Throws INVALID_ARGUMENT if it is not set.
std::string read_job_token();

}  // namespace tpfsdp
