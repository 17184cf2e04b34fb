// SPDX-License-Identifier: Apache-2.0
#include "comm/backend_call.hpp"

#include "comm/rank.hpp"
#include "device/kernels.hpp"
#include "memory/buffer.hpp"
#include "tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tpfsdp {
namespace {

constexpr int64_t kPollNs = 100'000'000;

// Runs what may throw on behalf of a transport that must not see exceptions.
template <class Body>
Status shielded(tpfsdp_backend_call *call, Body &&body) noexcept {
  try {
    return body();
  } catch (const Failure &failure) {
    try {
      if (call) call->message = failure.what();
    } catch (const std::bad_alloc &) {
      return TPFSDP_ERR_OUT_OF_MEMORY;
    }
    return failure.status();
  } catch (const std::bad_alloc &) {
    return TPFSDP_ERR_OUT_OF_MEMORY;
  } catch (...) {
    return TPFSDP_ERR_INTERNAL;
  }
}

void log(tpfsdp_backend_call *call, int32_t level, const char *message) {
  if (call) call->rank.log(level, "comm", message);
}

void set_error(tpfsdp_backend_call *call, tpfsdp_status, int32_t rank, int64_t sequence, const char *message) {
  if (!call) return;
  call->failed_rank = rank;
  call->sequence = sequence;
  shielded(call, [&] {
    if (*message) call->message = message;  // else what a service has left
    return TPFSDP_OK;
  });
}

void *allocate(int64_t size_bytes) {
  void *data = nullptr;
  shielded(nullptr, [&]() -> Status {
    data = map_pages(size_bytes);
    return TPFSDP_OK;
  });
  return data;
}

tpfsdp_status store_set(tpfsdp_backend_call *call, const char *key, const void *value, int64_t size_bytes) {
  return shielded(call, [&]() -> Status {
    call->rank.store().set(key, std::string(static_cast<const char *>(value), static_cast<size_t>(size_bytes)));
    return TPFSDP_OK;
  });
}

// An interrupt asked every 100 ms; the operation as the public headers write it, "all_gather".
tpfsdp_status poll_interrupt(tpfsdp_backend_call *call, const char *operation, int32_t unit, int64_t waited_ns) {
  return shielded(call, [&]() -> Status {
    Counters &counters = call->rank.recorder().counters;
    if (waited_ns <= call->waited_ns || call->waited_ns == 0) {
      call->waited_ns = 0;
      ++counters.waits;
    }
    counters.wait_ns += waited_ns - call->waited_ns;
    call->waited_ns = waited_ns;
    std::array<char, 64> name{};
    std::strncpy(name.data(), operation, name.size() - 1);
    std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == ' '; }, '_');
    const auto waited_ms = static_cast<int32_t>(std::min<int64_t>(waited_ns / 1'000'000, INT32_MAX));
    const Status answer = call->rank.poll_interrupt(waited_ms, name.data(), call->rank.unit_name(unit));
    if (answer >= 0) return TPFSDP_OK;
    call->backend_code = answer;
    return TPFSDP_ERR_CANCELLED;
  });
}

tpfsdp_status store_get(tpfsdp_backend_call *call, const char *key, void *value, int64_t size_bytes,
                        int64_t deadline_ns) {
  return shielded(call, [&]() -> Status {
    const int64_t began = monotonic_ns();
    for (;;) {
      const int64_t now = monotonic_ns();
      const std::optional<std::string> found = call->rank.store().find(key, std::min(deadline_ns, now + kPollNs));
      if (found) {
        if (static_cast<int64_t>(found->size()) != size_bytes)
          fail(TPFSDP_ERR_INTERNAL, "the store has ", found->size(), " bytes under \"", key, "\", not ", size_bytes);
        std::memcpy(value, found->data(), found->size());
        return TPFSDP_OK;
      }
      if (now >= deadline_ns) return TPFSDP_ERR_TIMEOUT;
      if (const Status status = poll_interrupt(call, "joining", -1, now - began); status < 0) return status;
    }
  });
}

const char *unit_name(tpfsdp_backend_call *call, int32_t unit) { return call ? call->rank.unit_name(unit) : ""; }

tpfsdp_status reduce_elements(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
                              tpfsdp_dtype reduce_dtype, void *output, tpfsdp_dtype output_dtype, int64_t count,
                              double divisor, tpfsdp_bool accumulate) {
  return shielded(nullptr, [&]() -> Status {
    reduce(op, inputs, input_count, dtype, reduce_dtype, output, output_dtype, count, divisor, accumulate != 0);
    return TPFSDP_OK;
  });
}

int64_t bytes_of(tpfsdp_dtype dtype, int64_t count) {
  int64_t bytes = -1;
  shielded(nullptr, [&]() -> Status {
    bytes = dtype_bytes(dtype, count);
    return TPFSDP_OK;
  });
  return bytes;
}

}  // namespace

const tpfsdp_backend_services &backend_services() {
  static const tpfsdp_backend_services services = {
      {sizeof(tpfsdp_backend_services), TPFSDP_BACKEND_ABI_MAJOR, TPFSDP_BACKEND_ABI_MINOR},
      [] { return monotonic_ns(); },
      log,
      set_error,
      allocate,
      unmap_pages,
      store_set,
      store_get,
      poll_interrupt,
      unit_name,
      reduce_elements,
      [](void *target, const void *source, int64_t size_bytes) { copy_bytes(target, source, size_bytes); },
      bytes_of,
  };
  return services;
}

ErrorDetail failure_of(const tpfsdp_backend_call &call, Status status) {
  ErrorDetail detail;
  detail.status = status;
  detail.rank = call.failed_rank;
  detail.backend_code = call.backend_code;
  detail.sequence = call.sequence;
  detail.backend = call.rank.backend().name;
  detail.message =
      cat(call.rank.describe(), ": ",
          call.message.empty() ? cat("the backend gave status ", status, " without a text") : call.message);
  return detail;
}

}  // namespace tpfsdp
