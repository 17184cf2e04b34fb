// SPDX-License-Identifier: Apache-2.0
#include "record.hpp"

#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "comm.hpp"
#include "region.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

/// FNV-1a over 64-bit words, with a final mix so that neighbouring counts differ in all bits.
class Hash {
 public:
  void add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x100000001b3ULL;
    hash_ ^= hash_ >> 29;
  }
  uint64_t value() const { return (hash_ ^ (hash_ >> 32)) * 0x9e3779b97f4a7c15ULL; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

/// In place of data in the record of an OP that shows its data elsewhere.
struct Shown {
  Agreed agreed;
  uint64_t bytes;
};
static_assert(sizeof(Shown) <= INLINE_BYTES && offsetof(Shown, agreed) == 0);

uint64_t fingerprint(const Record::Body &body, const tpfsdp_backend_op &op) {
  Hash hash;
  hash.add(static_cast<uint64_t>(body.kind) | static_cast<uint64_t>(body.op) << 8 |
           static_cast<uint64_t>(body.dtype) << 16 | static_cast<uint64_t>(body.reduce_dtype) << 24 |
           static_cast<uint64_t>(body.output_dtype) << 32 | static_cast<uint64_t>(body.phase) << 40);
  hash.add(static_cast<uint32_t>(body.unit));
  hash.add(static_cast<uint32_t>(body.source));
  hash.add(static_cast<uint64_t>(body.epoch) | static_cast<uint64_t>(body.code) << 32);
  hash.add(body.counts_hash);
  hash.add(static_cast<uint64_t>(op.element_count));
  hash.add(static_cast<uint64_t>(op.counts_length));
  hash.add(std::bit_cast<uint64_t>(op.divisor));
  hash.add(common_number(op));
  return hash.value();
}

}  // namespace

Record::Body body_of(const tpfsdp_backend_op &op, uint8_t phase, int32_t window, uint32_t epoch) {
  Record::Body body{};
  body.post = Post::OP;
  body.kind = static_cast<uint8_t>(op.kind);
  body.op = static_cast<uint8_t>(op.op);
  body.dtype = static_cast<uint8_t>(op.dtype);
  body.reduce_dtype = static_cast<uint8_t>(op.reduce_dtype);
  body.output_dtype = static_cast<uint8_t>(op.output_dtype);
  body.phase = phase;
  body.code = window;
  body.unit = op.unit;
  body.source = op.source;
  body.epoch = epoch;
  body.counts_hash = op.counts_hash;
  body.fingerprint = fingerprint(body, op);
  return body;
}

void show(Record::Body *body, std::byte *data, const tpfsdp_backend_op &op, const Place &place, uint64_t bytes) {
  body->region = place.region;
  body->place = place.offset;
  const Shown shown{{op.element_count, op.counts_length, op.divisor, common_number(op)}, bytes};
  std::memcpy(data, &shown, sizeof shown);
}

void put_inline(Record::Body *body, std::byte *data, const tpfsdp_backend_op &op, const void *source, size_t bytes) {
  body->flags |= FLAG_INLINE;
  body->code = static_cast<int32_t>(bytes);
  body->place = static_cast<uint64_t>(op.element_count);
  body->region = std::bit_cast<uint64_t>(op.divisor);
  if (bytes > 0) std::memcpy(data, source, bytes);
}

Agreed agreed(const Record &record) {
  Agreed result{};
  if ((record.body.flags & FLAG_INLINE) != 0) {
    result.element_count = static_cast<int64_t>(record.body.place);
    result.divisor = std::bit_cast<double>(record.body.region);
  } else {
    std::memcpy(&result, record.data, sizeof result);
  }
  return result;
}

uint64_t shown_bytes(const Record &record) {
  if ((record.body.flags & FLAG_INLINE) != 0) return static_cast<uint64_t>(record.body.code);
  Shown shown{};
  std::memcpy(&shown, record.data, sizeof shown);
  return shown.bytes;
}

ResetNote reset_note(const Record &record) {
  ResetNote note{};
  std::memcpy(&note, record.data, sizeof note);
  return note;
}

std::string fields_text(const Comm &comm, tpfsdp_backend_call *call, const Record &record) {
  const Record::Body &body = record.body;
  if (body.post != Post::OP) return name_of(body);
  static const char *const ops[] = {"", " sum", " avg", " min", " max"};
  const Agreed rest = agreed(record);
  std::string text = name_of_kind(body.kind);
  if (body.op < std::size(ops)) text += ops[body.op];
  if (body.kind != TPFSDP_BACKEND_KIND_BARRIER) text += std::string(" ") + name_of_dtype(body.dtype);
  if (body.reduce_dtype != 0) {
    char divisor[32];
    std::snprintf(divisor, sizeof divisor, "%.17g", rest.divisor);
    text += std::string(" reduced in ") + name_of_dtype(body.reduce_dtype) + " to " + name_of_dtype(body.output_dtype) +
            " divided by " + divisor;
  }
  if (body.source >= 0) text += " from rank " + std::to_string(body.source);
  if (body.phase != 0) text += " part " + std::to_string(body.phase);
  if ((body.flags & FLAG_INLINE) == 0 && body.code > 0) text += " window " + std::to_string(body.code);
  text += unit_text(comm, call, body.unit);
  if (rest.common != 0) text += " in the common region of sequence " + std::to_string(rest.common);
  char counts[64];
  std::snprintf(counts, sizeof counts, "%016llx", static_cast<unsigned long long>(body.counts_hash));
  text += ", " + std::to_string(rest.element_count) + " elements, counts ";
  if ((body.flags & FLAG_INLINE) == 0) text += std::to_string(rest.counts_length) + "/";
  return text + counts + ", epoch " + std::to_string(body.epoch);
}

}  // namespace tpfsdp::host
