// SPDX-License-Identifier: Apache-2.0
#include "fibers.hpp"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace host_test {

namespace {

constexpr size_t STACK_BYTES = 256 << 10;

}  // namespace

const char *name_of(Point point) {
  static const char *const names[] = {"POST", "SEE",   "DONE",  "STEP", "RELEASE",  "MOVE_BEGIN", "MOVE_END",
                                      "FAIL", "RESET", "ABORT", "LIFE", "WITHDRAW", "SLEEP",      "WAKE"};
  return names[static_cast<int>(point)];
}

Fibers::Fibers(int ranks) {
  for (int r = 0; r < ranks; ++r) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->stack = std::unique_ptr<char[]>(new char[STACK_BYTES]);
  }
}

Fibers::~Fibers() = default;

void Fibers::start(unsigned low, unsigned high) {
  auto *self = reinterpret_cast<Fibers *>(static_cast<uintptr_t>(high) << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->main_stack_, &self->main_stack_bytes_);
#endif
  Fiber &fiber = *self->fibers_[static_cast<size_t>(self->current_)];
  (*fiber.body)();
  if (!self->unwinding_) self->suspend();  // a late store stays late a while
  self->drain(fiber);
  fiber.state = State::FINISHED;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, self->main_stack_, self->main_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(self->main_sanitizer_, 0);
#endif
  setcontext(&self->main_);
}

void Fibers::resume(int rank) {
  Fiber &fiber = *fibers_[static_cast<size_t>(rank)];
  current_ = rank;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&main_sanitizer_, fiber.stack.get(), STACK_BYTES);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(fiber.sanitizer, 0);
#endif
  swapcontext(&main_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(main_sanitizer_, nullptr, nullptr);
#endif
  current_ = -1;
}

void Fibers::suspend() {
  Fiber &fiber = *fibers_[static_cast<size_t>(current_)];
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.sanitizer, main_stack_, main_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(main_sanitizer_, 0);
#endif
  swapcontext(&fiber.context, &main_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.sanitizer, &main_stack_, &main_stack_bytes_);
#endif
}

std::vector<int> Fibers::ready() {
  std::vector<int> result;
  for (size_t r = 0; r < fibers_.size(); ++r)
    if (fibers_[r]->state == State::READY) result.push_back(static_cast<int>(r));
  return result;
}

void Fibers::prepare(Fiber *fiber, const std::function<void()> &body) {
  fiber->body = &body;
  fiber->state = State::READY;
  fiber->points = 0;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = STACK_BYTES;
  fiber->context.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Fibers::start), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
#if defined(__SANITIZE_THREAD__)
  fiber->sanitizer = __tsan_create_fiber(0);
#endif
}

void Fibers::run(const std::vector<std::function<void()>> &bodies, Strategy &strategy) {
#if defined(__SANITIZE_THREAD__)
  main_sanitizer_ = __tsan_get_current_fiber();
#endif
  for (size_t r = 0; r < fibers_.size(); ++r) prepare(fibers_[r].get(), bodies[r]);
  int last = -1;
  for (;;) {
    std::vector<int> runnable = ready();
    if (runnable.empty()) {
      bool asleep = false;
      for (const auto &fiber : fibers_) {
        if (fiber->state != State::ASLEEP) continue;
        asleep = true;
        fiber->state = State::READY;
      }
      if (!asleep) break;
      now_ns_ += 100'000'000;
      ++rescues_;
      continue;
    }
    last = strategy.next(*this, runnable, last);
    resume(last);
    Fiber &fiber = *fibers_[static_cast<size_t>(last)];
    if (fiber.state == State::STOPPED && fiber.epitaph) std::exchange(fiber.epitaph, {})();
  }
  unwinding_ = true;
  for (size_t r = 0; r < fibers_.size(); ++r)
    while (fibers_[r]->state == State::STOPPED) resume(static_cast<int>(r));
  unwinding_ = false;
#if defined(__SANITIZE_THREAD__)
  for (const auto &fiber : fibers_) __tsan_destroy_fiber(fiber->sanitizer);
#endif
}

void Fibers::stop_at(int rank, int64_t n, std::function<void()> epitaph) {
  fibers_[static_cast<size_t>(rank)]->stop_before = n;
  fibers_[static_cast<size_t>(rank)]->epitaph = std::move(epitaph);
}

void Fibers::drain(Fiber &fiber) {
  for (const Late &late : fiber.late) late.word->store(late.value, std::memory_order_seq_cst);
  fiber.late.clear();
}

void Fibers::at(int32_t rank, Point point, const void *, uint64_t value) {
  if (current_ < 0 || unwinding_) return;
  Fiber &fiber = *fibers_[static_cast<size_t>(rank)];
  fiber.point = point;
  fiber.value = value;
  if (fiber.points++ == fiber.stop_before) fiber.state = State::STOPPED;
  suspend();
  fiber.value = UINT64_MAX;  // passed
  // A look may pass an earlier store; anything later finds it in memory.
  if (point != Point::WAKE) drain(fiber);
}

void Fibers::store_late(int32_t rank, Word &word, uint64_t value) {
  fibers_[static_cast<size_t>(rank)]->late.push_back({&word, value});
}

void Fibers::sleep(int32_t rank, const Bell &bell, uint32_t seen) {
  if (unwinding_) {
    now_ns_ += 100'000'000;
    return;
  }
  Fiber &fiber = *fibers_[static_cast<size_t>(rank)];
  ++system_calls_;
  if (bell.load() != seen) return;
  fiber.state = State::ASLEEP;
  fiber.bell = &bell;
  suspend();
}

void Fibers::wake(int32_t, const Bell &bell) {
  ++system_calls_;
  for (const auto &fiber : fibers_)
    if (fiber->state == State::ASLEEP && fiber->bell == &bell) fiber->state = State::READY;
}

void Fibers::yield() {
  if (current_ >= 0) suspend();
}

}  // namespace host_test
