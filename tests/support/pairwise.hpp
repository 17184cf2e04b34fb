// SPDX-License-Identifier: Apache-2.0
// Cases for a test of many choices: of any two choices, each pair of values is in some case.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pairwise {

// Of each choice a value from 0 to below its count. Greedy: the next case has a pair that none before it has, and as
// many more of them as its choices, one after the other, can bring.
template <size_t kChoices>
std::vector<std::array<int, kChoices>> cases_of(const std::array<int, kChoices> &counts) {
  struct Pair {
    size_t a, b;
    int of_a, of_b;
  };
  using Case = std::array<int, kChoices>;
  std::vector<Pair> open;
  for (size_t a = 0; a < kChoices; ++a) {
    for (size_t b = a + 1; b < kChoices; ++b) {
      for (int i = 0; i < counts[a]; ++i) {
        for (int j = 0; j < counts[b]; ++j) open.push_back({a, b, i, j});
      }
    }
  }
  std::vector<Case> cases;
  while (!open.empty()) {
    Case made;
    made.fill(-1);
    const auto holds = [&](const Pair &pair) { return made[pair.a] == pair.of_a && made[pair.b] == pair.of_b; };
    made[open.front().a] = open.front().of_a;
    made[open.front().b] = open.front().of_b;
    for (size_t c = 0; c < kChoices; ++c) {
      if (made[c] >= 0) continue;
      int best = 0;
      int64_t most = -1;
      for (int i = 0; i < counts[c]; ++i) {
        const int value = (i + static_cast<int>(cases.size())) % counts[c];
        made[c] = value;
        if (const int64_t pairs = std::count_if(open.begin(), open.end(), holds); pairs > most) {
          most = pairs;
          best = value;
        }
      }
      made[c] = best;
    }
    std::erase_if(open, holds);
    cases.push_back(made);
  }
  return cases;
}

}  // namespace pairwise
