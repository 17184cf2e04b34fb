// SPDX-License-Identifier: Apache-2.0
#include "services.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

extern "C" tpfsdp_status tpfsdp_backend_threads_entry(const tpfsdp_backend_services *, tpfsdp_backend_table *);
extern "C" tpfsdp_status tpfsdp_backend_shm_entry(const tpfsdp_backend_services *, tpfsdp_backend_table *);

namespace host_test {

void Store::set(const std::string &key, const void *value, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const char *data = static_cast<const char *>(value);
  values_[key].assign(data, data + bytes);
  changed_.notify_all();
}

bool Store::try_get(const std::string &key, void *value, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  std::memcpy(value, found->second.data(), static_cast<size_t>(bytes));
  return true;
}

namespace {

Call &of(tpfsdp_backend_call *call) { return *reinterpret_cast<Call *>(call); }

int64_t real_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
int64_t clock_ns() { return hooks().clock_ns ? hooks().clock_ns() : real_clock(); }

void log(tpfsdp_backend_call *call, int32_t, const char *message) { of(call).logs.emplace_back(message); }

void set_error(tpfsdp_backend_call *call, tpfsdp_status status, int32_t rank, int64_t sequence, const char *message) {
  Call &c = of(call);
  c.status = status;
  c.at_fault = rank;
  c.sequence = sequence;
  c.text = message;
}

void *allocate(int64_t bytes) {
  if (hooks().allocation_fails != nullptr && hooks().allocation_fails()) return nullptr;
  constexpr size_t page = 4096;
  const size_t size = (static_cast<size_t>(bytes) + page - 1) / page * page;
  void *data = std::memset(std::aligned_alloc(page, size), 0, size);
  const std::lock_guard<std::mutex> lock(heap().mutex);
  keeps_books() = true;
  heap().live[data] = bytes;
  keeps_books() = false;
  return data;
}

void deallocate(void *data, int64_t) {
  {
    const std::lock_guard<std::mutex> lock(heap().mutex);
    heap().live.erase(data);
    ++heap().freed;
  }
  std::free(data);
}

tpfsdp_status store_set(tpfsdp_backend_call *call, const char *key, const void *value, int64_t bytes) {
  of(call).store->set(key, value, bytes);
  return TPFSDP_OK;
}

tpfsdp_status store_get(tpfsdp_backend_call *call, const char *key, void *value, int64_t bytes, int64_t deadline) {
  Call &c = of(call);
  if (c.yield) {
    while (!c.store->try_get(key, value, bytes)) c.yield();
    return TPFSDP_OK;
  }
  return c.store->get(key, value, bytes, deadline) ? TPFSDP_OK : TPFSDP_ERR_TIMEOUT;
}

tpfsdp_status poll_interrupt(tpfsdp_backend_call *call, const char *, int32_t, int64_t) {
  return of(call).interrupted.load() ? TPFSDP_ERR_CANCELLED : TPFSDP_OK;
}

const char *unit_name(tpfsdp_backend_call *, int32_t unit) {
  static const char *const names[] = {"embed", "layer.0", "layer.1", "head"};
  return unit >= 0 && unit < 4 ? names[unit] : "";
}

int64_t dtype_bytes(tpfsdp_dtype dtype, int64_t count) {
  switch (dtype) {
    case TPFSDP_DTYPE_F64:
    case TPFSDP_DTYPE_I64: return 8 * count;
    case TPFSDP_DTYPE_F16:
    case TPFSDP_DTYPE_BF16: return 2 * count;
    case TPFSDP_DTYPE_U8: return count;
    case TPFSDP_DTYPE_F4_E2M1FN: return (count + 1) / 2;
    default: return 4 * count;
  }
}

template <class Number>
void reduce_as(tpfsdp_reduce_op op, const void *const *inputs, int32_t ranks, void *output, int64_t count,
               double divisor, bool accumulate) {
  for (int64_t i = 0; i < count; ++i) {
    Number value = static_cast<const Number *>(inputs[0])[i];
    for (int32_t rank = 1; rank < ranks; ++rank) {
      const Number next = static_cast<const Number *>(inputs[rank])[i];
      value = op == TPFSDP_REDUCE_MIN   ? std::min(value, next)
              : op == TPFSDP_REDUCE_MAX ? std::max(value, next)
                                        : value + next;
    }
    if (op == TPFSDP_REDUCE_AVG) value = static_cast<Number>(value * static_cast<Number>(1.0 / divisor));
    Number &target = static_cast<Number *>(output)[i];
    target = accumulate ? target + value : value;
  }
}

tpfsdp_status reduce(tpfsdp_reduce_op op, const void *const *inputs, int32_t ranks, tpfsdp_dtype dtype, tpfsdp_dtype,
                     void *output, tpfsdp_dtype, int64_t count, double divisor, tpfsdp_bool accumulate) {
  if (hooks().before_reduce)
    if (const tpfsdp_status status = hooks().before_reduce(); status < 0) return status;
  if (dtype == TPFSDP_DTYPE_F32)
    reduce_as<float>(op, inputs, ranks, output, count, divisor, accumulate != 0);
  else if (dtype == TPFSDP_DTYPE_F64)
    reduce_as<double>(op, inputs, ranks, output, count, divisor, accumulate != 0);
  else
    return TPFSDP_ERR_UNSUPPORTED;
  return TPFSDP_OK;
}

void copy(void *target, const void *source, int64_t bytes) {
  if (hooks().copy)
    hooks().copy(target, source, bytes);
  else
    std::memcpy(target, source, static_cast<size_t>(bytes));
}

}  // namespace

bool Store::get(const std::string &key, void *value, int64_t bytes, int64_t deadline_ns) {
  while (!try_get(key, value, bytes)) {
    if (real_clock() > deadline_ns) return false;
    std::unique_lock<std::mutex> lock(mutex_);
    if (values_.count(key) == 0) changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  return true;
}

Hooks &hooks() {
  static Hooks instance;
  return instance;
}

Heap &heap() {
  static Heap instance;
  return instance;
}

bool &keeps_books() {
  static thread_local bool keeps = false;
  return keeps;
}

bool Heap::is_live(const void *data) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto after = live.upper_bound(const_cast<void *>(data));
  if (after == live.begin()) return false;
  const auto &[begin, bytes] = *std::prev(after);
  return static_cast<const char *>(data) < static_cast<const char *>(begin) + bytes;
}

const tpfsdp_backend_services &services() {
  static const tpfsdp_backend_services lent = {
      {sizeof(tpfsdp_backend_services), TPFSDP_BACKEND_ABI_MAJOR, TPFSDP_BACKEND_ABI_MINOR},
      clock_ns,
      log,
      set_error,
      allocate,
      deallocate,
      store_set,
      store_get,
      poll_interrupt,
      unit_name,
      reduce,
      copy,
      dtype_bytes};
  return lent;
}

bool uses_shm() {
  const char *provider = std::getenv("TPFSDP_HOST_PROVIDER");
  return provider != nullptr && std::strcmp(provider, "shm") == 0;
}

const tpfsdp_backend_table &table() {
  static const tpfsdp_backend_table filled = [] {
    tpfsdp_backend_table t{};
    t.head = {sizeof t, TPFSDP_BACKEND_ABI_MAJOR, TPFSDP_BACKEND_ABI_MINOR};
    (uses_shm() ? tpfsdp_backend_shm_entry : tpfsdp_backend_threads_entry)(&services(), &t);
    return t;
  }();
  return filled;
}

}  // namespace host_test
