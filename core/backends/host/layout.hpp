// SPDX-License-Identifier: Apache-2.0
// The pages of a comm that all its ranks see: page 0, then one lane of words a rank, then the error texts. No line of
// 128 bytes has two writers except those of `abort` and `bell`. A rank that dies leaves every word valid.
#ifndef TPFSDP_BACKENDS_HOST_LAYOUT_HPP
#define TPFSDP_BACKENDS_HOST_LAYOUT_HPP

#include <cstddef>
#include <cstdint>

#include "words.hpp"

namespace tpfsdp::host {

/// Collectives in flight per comm. With R = 2 D + 2 records no unread one is overwritten: a rank whose last read
/// verdict is v posts at most v + D, one failure and one reset; a peer reads nothing older than v - D + 1.
inline constexpr uint64_t IN_FLIGHT = 7;
inline constexpr uint64_t RECORDS = 2 * IN_FLIGHT + 2;
inline constexpr size_t LINE_BYTES = 128;
inline constexpr size_t PAGE_BYTES = 4096;
inline constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;
inline constexpr size_t INLINE_BYTES = 64;
inline constexpr size_t TEXT_BYTES = 1024;
inline constexpr int32_t MAX_RANKS = 4096;

/// What a record says.
enum class Post : uint8_t { NONE, OP, ERR, RESET, CLOSE };

/// One post. `seq` is stored last; a record without it does not exist. Written once, never changed.
struct alignas(LINE_BYTES) Record {
  struct Body {
    Post post;
    uint8_t kind;  ///< tpfsdp_backend_kind
    uint8_t op;    ///< tpfsdp_reduce_op
    uint8_t dtype;
    uint8_t reduce_dtype;
    uint8_t output_dtype;
    uint8_t flags;  ///< FLAG_*
    uint8_t phase;  ///< of an all-reduce: 1 or 2, else 0
    int32_t unit;
    int32_t source;  ///< root of a broadcast, -1
    uint32_t epoch;
    int32_t code;  ///< ERR: its status; OP: which window of staged data; if the data travels inline: its bytes
    uint64_t counts_hash;
    uint64_t fingerprint;  ///< hash of all that ranks must agree on
    uint64_t place;        ///< where the data is; if it travels inline: the element count
    uint64_t region;       ///< whose region; if it travels inline: the bits of the divisor
  };
  Word seq;
  Body body;
  alignas(8) std::byte data[INLINE_BYTES];  ///< the data itself, or what does not fit above (record.hpp)
};
inline constexpr uint8_t FLAG_INLINE = 1;         ///< the data is in the record
inline constexpr uint8_t FLAG_CALLER_MEMORY = 2;  ///< the data is no region's: its owner may take it back

enum class Life : uint32_t { UNBORN, ALIVE, CLOSED, LEFT, GONE };

/// One rank's words; the rank is the only writer.
struct alignas(PAGE_BYTES) Lane {
  Record records[RECORDS];
  alignas(LINE_BYTES) Word done;  ///< sequences up to here are finished or given up; nothing of theirs is read any more
  Word step;                      ///< sequence at the end of the last backward
  alignas(LINE_BYTES) Word moving;  ///< sequence whose bytes this rank moves now, 0: none
  Word chunk;                       ///< counts while it moves
  Bell life;
  alignas(LINE_BYTES) Word withdrawn;  ///< caller memory of sequences up to here must not be read any more
};
static_assert(sizeof(Record) == LINE_BYTES && offsetof(Record, data) == 64);
static_assert(sizeof(Lane) == PAGE_BYTES, "a lane is one page");
static_assert(Word::is_always_lock_free && Bell::is_always_lock_free);

struct alignas(PAGE_BYTES) FrontPage {
  uint64_t magic;
  uint32_t version;
  uint32_t world_size;
  uint32_t records;                ///< of a lane
  uint64_t session;                ///< hash of the comm's name
  alignas(LINE_BYTES) Word abort;  ///< the first cause, 0: none (failure.hpp)
  alignas(LINE_BYTES) Bell bell;
  Bell sleepers;
};
static_assert(sizeof(FrontPage) == PAGE_BYTES);
inline constexpr uint64_t LAYOUT_MAGIC = 0x3154534f48545046;  // "FPTHOST1"
inline constexpr uint32_t LAYOUT_VERSION = 2;

/// Texts of a rank: one beside each record, with its lifetime, and one for the abort that this rank caused. They lie
/// behind the lanes, so that a comm without errors never touches them.
struct Texts {
  char of_record[RECORDS][TEXT_BYTES];
  struct Abort {
    int32_t status;
    int32_t rank;  ///< at fault, -1: unknown
    int64_t sequence;
    char text[TEXT_BYTES - 16];
  } of_abort;
};
static_assert(sizeof(Texts) == (RECORDS + 1) * TEXT_BYTES);

/// Finds one's way in the pages.
class Layout {
 public:
  Layout(std::byte *pages, int32_t world_size) : pages_(pages), world_size_(world_size) {}
  static size_t word_bytes(int32_t world_size) { return PAGE_BYTES * (1 + static_cast<size_t>(world_size)); }
  static size_t bytes(int32_t world_size) {
    const size_t all = word_bytes(world_size) + sizeof(Texts) * static_cast<size_t>(world_size);
    return (all + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  }
  FrontPage &front() const { return *reinterpret_cast<FrontPage *>(pages_); }
  Lane &lane(int32_t rank) const {
    return *reinterpret_cast<Lane *>(pages_ + PAGE_BYTES * (1 + static_cast<size_t>(rank)));
  }
  Texts &texts(int32_t rank) const {
    return *reinterpret_cast<Texts *>(pages_ + word_bytes(world_size_) + sizeof(Texts) * static_cast<size_t>(rank));
  }
  Record &record(int32_t rank, uint64_t sequence) const { return lane(rank).records[sequence % RECORDS]; }

 private:
  std::byte *pages_;
  int32_t world_size_;
};

}  // namespace tpfsdp::host

#endif
