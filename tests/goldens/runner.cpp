// SPDX-License-Identifier: Apache-2.0
// goldens_runner DIR [FILTER] [--ranks threads|processes] [--mode private|shared|mapped]: one line for each golden file
// of DIR. FILTER is a part of file names, or a pattern with * and ?.
#include "goldens/run.hpp"
#include "support/processes.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <iostream>

namespace {

struct Arguments {
  std::string folder, filter, ranks = "threads", mode = "private";
};
Arguments arguments;

bool is_wanted(const std::filesystem::path &file) {
  const std::string pattern =
      arguments.filter.find_first_of("*?") == std::string::npos ? "*" + arguments.filter + "*" : arguments.filter;
  return fnmatch(pattern.c_str(), file.stem().c_str(), 0) == 0;
}

goldens::Outcome outcome_of(const goldens::Golden &golden) {
  const int failed_before = processes::failed_assertions();
  goldens::Outcome outcome = goldens::run(golden);
  // A rank that is a process may have died without an error that any other rank met.
  if (outcome.kind == goldens::Outcome::Kind::kPass && processes::failed_assertions() > failed_before)
    outcome = {goldens::Outcome::Kind::kFail, "a rank did not end well"};
  return outcome;
}

// A test, because ranks that are processes belong to one (support/processes.hpp).
TEST(Goldens, OfTheFolder) {
  int passed = 0, failed = 0, not_applicable = 0;
  for (const std::filesystem::path &file : goldens::files_in(arguments.folder)) {
    if (!is_wanted(file)) continue;
    std::string name = file.stem();
    goldens::Outcome outcome{goldens::Outcome::Kind::kFail, ""};
    try {
      const goldens::Golden golden = goldens::load(file);
      name = golden.name();
      outcome = outcome_of(golden);
    } catch (const std::exception &error) {
      outcome.text = std::string("cannot be read: ") + error.what();
    }
    std::replace(outcome.text.begin(), outcome.text.end(), '\n', ' ');
    switch (outcome.kind) {
      case goldens::Outcome::Kind::kPass:
        std::cout << "pass " << name << " " << arguments.ranks << " " << arguments.mode << std::endl;
        ++passed;
        break;
      case goldens::Outcome::Kind::kFail:
        std::cout << "FAIL " << name << ": " << outcome.text << std::endl;
        ++failed;
        break;
      case goldens::Outcome::Kind::kNotApplicable:
        std::cout << "n/a " << name << ": " << outcome.text << std::endl;
        ++not_applicable;
        break;
    }
  }
  std::cerr << passed << " passed, " << failed << " failed, " << not_applicable << " n/a" << std::endl;
  EXPECT_EQ(failed, 0);
  if (passed + failed + not_applicable > 0) return;
  std::cerr << "no golden file of " << arguments.folder << " is called like " << arguments.filter << std::endl;
  FAIL();
}

bool parse(int argc, char **argv) {
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--ranks" && i + 1 < argc) {
      arguments.ranks = argv[++i];
    } else if (std::string(argv[i]) == "--mode" && i + 1 < argc) {
      arguments.mode = argv[++i];
    } else {
      names.push_back(argv[i]);
    }
  }
  const bool is_mode = arguments.mode == "private" || arguments.mode == "shared" || arguments.mode == "mapped";
  const bool are_ranks = arguments.ranks == "threads" || arguments.ranks == "processes";
  if (names.empty() || names.size() > 2 || !is_mode || !are_ranks) return false;
  arguments.folder = names[0];
  if (names.size() > 1) arguments.filter = names[1];
  return std::filesystem::is_directory(arguments.folder);
}

}  // namespace

int main(int argc, char **argv) {
  if (!parse(argc, argv)) {
    std::cerr
        << "goldens_runner DIR [FILTER] [--ranks threads|processes] [--mode private|shared|mapped]: DIR is a folder of "
           "golden files"
        << std::endl;
    return 2;
  }
  setenv("TPFSDP_TEST_RANKS", arguments.ranks.c_str(), 1);
  setenv("TPFSDP_TEST_MODE", arguments.mode.c_str(), 1);
  int one = 1;
  testing::InitGoogleTest(&one, argv);
  testing::TestEventListeners &listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  return RUN_ALL_TESTS();
}
