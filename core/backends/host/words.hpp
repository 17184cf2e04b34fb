// SPDX-License-Identifier: Apache-2.0
// Every word that crosses ranks is stored and looked at here. A publishing store, the look at `sleepers` and the last
// look before sleep are seq_cst operations (acquire and release alone lose wake-ups, on x86 too); all else is acquire
// and release. Operations, not fences: ThreadSanitizer does not model fences.
#ifndef TPFSDP_BACKENDS_HOST_WORDS_HPP
#define TPFSDP_BACKENDS_HOST_WORDS_HPP

#include <atomic>
#include <cstdint>

namespace tpfsdp::host {

using Word = std::atomic<uint64_t>;
using Bell = std::atomic<uint32_t>;

/// How a look at a peer's word is ordered: the last one before sleep or before an error is returned is seq_cst.
enum class Look { ACQUIRE, LAST };

/// What a rank is about to do to a word: the places where a test can hold it.
enum class Point {
  POST,
  SEE,
  DONE,
  STEP,
  RELEASE,
  MOVE_BEGIN,
  MOVE_END,
  FAIL,
  RESET,
  ABORT,
  LIFE,
  WITHDRAW,
  SLEEP,
  WAKE
};

/// A test's hand on the ranks of a comm, compiled in with TPFSDP_HOST_SCHEDULER only. It comes with the comm: fibers of
/// one thread can each be a rank.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Before each load and store; may let other ranks run.
  virtual void at(int32_t rank, Point point, const void *word, uint64_t value) = 0;
  /// A store that is not seq_cst: it may reach memory after later loads of the same rank.
  virtual void store_late(int32_t rank, Word &word, uint64_t value) = 0;
  /// Returns when the bell was woken after it held `seen`, or when the wait's time is over.
  virtual void sleep(int32_t rank, const Bell &bell, uint32_t seen) = 0;
  virtual void wake(int32_t rank, const Bell &bell) = 0;
};

/// One rank's access to the words of one comm.
class Words {
 public:
  Words(Bell *bell, Bell *sleepers, bool private_futex, int32_t rank, Scheduler *scheduler);

  /// Stores a word that peers wait for, and wakes them.
  void publish(Word &word, uint64_t value, Point point);
  void publish(Bell &word, uint32_t value, Point point);
  /// Stores a word that nobody sleeps on (moving, chunk).
  void mark(Word &word, uint64_t value, Point point);
  /// As mark, ordered before every later look of this rank: one half of a withdrawal's hand-shake.
  void mark_before_look(Word &word, uint64_t value, Point point);
  /// As publish, but only over zero: the first writer wins. False where another was first.
  bool claim(Word &word, uint64_t value, Point point);
  bool claim(Bell &word, uint32_t value, Point point);
  uint64_t see(const Word &word, Look look, uint64_t awaited = 0) const;
  uint32_t see(const Bell &word, Look look) const;

  void ring();
  /// Between announce and withdraw every publisher rings; hear before the last look, sleep after it.
  void announce_sleep();
  void end_sleep();
  uint32_t hear() const;
  void sleep(uint32_t heard, int64_t timeout_ns);
  /// True if a test drives the ranks: then nobody spins.
  bool scheduled() const;

 private:
  void at(Point point, const void *word, uint64_t value) const;
  template <class Value>
  bool claim_any(std::atomic<Value> &word, Value value, Point point);

  Bell *bell_;
  Bell *sleepers_;
  bool private_futex_;
  int32_t rank_;
  Scheduler *scheduler_;
};

}  // namespace tpfsdp::host

#endif
