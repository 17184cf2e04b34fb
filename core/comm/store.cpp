// SPDX-License-Identifier: Apache-2.0
#include "comm/store.hpp"

#include "comm/recorder.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace tpfsdp {
namespace {

class LocalStore final : public Store {
 public:
  void set(const std::string &key, const std::string &value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::optional<std::string> find(const std::string &key, int64_t deadline_ns) override {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
      const int64_t left = deadline_ns - monotonic_ns();
      if (left <= 0) return std::nullopt;
      // In slices, so that "no deadline" does not overflow the clock.
      changed_.wait_for(lock, std::chrono::nanoseconds(std::min<int64_t>(left, 1'000'000'000)));
    }
  }

  int64_t add(const std::string &key, int64_t amount) override {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return sums_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> sums_;
};

// A name whose ranks have not all come yet.
struct Gathering {
  std::weak_ptr<LocalStore> store;
  int32_t world_size = 0;
  std::set<int32_t> ranks;
};

std::mutex gatherings_mutex;

std::map<std::string, Gathering> &gatherings() {
  static auto *map = new std::map<std::string, Gathering>;  // never destroyed: ranks may still join at exit
  return *map;
}

}  // namespace

std::string Store::get(const std::string &key, int64_t deadline_ns) {
  std::optional<std::string> value = find(key, deadline_ns);
  if (!value) fail(TPFSDP_ERR_TIMEOUT, "no rank has put \"", key, "\" into the store in time");
  return *std::move(value);
}

void check_store_entry(size_t key_bytes, size_t value_bytes) {
  if (key_bytes > kMaxStoreKeyBytes)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a key of the store has ", key_bytes, " bytes; at most ", kMaxStoreKeyBytes,
         " are held");
  if (value_bytes > kMaxStoreValueBytes)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "a value for the store has ", value_bytes, " bytes; at most ",
         kMaxStoreValueBytes, " are held");
}

std::shared_ptr<Store> join_local_store(const std::string &name, int32_t rank, int32_t world_size) {
  const std::lock_guard lock(gatherings_mutex);
  Gathering &gathering = gatherings()[name];
  std::shared_ptr<LocalStore> store = gathering.store.lock();
  if (!store) {
    store = std::make_shared<LocalStore>();
    gathering = Gathering{store, world_size, {}};
  }
  if (gathering.world_size != world_size) {
    fail(TPFSDP_ERR_STATE, "rank ", rank, " joins store \"local:", name, "\" with world_size ", world_size,
         ", but the ranks that wait there said ", gathering.world_size,
         ": give all ranks of a job the same world_size");
  }
  if (!gathering.ranks.insert(rank).second) {
    fail(TPFSDP_ERR_STATE, "rank ", rank, " of ", world_size, " has joined store \"local:", name,
         "\" already and the job is not complete: give each thread its own rank, and each job its own name");
  }
  if (gathering.ranks.size() == static_cast<size_t>(world_size)) gatherings().erase(name);
  return store;
}

std::shared_ptr<Store> make_local_store() { return std::make_shared<LocalStore>(); }

}  // namespace tpfsdp
