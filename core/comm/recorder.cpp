// SPDX-License-Identifier: Apache-2.0
#include "comm/recorder.hpp"

#include <ctime>

#include <algorithm>

namespace tpfsdp {

int64_t monotonic_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

Recorder::Recorder(int32_t event_capacity) {
  if (event_capacity < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "event_capacity is ", event_capacity, "; it is 0 (none) or a number of events");
  ring_.resize(static_cast<size_t>(event_capacity));
}

int64_t Recorder::record(Event event) noexcept {
  event.index = next_++;
  if (ring_.empty()) {
    first_ = next_;
    return event.index;
  }
  const auto capacity = static_cast<int64_t>(ring_.size());
  if (next_ - first_ > capacity) {
    first_ = next_ - capacity;
    lost_ = true;
  }
  if (event.start_ns == 0) event.start_ns = monotonic_ns();
  ring_[static_cast<size_t>(event.index % capacity)] = event;
  return event.index;
}

void Recorder::end(int64_t index, int64_t end_ns) noexcept {
  if (index < first_ || index >= next_) return;
  Event &event = ring_[static_cast<size_t>(index) % ring_.size()];
  event.duration_ns = std::max<int64_t>(end_ns - event.start_ns, 0);
}

const char *Recorder::intern(std::string_view text) {
  if (text.empty()) return "";
  return texts_.emplace(text).first->c_str();
}

int64_t Recorder::kept() const { return next_ - first_; }

const Event &Recorder::event_at(int64_t position) const {
  if (position < 0 || position >= kept()) {
    fail(TPFSDP_ERR_NOT_FOUND, "there is no event at position ", position, ": ", kept(), " are kept of ", next_,
         " recorded; context_options.event_capacity is ", ring_.size());
  }
  return ring_[static_cast<size_t>(first_ + position) % ring_.size()];
}

void Recorder::clear() noexcept {
  first_ = next_;
  lost_ = false;
}

}  // namespace tpfsdp
