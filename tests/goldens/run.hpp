// SPDX-License-Identifier: Apache-2.0
// Runs a golden's case on its ranks and compares everything that the file says of it.
#pragma once

#include "goldens/golden.hpp"

namespace goldens {

struct Outcome {
  enum class Kind { kPass, kFail, kNotApplicable };
  Kind kind;
  std::string text;  // what differs, or what the case needs
};

// Ranks are threads, or processes where TPFSDP_TEST_RANKS says so (support/processes.hpp).
Outcome run(const Golden &golden);

}  // namespace goldens
