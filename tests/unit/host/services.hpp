// SPDX-License-Identifier: Apache-2.0
// What the library lends a backend, in its simplest form: a map for a store, plain loops for reductions.
#ifndef TPFSDP_TESTS_UNIT_HOST_SERVICES_HPP
#define TPFSDP_TESTS_UNIT_HOST_SERVICES_HPP

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <tpfsdp/backend.h>

namespace host_test {

/// The store of one group of ranks.
class Store {
 public:
  void set(const std::string &key, const void *value, int64_t bytes);
  bool try_get(const std::string &key, void *value, int64_t bytes);
  bool get(const std::string &key, void *value, int64_t bytes, int64_t deadline_ns);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> values_;
};

/// One rank's calls: the store it uses, and the last error. tpfsdp_backend_call points to it.
struct Call {
  Store *store = nullptr;
  int rank = -1;
  tpfsdp_status status = TPFSDP_OK;
  int32_t at_fault = -1;
  int64_t sequence = -1;
  std::string text;
  std::vector<std::string> logs;
  std::atomic<bool> interrupted{false};
  std::function<void()> yield;  ///< fibers: lets others run while the store has no answer

  tpfsdp_backend_call *handle() { return reinterpret_cast<tpfsdp_backend_call *>(this); }
};

/// Hooks of a test into the services below; reset by each test that sets them.
struct Hooks {
  std::function<void(void *, const void *, int64_t)> copy;  ///< in place of memcpy
  std::function<tpfsdp_status()> before_reduce;             ///< an error is the reduction's
  std::function<int64_t()> clock_ns;
  bool (*allocation_fails)() = nullptr;  ///< of the service
};
Hooks &hooks();

/// Memory given out and not taken back, and every pointer that was taken back.
struct Heap {
  std::mutex mutex;
  std::map<void *, int64_t> live;
  std::atomic<int64_t> freed{0};
  bool is_live(const void *data);
};
Heap &heap();

/// This thread keeps the books of the services: what it allocates is not the engine's.
bool &keeps_books();

const tpfsdp_backend_services &services();
/// The table of the backend under test, over services().
/// Of the provider that the environment names in TPFSDP_HOST_PROVIDER: threads, or shm, whose ranks are threads here
/// too.
const tpfsdp_backend_table &table();
bool uses_shm();

}  // namespace host_test

#endif
