// SPDX-License-Identifier: Apache-2.0
// What happened on a rank: counters, always; events, in a ring whose size the host chose (0: none). Exact, since tests
// assert on it; at most tens of nanoseconds an event.
#pragma once

#include "base/error.hpp"

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tpfsdp {

// The numbers of trace.h.
enum class EventKind : int32_t {
  kUnshard = 1,
  kReshard = 2,
  kPostBackward = 3,
  kReduce = 4,
  kCollective = 5,
  kHook = 6,
  kWrite = 7,
  kMark = 8,
  kWaitUnshard = 9,
};

// Strings are static or interned by the recorder.
struct Event {
  EventKind kind = EventKind::kMark;
  int32_t training_state = 0;
  int32_t sharded_state = 0;
  tpfsdp_reduce_op op = 0;
  tpfsdp_dtype dtype = 0;
  int32_t world_size = 0;
  int64_t index = 0;
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  int64_t count = 0;
  int64_t output_count = 0;
  int64_t sequence = 0;
  const char *unit = "";
  const char *group = "";
  const char *operation = "";
  const char *detail = "";
};

struct Counters {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t other_collectives = 0;
  int64_t gathered_bytes = 0;
  int64_t reduced_bytes = 0;
  int64_t wire_bytes = 0;
  int64_t filled_bytes = 0;
  int64_t copies = 0;
  int64_t copied_bytes = 0;
  int64_t prefetch_hits = 0;
  int64_t prefetch_misses = 0;
  int64_t spare_slots = 0;
  int64_t deferred_reshards = 0;
  int64_t waits = 0;
  int64_t wait_ns = 0;
  int64_t allocations = 0;
};

int64_t monotonic_ns() noexcept;

class Recorder {
 public:
  explicit Recorder(int32_t event_capacity);

  Counters counters;

  bool is_on() const { return !ring_.empty(); }
  // Sets index, which it returns, and start_ns where it is 0. Without a ring only the index moves.
  int64_t record(Event event) noexcept;
  // The duration of an event recorded when it began; nothing if the ring has forgotten it.
  void end(int64_t index, int64_t end_ns) noexcept;
  // A copy that lives as long as the recorder; allocates for new texts only.
  const char *intern(std::string_view text);

  int64_t kept() const;
  const Event &event_at(int64_t position) const;  // 0: the oldest kept; throws NOT_FOUND
  bool events_lost() const { return lost_; }
  void clear() noexcept;
  std::string chrome_trace(int32_t rank) const;

 private:
  std::vector<Event> ring_;
  int64_t next_ = 0;   // index of the next event
  int64_t first_ = 0;  // index of the oldest kept
  bool lost_ = false;
  std::unordered_set<std::string> texts_;
};

}  // namespace tpfsdp
