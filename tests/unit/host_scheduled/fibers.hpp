// SPDX-License-Identifier: Apache-2.0
// Ranks as fibers of one thread: a strategy says which of them goes on at each load and store of a shared word. Nothing
// else decides, so a run can be repeated, searched and steered. Time is virtual: when all sleep, 100 ms pass.
#ifndef TPFSDP_TESTS_UNIT_HOST_SCHEDULED_FIBERS_HPP
#define TPFSDP_TESTS_UNIT_HOST_SCHEDULED_FIBERS_HPP

#include <ucontext.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/host/words.hpp"

namespace host_test {

using tpfsdp::host::Bell;
using tpfsdp::host::Point;
using tpfsdp::host::Word;

const char *name_of(Point point);

class Fibers;

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// One of `ready` (ranks, ascending, never empty). last: who ran, -1 at the start.
  virtual int next(const Fibers &fibers, const std::vector<int> &ready, int last) = 0;
};

class Fibers final : public tpfsdp::host::Scheduler {
 public:
  explicit Fibers(int ranks);
  ~Fibers() override;

  /// Runs all bodies to their end; a stopped rank is unwound after the others.
  void run(const std::vector<std::function<void()>> &bodies, Strategy &strategy);
  /// The rank stops before its n-th point, as if killed; `epitaph` runs then, outside any fiber.
  void stop_at(int rank, int64_t n, std::function<void()> epitaph);

  void at(int32_t rank, Point point, const void *word, uint64_t value) override;
  void store_late(int32_t rank, Word &word, uint64_t value) override;
  void sleep(int32_t rank, const Bell &bell, uint32_t seen) override;
  void wake(int32_t rank, const Bell &bell) override;
  /// Lets others run, without a word.
  void yield();

  int current() const { return current_; }
  int64_t now_ns() const { return now_ns_; }
  /// How often all slept and only the 100 ms slice went on: a lost wake-up, or a wait for what never comes.
  int rescues() const { return rescues_; }
  /// How often a rank would have entered the kernel, to sleep or to wake.
  int64_t system_calls() const { return system_calls_; }
  bool stopped(int rank) const { return fibers_[static_cast<size_t>(rank)]->state == State::STOPPED; }
  int64_t points(int rank) const { return fibers_[static_cast<size_t>(rank)]->points; }
  /// The point before which the rank waits.
  Point point(int rank) const { return fibers_[static_cast<size_t>(rank)]->point; }
  uint64_t value(int rank) const { return fibers_[static_cast<size_t>(rank)]->value; }

 private:
  enum class State { READY, ASLEEP, STOPPED, FINISHED };
  struct Late {
    Word *word;
    uint64_t value;
  };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    const std::function<void()> *body = nullptr;
    State state = State::FINISHED;
    const Bell *bell = nullptr;
    Point point = Point::SEE;
    uint64_t value = 0;
    int64_t points = 0;
    int64_t stop_before = -1;
    std::function<void()> epitaph;
    std::deque<Late> late;
    void *sanitizer = nullptr;  ///< its fake stack (ASan) or its fiber (TSan)
  };

  static void start(unsigned low, unsigned high);
  void prepare(Fiber *fiber, const std::function<void()> &body);
  void resume(int rank);
  void suspend();
  void drain(Fiber &fiber);
  std::vector<int> ready();

  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t main_{};
  void *main_sanitizer_ = nullptr;
  const void *main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
  int current_ = -1;
  bool unwinding_ = false;
  int64_t now_ns_ = 1'000'000'000;
  int rescues_ = 0;
  int64_t system_calls_ = 0;
};

}  // namespace host_test

#endif
