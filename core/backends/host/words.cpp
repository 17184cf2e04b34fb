// SPDX-License-Identifier: Apache-2.0
#include "words.hpp"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tpfsdp::host {

namespace {

std::memory_order order_of(Look look) {
  return look == Look::LAST ? std::memory_order_seq_cst : std::memory_order_acquire;
}

}  // namespace

Words::Words(Bell *bell, Bell *sleepers, bool private_futex, int32_t rank, Scheduler *scheduler)
    : bell_(bell), sleepers_(sleepers), private_futex_(private_futex), rank_(rank), scheduler_(scheduler) {}

#if defined(TPFSDP_HOST_SCHEDULER)
void Words::at(Point point, const void *word, uint64_t value) const {
  if (scheduler_ != nullptr) scheduler_->at(rank_, point, word, value);
}
bool Words::scheduled() const { return scheduler_ != nullptr; }
#else
void Words::at(Point, const void *, uint64_t) const {}
bool Words::scheduled() const { return false; }
#endif

void Words::publish(Word &word, uint64_t value, Point point) {
  at(point, &word, value);
#if defined(TPFSDP_MUTANT_PUBLISH_WITHOUT_SEQ_CST)
  if (scheduled())
    scheduler_->store_late(rank_, word, value);
  else
    word.store(value, std::memory_order_release);
#else
  word.store(value, std::memory_order_seq_cst);
#endif
  ring();
}

void Words::publish(Bell &word, uint32_t value, Point point) {
  at(point, &word, value);
  word.store(value, std::memory_order_seq_cst);
  ring();
}

void Words::mark(Word &word, uint64_t value, Point point) {
  at(point, &word, value);
  word.store(value, std::memory_order_release);
}

void Words::mark_before_look(Word &word, uint64_t value, Point point) {
  at(point, &word, value);
  word.store(value, std::memory_order_seq_cst);
}

template <class Value>
bool Words::claim_any(std::atomic<Value> &word, Value value, Point point) {
  at(point, &word, value);
  Value none = 0;
  const bool won = word.compare_exchange_strong(none, value, std::memory_order_seq_cst);
  ring();
  return won;
}

bool Words::claim(Word &word, uint64_t value, Point point) { return claim_any(word, value, point); }

bool Words::claim(Bell &word, uint32_t value, Point point) { return claim_any(word, value, point); }

uint64_t Words::see(const Word &word, Look look, uint64_t awaited) const {
  at(Point::SEE, &word, awaited);
  return word.load(order_of(look));
}

uint32_t Words::see(const Bell &word, Look look) const {
  at(Point::SEE, &word, 0);
  return word.load(order_of(look));
}

void Words::ring() {
  at(Point::WAKE, sleepers_, 0);
  if (sleepers_->load(std::memory_order_seq_cst) == 0) return;
  bell_->fetch_add(1, std::memory_order_seq_cst);
#if defined(TPFSDP_HOST_SCHEDULER)
  if (scheduler_ != nullptr) return scheduler_->wake(rank_, *bell_);
#endif
  // All of them: the one that would be woken may wait for another word.
  syscall(SYS_futex, bell_, private_futex_ ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Words::announce_sleep() {
  at(Point::SLEEP, sleepers_, 0);
  sleepers_->fetch_add(1, std::memory_order_seq_cst);
}

void Words::end_sleep() { sleepers_->fetch_sub(1, std::memory_order_seq_cst); }

uint32_t Words::hear() const { return bell_->load(std::memory_order_seq_cst); }

void Words::sleep(uint32_t heard, int64_t timeout_ns) {
#if defined(TPFSDP_HOST_SCHEDULER)
  if (scheduler_ != nullptr) return scheduler_->sleep(rank_, *bell_, heard);
#endif
  timespec time{};
  time.tv_sec = timeout_ns / 1'000'000'000;
  time.tv_nsec = timeout_ns % 1'000'000'000;
  syscall(SYS_futex, bell_, private_futex_ ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT, heard, &time, nullptr, 0);
}

}  // namespace tpfsdp::host
