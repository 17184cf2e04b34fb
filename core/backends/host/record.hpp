// SPDX-License-Identifier: Apache-2.0
// What a post says beyond its sequence, and the fingerprint by which ranks find that they run different programs.
#ifndef TPFSDP_BACKENDS_HOST_RECORD_HPP
#define TPFSDP_BACKENDS_HOST_RECORD_HPP

#include <cstdint>
#include <string>

#include <tpfsdp/backend.h>

#include "layout.hpp"
#include "segment.hpp"

namespace tpfsdp::host {

struct Comm;

/// In place of an operation of the library: a common region is made.
inline constexpr tpfsdp_backend_kind KIND_COMMON_REGION = 64;

/// An all-gather in memory that all ranks have mapped.
constexpr bool is_in_common(tpfsdp_backend_kind kind) {
  return kind == TPFSDP_BACKEND_KIND_SHARED_GATHER || kind == TPFSDP_BACKEND_KIND_MAPPED_GATHER;
}
/// The verdict is all there is to it: nothing is shown, and nothing moves.
constexpr bool is_verdict_only(tpfsdp_backend_kind kind) {
  return kind == TPFSDP_BACKEND_KIND_BARRIER || is_in_common(kind);
}

/// What all ranks must agree on and what has no field of its own in every record.
struct Agreed {
  int64_t element_count;
  int64_t counts_length;  ///< 0 in records with inline data, which have no room for it; the fingerprint covers it
  double divisor;
  uint64_t common;  ///< the number of the common region, 0: none
};

/// What a RESET says, in place of data.
struct ResetNote {
  int64_t windows_opened;
};

/// The body of op's record, without place and data.
/// window: of data that is staged, from 0.
Record::Body body_of(const tpfsdp_backend_op &op, uint8_t phase, int32_t window, uint32_t epoch);
/// Tells peers that `bytes` of data lie at `place`.
void show(Record::Body *body, std::byte *data, const tpfsdp_backend_op &op, const Place &place, uint64_t bytes);
/// Puts the data into the record: `bytes` of it, at most INLINE_BYTES.
void put_inline(Record::Body *body, std::byte *data, const tpfsdp_backend_op &op, const void *source, size_t bytes);

Agreed agreed(const Record &record);
/// How much peers may read of what an OP shows or carries.
uint64_t shown_bytes(const Record &record);
ResetNote reset_note(const Record &record);
/// "all-gather f32, 100 elements, counts 4/1f00, epoch 2": every field that is compared.
std::string fields_text(const Comm &comm, tpfsdp_backend_call *call, const Record &record);

}  // namespace tpfsdp::host

#endif
