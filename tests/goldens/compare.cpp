// SPDX-License-Identifier: Apache-2.0
#include "goldens/compare.hpp"

#include <algorithm>
#include <cmath>

namespace goldens {

using nlohmann::json;

void Differences::add(const std::string &text) {
  if (count_++ == 0) first_ = text;
}

std::string Differences::text() const {
  return count_ > 1 ? first_ + " (and " + std::to_string(count_ - 1) + " more)" : first_;
}

void Differences::equal(const std::string &what, const json &got, const json &want) {
  if (got != want) add(what + " is " + got.dump() + ", want " + want.dump());
}

void Differences::same_lines(const std::string &what, const json &got, const json &want) {
  for (size_t i = 0; i < std::max(got.size(), want.size()); ++i) {
    const std::string ours = i < got.size() ? got[i].get<std::string>() : "(end)";
    const std::string theirs = i < want.size() ? want[i].get<std::string>() : "(end)";
    if (ours != theirs)
      return add(what + " line " + std::to_string(i) + " is \"" + ours + "\", want \"" + theirs + "\"");
  }
}

void Differences::near(const std::string &what, const json &got, const json &want, double tolerance) {
  if (want.is_structured()) {
    if (got.type() != want.type() || got.size() != want.size()) return equal(what, got, want);
    for (const auto &[key, value] : want.items()) {
      const json *other = want.is_array() ? &got[std::stoul(key)] : got.contains(key) ? &got[key] : nullptr;
      if (!other) return add(what + " has no " + key);
      near(what + "[" + key + "]", *other, value, tolerance);
    }
  } else if (want.is_number() && got.is_number()) {
    const double ours = got, theirs = want;
    // Written so that NaN is a difference.
    if (!(std::abs(ours - theirs) <= tolerance * std::max(1.0, std::abs(theirs)))) equal(what, got, want);
  } else {
    equal(what, got, want);
  }
}

}  // namespace goldens
