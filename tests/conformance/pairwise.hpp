// SPDX-License-Identifier: Apache-2.0
// A subset of a product of choices in which every pair of values of any two dimensions occurs: what the default suite
// runs of a matrix. Deterministic from its seed.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace pairwise {

using Row = std::vector<int>;

// Greedy: each row starts from a pair that is still open and takes, dimension by dimension, the value that closes most.
inline std::vector<Row> cover(const std::vector<int> &sizes, uint32_t seed) {
  std::mt19937 random(seed);
  const int dims = static_cast<int>(sizes.size());
  std::set<std::tuple<int, int, int, int>> open;  // (dimension, value) twice, the first dimension being the lower
  for (int a = 0; a < dims; ++a)
    for (int b = a + 1; b < dims; ++b)
      for (int x = 0; x < sizes[a]; ++x)
        for (int y = 0; y < sizes[b]; ++y) open.emplace(a, x, b, y);
  const auto key = [](int a, int x, int b, int y) { return a < b ? std::tuple(a, x, b, y) : std::tuple(b, y, a, x); };

  std::vector<Row> rows;
  while (!open.empty()) {
    const auto [a, x, b, y] = *open.begin();
    Row row(sizes.size(), -1);
    row[a] = x;
    row[b] = y;
    for (int dim = 0; dim < dims; ++dim) {
      if (row[dim] >= 0) continue;
      int best = -1, best_gain = -1;
      const int start = static_cast<int>(random() % static_cast<uint32_t>(sizes[dim]));
      for (int i = 0; i < sizes[dim]; ++i) {
        const int value = (start + i) % sizes[dim];
        int gain = 0;
        for (int other = 0; other < dims; ++other)
          if (other != dim && row[other] >= 0) gain += static_cast<int>(open.count(key(dim, value, other, row[other])));
        if (gain > best_gain) {
          best = value;
          best_gain = gain;
        }
      }
      row[dim] = best;
    }
    for (int c = 0; c < dims; ++c)
      for (int d = c + 1; d < dims; ++d) open.erase({c, row[c], d, row[d]});
    rows.push_back(row);
  }
  return rows;
}

}  // namespace pairwise
