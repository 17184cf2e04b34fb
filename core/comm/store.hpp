// SPDX-License-Identifier: Apache-2.0
// Where ranks meet before they can talk: keys and values.
#pragma once

#include "base/error.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace tpfsdp {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string &key, const std::string &value) = 0;
  // Waits until the key is there; nothing past the deadline (monotonic ns; INT64_MAX: none).
  virtual std::optional<std::string> find(const std::string &key, int64_t deadline_ns) = 0;
  virtual int64_t add(const std::string &key, int64_t amount) = 0;  // the sum after it

  // Removes what the job made for it, where nobody else could want it: of rank 0, when the job ends in order.
  virtual void discard() noexcept {}

  // As find, but throws TIMEOUT past the deadline.
  std::string get(const std::string &key, int64_t deadline_ns);
};

// What a store of processes holds: any bytes, within these bounds. Throws INVALID_ARGUMENT beyond them.
inline constexpr size_t kMaxStoreKeyBytes = 4096;
inline constexpr size_t kMaxStoreValueBytes = size_t{1} << 20;
void check_store_entry(size_t key_bytes, size_t value_bytes);

// The store of threads of one process that name it alike. A name is taken by the first `world_size` ranks that ask for
// it; after that, or when all who asked have given it up, it may be used again for another job. Refuses a rank twice
// and unequal world sizes (STATE).
std::shared_ptr<Store> join_local_store(const std::string &name, int32_t rank, int32_t world_size);
// The same without a name, for threads that are started together.
std::shared_ptr<Store> make_local_store();

}  // namespace tpfsdp
