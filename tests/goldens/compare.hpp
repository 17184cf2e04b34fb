// SPDX-License-Identifier: Apache-2.0
// What a run gave and a golden says, side by side. The first difference is kept, the others are counted.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace goldens {

class Differences {
 public:
  // Exactly the same.
  void equal(const std::string &what, const nlohmann::json &got, const nlohmann::json &want);
  // Logs: says the line and what stands there.
  void same_lines(const std::string &what, const nlohmann::json &got, const nlohmann::json &want);
  // Numbers, alone or in lists and objects, within `tolerance` of the wanted one's size, at least of 1; null is null.
  void near(const std::string &what, const nlohmann::json &got, const nlohmann::json &want, double tolerance);
  void add(const std::string &text);

  bool none() const { return count_ == 0; }
  std::string text() const;

 private:
  std::string first_;
  int count_ = 0;
};

}  // namespace goldens
