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
  std::string source;  // "RANK and WORLD_SIZE"
};

// The first of torchrun's, Open MPI's, PMI's and Slurm's variables that are set. Throws INVALID_ARGUMENT for values
// that are no numbers or do not fit together.
std::optional<Launch> read_launch();

}  // namespace tpfsdp
