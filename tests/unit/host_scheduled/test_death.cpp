// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, one of which is killed for good before each of its loads and stores of a shared word in
// turn. The others end by themselves, with the right values or with PEER_LOST naming it, and agree on the write window.
// And one whose addresses run short.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
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
  void arm(int64_t n) {
    left_ = n;
    passed = 0;
  }
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
  int64_t left_ = 0;
};

/// Counts what ended well, and reports what did not.
bool ends_well(const Rank &rank, Board::Report &report, tpfsdp_status status) {
  if (status == TPFSDP_OK) return ++report.operations > 0;
  report.status = status;
  report.at_fault = rank.call.at_fault;
  std::strncpy(report.text, rank.call.text.c_str(), sizeof report.text - 1);
  return false;
}

/// A step in small: gather, reduce, an all-reduce of the caller's memory, the window, the end.
void live(Rank &rank, Board::Report &report) {
  const auto ends_well = [&](tpfsdp_status status) { return host_test::ends_well(rank, report, status); };
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

/// A common slot that two units use in turn and mapped shards, made, held over the window, destroyed.
void live_in_common(Rank &rank, Board::Report &report) {
  const auto ends_well = [&](tpfsdp_status status) { return host_test::ends_well(rank, report, status); };
  const auto write = [&](const CommonMemory &memory, int value) {
    std::fill(memory.data + rank.rank * PART, memory.data + (rank.rank + 1) * PART,
              static_cast<float>(10 * value + rank.rank));
  };
  const auto check = [&](const CommonMemory &memory, int value) {
    for (int64_t i = 0; i < WORLD * PART; ++i)
      report.wrong = report.wrong || memory.readable[i] != static_cast<float>(10 * value + i / PART);
  };
  CommonMemory slot, shards;
  if (!ends_well(rank.make_common(WORLD * PART, &slot))) return;
  if (!ends_well(rank.make_common(WORLD * PART, &shards))) return;
  write(shards, 1);
  if (!ends_well(rank.run(gather_in(shards, TPFSDP_BACKEND_KIND_MAPPED_GATHER, WORLD * PART)))) return;
  for (int unit = 0; unit < 2; ++unit) {
    if (!ends_well(rank.wait_released(slot))) return;
    write(slot, unit);
    if (!ends_well(rank.run(gather_in(slot, TPFSDP_BACKEND_KIND_SHARED_GATHER, WORLD * PART)))) return;
    check(slot, unit);
    table().region_release(slot.region);
  }
  check(shards, 1);
  table().region_release(shards.region);
  if (!ends_well(rank.window())) return;
  report.window = true;
  if (!ends_well(rank.wait_released(shards))) return;
  write(shards, 2);
  if (!ends_well(rank.run(gather_in(shards, TPFSDP_BACKEND_KIND_MAPPED_GATHER, WORLD * PART)))) return;
  check(shards, 2);
  for (const CommonMemory &memory : {slot, shards}) table().region_destroy(memory.region);
  ends_well(rank.shutdown());
}

/// The addresses of rank 1's process run short while a region is made; then it has more.
void live_with_little_room(Rank &rank, Board::Report &report) {
  constexpr int64_t FLOATS = 16 << 20;
  constexpr rlim_t ROOM = 16 << 20;
  const auto expect = [&](bool is_so, const char *what) {
    if (is_so || report.status != TPFSDP_OK) return;
    report.status = TPFSDP_ERR_INTERNAL;
    std::snprintf(report.text, sizeof report.text, "%s: %s", what, rank.call.text.c_str());
  };
  rlimit before{}, little{};
  long pages = 0;
  std::FILE *statm = std::fopen("/proc/self/statm", "r");
  expect(getrlimit(RLIMIT_AS, &before) == 0 && statm != nullptr && std::fscanf(statm, "%ld", &pages) == 1, "set-up");
  std::fclose(statm);
  little = {static_cast<rlim_t>(pages) * 4096 + ROOM, before.rlim_max};

  CommonMemory memory;
  if (rank.rank == 1) setrlimit(RLIMIT_AS, &little);
  const tpfsdp_status status = rank.make_common(FLOATS, &memory);
  if (rank.rank == 1) setrlimit(RLIMIT_AS, &before);
  expect(status == (rank.rank == 1 ? TPFSDP_ERR_OUT_OF_MEMORY : TPFSDP_ERR_REMOTE), "the making");
  expect(rank.call.at_fault == 1 && rank.call.text.find("rank 1 cannot map 67108864 bytes") != std::string::npos,
         "its text");
  if (rank.rank == 1) rank.fail(status, rank.call.text.c_str());
  expect(rank.reset() == TPFSDP_OK, "the reset");
  expect(rank.make_common(FLOATS, &memory) == TPFSDP_OK, "the second making");
  if (report.status != TPFSDP_OK) return;
  memory.data[rank.rank] = 5;
  expect(rank.run(gather_in(memory, TPFSDP_BACKEND_KIND_SHARED_GATHER, FLOATS)) == TPFSDP_OK, "the gather");
  for (int r = 0; r < WORLD; ++r) expect(memory.readable[r] == 5, "what it gathers");
  table().region_destroy(memory.region);
  ends_well(rank, report, rank.shutdown());
}

struct Plan {
  void (*program)(Rank &, Board::Report &);
  int victim;
  bool meets;  ///< points at which the ranks meet count, too
};

[[noreturn]] void be_rank(int number, const Plan &plan, int64_t dies_at) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  tpfsdp_backend_services lent = services();
  lent.store_set = set_on_board;
  lent.store_get = get_from_board;
  Store unused;
  Rank rank(number, WORLD, &unused);
  KillAt scheduler;
  const int64_t n = number == plan.victim ? dies_at : 0;
  if (plan.meets) scheduler.arm(n);
  const tpfsdp_backend_comm_options options{sizeof options, number, WORLD, 20'000, 20'000, 20'000, "world"};
  host::Comm *comm = nullptr;
  Board::Report &report = board->reports[number];
  const host::Outcome joined = host::create(lent, host::shm_provider(), rank.call.handle(), options, &scheduler, &comm);
  if (joined.ok()) {
    rank.comm = reinterpret_cast<tpfsdp_backend_comm *>(comm);
    if (!plan.meets) scheduler.arm(n);
    plan.program(rank, report);
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
bool run_with_death_at(int64_t n, const Plan &plan) {
  board = new (board) Board;
  pid_t pids[WORLD];
  for (int rank = 0; rank < WORLD; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0) be_rank(rank, plan, n);
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
    if (rank == plan.victim) was_killed = killed;
    EXPECT_TRUE(rank == plan.victim ? killed || how == 0 : how == 0) << "rank " << rank << " ended with " << how;
    const Board::Report &report = board->reports[rank];
    EXPECT_FALSE(report.wrong) << "rank " << rank << ", death at point " << n;
    if (rank == plan.victim) continue;
    EXPECT_EQ(report.ended, 1);
    EXPECT_TRUE(report.status == TPFSDP_OK || (report.status == TPFSDP_ERR_PEER_LOST && report.at_fault == plan.victim))
        << "rank " << rank << ", death at point " << n << ": " << report.status << " " << report.text;
  }
  EXPECT_EQ(board->reports[(plan.victim + 1) % WORLD].window, board->reports[(plan.victim + 2) % WORLD].window)
      << "death at point " << n;
  for (const Board::Report &report : board->reports) {
    EXPECT_TRUE(was_killed || report.status == TPFSDP_OK) << report.text;
  }
  return was_killed;
}

/// Sets up the board for one test.
class Shared {
 public:
  Shared() {
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    board = static_cast<Board *>(memory);
  }
  ~Shared() { munmap(board, sizeof(Board)); }
};

void die_everywhere(const Plan &plan) {
  const Shared shared;
  EXPECT_FALSE(run_with_death_at(0, plan)) << "undisturbed";
  const int64_t points = board->reports[plan.victim].points;
  EXPECT_GT(points, 50) << "the victim's undisturbed run";
  int64_t deaths = 0;
  // Where it sleeps and how often it looks differs from run to run, so that there may be more points than in that one.
  for (int64_t n = 1; run_with_death_at(n, plan) && !::testing::Test::HasFailure(); ++n) ++deaths;
  EXPECT_GT(deaths, points / 2) << "points at which it was killed";
  ::testing::Test::RecordProperty("deaths", static_cast<int>(deaths));
}

TEST(Death, AtEveryPointOfAProcess) { die_everywhere({live, 2, true}); }

/// Rank 0 made the memory that the others use.
TEST(Death, AtEveryPointOfTheMakerOfMemoryInUse) { die_everywhere({live_in_common, 0, false}); }

TEST(Death, AtEveryPointOfAUserOfMemoryInUse) { die_everywhere({live_in_common, 1, false}); }

TEST(Common, MakingWithoutRoomForAddressesIsToldAndTriedAgain) {
  const Shared shared;
  EXPECT_FALSE(run_with_death_at(0, {live_with_little_room, 1, false}));
}

}  // namespace
}  // namespace host_test
