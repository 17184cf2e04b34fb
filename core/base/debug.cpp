// SPDX-License-Identifier: Apache-2.0
#include "base/debug.hpp"

#include <cstdlib>
#include <string_view>

namespace tpfsdp {
namespace {

bool lists(std::string_view text, std::string_view word) noexcept {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    if (text.substr(0, comma) == word) return true;
    if (comma == std::string_view::npos) return false;
    text.remove_prefix(comma + 1);
  }
  return false;
}

DebugSwitches read_switches() noexcept {
  const char *value = std::getenv("TPFSDP_DEBUG");
  const std::string_view text = value ? value : "";
  return {lists(text, "poison"), lists(text, "readonly")};
}

}  // namespace

const DebugSwitches &debug_switches() noexcept {
  static const DebugSwitches switches = read_switches();
  return switches;
}

}  // namespace tpfsdp
