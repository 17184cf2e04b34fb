// SPDX-License-Identifier: Apache-2.0
// Hashes that ranks compare: of shapes, names and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tpfsdp {

uint64_t hash_bytes(const void *data, size_t size_bytes, uint64_t seed = 0) noexcept;
inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) noexcept {
  return hash_bytes(text.data(), text.size(), seed);
}

}  // namespace tpfsdp
