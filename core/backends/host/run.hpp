// SPDX-License-Identifier: Apache-2.0
// Moving the bytes of a sequence whose verdict is OK: one pass over peers' memory, in chunks that peers can watch.
#ifndef TPFSDP_BACKENDS_HOST_RUN_HPP
#define TPFSDP_BACKENDS_HOST_RUN_HPP

#include <cstddef>
#include <cstdint>
#include <utility>

#include "comm.hpp"

namespace tpfsdp::host {

inline constexpr int64_t CHUNK_BYTES = 1 << 20;

/// Says on the lane which sequence this rank moves, for the progress clock and for withdrawals.
class Moving {
 public:
  Moving(Comm &comm, uint64_t sequence, bool caller_memory);
  ~Moving();
  Moving(const Moving &) = delete;
  Moving &operator=(const Moving &) = delete;
  void chunk();

 private:
  Comm &comm_;
  bool caller_memory_;
};

/// A part of what a rank shows at a sequence, in bytes.
struct Part {
  int32_t rank;
  int64_t offset;
  int64_t bytes;
};
/// Where the part lies; null if it reaches beyond what that rank shows.
const std::byte *source_of(const Comm &comm, uint64_t sequence, const Part &part);
/// The error for such a part. piece: its number, -1 for the kinds without.
Outcome outside(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, const Part &part, int64_t piece);
/// An all-reduce's slice of a rank: elements [first, second).
std::pair<int64_t, int64_t> slice_of(const Comm &comm, int64_t element_count, int32_t rank);

/// *out_consumed 0: the sequence stays open, for the failure is this rank's own.
Outcome run(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool *out_consumed);

Outcome gather(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving);
Outcome broadcast(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving);
Outcome gather_slices(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving);
Outcome reduce_scatter(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving);
/// Slice of this rank, or everything if the data travels in the records.
Outcome all_reduce(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, Moving *moving);

}  // namespace tpfsdp::host

#endif
