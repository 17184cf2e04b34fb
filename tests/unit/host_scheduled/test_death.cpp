// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, one of which is killed for good before each of its loads and stores of a shared word in
// turn. The others end by themselves, with the right values or with PEER_LOST naming it, and agree on the write window.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <vector>

#include "backends/host/comm.hpp"
#include "unit/host/ranks.hpp"

namespace host_test {
namespace {

namespace host = tpfsdp::host;

constexpr int WORLD = 3;
constexpr int VICTIM = 2;
constexpr int64_t PART = 1000;
constexpr int64_t LARGE = 200'000;  // goes through two staged windows

/// What the processes of one run share beside the engine.
struct Board {
  std::atomic<int> set{0};  ///< the store's only key is there
  int64_t bytes = 0;
  char value[256] = {};
  struct Report {
    std::atomic<int> ended{0};
    tpfsdp_status status = TPFSDP_OK;
    int32_t at_fault = -1;
    int operations = 0;  ///< that ended well
    bool wrong = false;  ///< one of them with wrong values
    bool window = false;
    int64_t points = 0;
    char text[300] = {};
  } reports[WORLD];
};
Board *board = nullptr;

tpfsdp_status set_on_board(tpfsdp_backend_call *, const char *, const void *value, int64_t bytes) {
  std::memcpy(board->value, value, static_cast<size_t>(bytes));
  board->bytes = bytes;
  board->set = 1;
  return TPFSDP_OK;
}

tpfsdp_status get_from_board(tpfsdp_backend_call *, const char *, void *value, int64_t bytes, int64_t) {
  while (board->set == 0) usleep(500);
  std::memcpy(value, board->value, static_cast<size_t>(bytes));
  return board->bytes == bytes ? TPFSDP_OK : TPFSDP_ERR_NOT_FOUND;
}

/// Real words and real sleep, and death at the n-th point.
class KillAt final : public host::Scheduler {
 public:
  explicit KillAt(int64_t n) : left_(n) {}
  void at(int32_t, host::Point, const void *, uint64_t) override {
    ++passed;
    if (left_ > 0 && --left_ == 0) kill(getpid(), SIGKILL);
  }
  void store_late(int32_t, host::Word &word, uint64_t value) override { word.store(value); }
  void sleep(int32_t, const host::Bell &bell, uint32_t seen) override {
    const timespec slice{0, 100'000'000};
    syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &slice, nullptr, 0);
  }
  void wake(int32_t, const host::Bell &bell) override {
    syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  int64_t passed = 0;

 private:
  int64_t left_;
};

/// A step in small: gather, reduce, an all-reduce of the caller's memory, the window, the end.
void live(Rank &rank, Board::Report &report) {
  const auto ends_well = [&](tpfsdp_status status) {
    if (status == TPFSDP_OK) return ++report.operations > 0;
    report.status = status;
    report.at_fault = rank.call.at_fault;
    std::strncpy(report.text, rank.call.text.c_str(), sizeof report.text - 1);
    return false;
  };
  void *data = nullptr;
  tpfsdp_backend_region *region = nullptr;
  if (!ends_well(table().region_create(rank.call.handle(), rank.comm, WORLD * PART * 4, &data, &region))) return;
  auto *shown = static_cast<float *>(data);
  std::fill(shown, shown + WORLD * PART, static_cast<float>(rank.rank + 1));
  std::vector<float> all(WORLD * PART), mine(PART), large(LARGE, static_cast<float>(rank.rank + 1));
  if (!ends_well(rank.run(all_gather(rank, shown, all.data(), {PART, PART, PART}, region)))) return;
  for (int64_t i = 0; i < WORLD * PART; ++i)
    report.wrong = report.wrong || all[static_cast<size_t>(i)] != static_cast<float>(1 + i / PART);
  if (!ends_well(rank.run(reduce_scatter(rank, shown, mine.data(), {PART, PART, PART}, region)))) return;
  report.wrong = report.wrong || std::any_of(mine.begin(), mine.end(), [](float v) { return v != 6.0F; });
  if (!ends_well(rank.run(all_reduce(large.data(), large.data(), LARGE)))) return;
  report.wrong = report.wrong || std::any_of(large.begin(), large.end(), [](float v) { return v != 6.0F; });
  if (!ends_well(rank.window())) return;
  report.window = true;
  if (!ends_well(rank.wait_read(rank.last))) return;
  table().region_destroy(region);
  ends_well(rank.shutdown());
}

[[noreturn]] void be_rank(int number, int64_t dies_at) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  tpfsdp_backend_services lent = services();
  lent.store_set = set_on_board;
  lent.store_get = get_from_board;
  Store unused;
  Rank rank(number, WORLD, &unused);
  KillAt scheduler(number == VICTIM ? dies_at : 0);
  const tpfsdp_backend_comm_options options{sizeof options, number, WORLD, 20'000, 20'000, 20'000, "world"};
  host::Comm *comm = nullptr;
  Board::Report &report = board->reports[number];
  const host::Outcome joined = host::create(lent, host::shm_provider(), rank.call.handle(), options, &scheduler, &comm);
  if (joined.ok()) {
    rank.comm = reinterpret_cast<tpfsdp_backend_comm *>(comm);
    live(rank, report);
  } else {
    report.status = joined.status;
    report.at_fault = joined.rank;
    std::strncpy(report.text, joined.text.c_str(), sizeof report.text - 1);
  }
  report.points = scheduler.passed;
  rank.leave();
  report.ended = 1;
  _exit(0);
}

/// True: the victim was killed before its end.
bool run_with_death_at(int64_t n) {
  board = new (board) Board;
  pid_t pids[WORLD];
  for (int rank = 0; rank < WORLD; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0) be_rank(rank, n);
  }
  bool was_killed = false;
  for (int rank = 0; rank < WORLD; ++rank) {
    int how = 0;
    int64_t waited_ms = 0;
    while (waitpid(pids[rank], &how, WNOHANG) == 0 && waited_ms < 15'000) usleep(1000), ++waited_ms;
    if (waited_ms >= 15'000) {
      ADD_FAILURE() << "rank " << rank << " hangs after a death at point " << n;
      kill(pids[rank], SIGKILL);
      waitpid(pids[rank], &how, 0);
      continue;
    }
    const bool killed = WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL;
    if (rank == VICTIM) was_killed = killed;
    EXPECT_TRUE(rank == VICTIM ? killed || how == 0 : how == 0) << "rank " << rank << " ended with " << how;
    const Board::Report &report = board->reports[rank];
    EXPECT_FALSE(report.wrong) << "rank " << rank << ", death at point " << n;
    if (rank == VICTIM) continue;
    EXPECT_EQ(report.ended, 1);
    EXPECT_TRUE(report.status == TPFSDP_OK || (report.status == TPFSDP_ERR_PEER_LOST && report.at_fault == VICTIM))
        << "rank " << rank << ", death at point " << n << ": " << report.status << " " << report.text;
  }
  EXPECT_EQ(board->reports[0].window, board->reports[1].window) << "death at point " << n;
  for (const Board::Report &report : board->reports) {
    EXPECT_TRUE(was_killed || report.status == TPFSDP_OK) << report.text;
  }
  return was_killed;
}

TEST(Death, AtEveryPointOfAProcess) {
  void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  board = static_cast<Board *>(memory);
  EXPECT_FALSE(run_with_death_at(0)) << "undisturbed";
  const int64_t points = board->reports[VICTIM].points;
  EXPECT_GT(points, 50) << "the victim's undisturbed run";
  int64_t deaths = 0;
  // Where it sleeps and how often it looks differs from run to run, so that there may be more points than in that one.
  for (int64_t n = 1; run_with_death_at(n) && !HasFailure(); ++n) ++deaths;
  EXPECT_GT(deaths, points / 2) << "points at which it was killed";
  RecordProperty("deaths", static_cast<int>(deaths));
  munmap(memory, sizeof(Board));
}

}  // namespace
}  // namespace host_test
