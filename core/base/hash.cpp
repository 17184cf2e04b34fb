// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tpfsdp {

uint64_t hash_bytes(const void *data, size_t size_bytes, uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

}  // namespace tpfsdp
