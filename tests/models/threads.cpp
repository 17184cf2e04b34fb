// SPDX-License-Identifier: Apache-2.0
// The same protocol on real threads and a real futex: private gathers with prefetch, two gradient slots, windows, all-reduce inline, injected failures and reset.
// (-DSPIN=0: always sleep; -DNO_SC: the mistake)  build: g++ -O1 -g -std=c++20 -fsanitize=thread -o threads threads.cpp -lpthread   run: ./threads [W] [steps] [seed]    (also without -fsanitize, -O2)
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef NO_SC   // the mistake: acquire/release only
#define SC_ST std::memory_order_release
#define SC_LD std::memory_order_acquire
#else
#define SC_ST std::memory_order_seq_cst
#define SC_LD std::memory_order_seq_cst
#endif
#ifndef SPIN
#define SPIN 64
#endif
using u64 = uint64_t; using u32 = uint32_t; constexpr int D = 3, R = 2 * D + 2, G = 3, N = 64;
enum Kind : u32 { GATHER = 1, REDUCE, TINY, ERR, RESET, CLOSE }; enum { OK = 0, REMOTE = -1, LOCAL = -2, MISMATCH = -3 };
struct alignas(128) Rec { std::atomic<u64> seq{0}; u64 fp; u32 kind, slot; double inl; };
struct alignas(128) Lane { Rec rec[R]; alignas(128) std::atomic<u64> done{0}, step{0}; };
struct alignas(128) Head { std::atomic<u64> abort{0}; alignas(128) std::atomic<u32> bell{0}; std::atomic<u32> sleepers{0}; };
struct Shared { Head h; std::vector<Lane> lane; std::vector<std::vector<std::vector<int>>> shard, grad; Shared(int W) : lane(W), shard(W, std::vector<std::vector<int>>(G, std::vector<int>(N))), grad(W, std::vector<std::vector<int>>(2, std::vector<int>(N * 8))) {} };
static std::atomic<u64> sleeps{0};
struct Rank {
  Shared& s; int W, r; u64 posted = 0, done = 0; u32 steps = 0, epoch = 0; std::vector<int> slot[2]; struct Q { u32 kind; int g; u64 fp; int err; } q[R]; int gs = 0; u64 gsseq[2] = {0, 0}, gseq[G] = {0}; std::vector<int> acc; double tiny = 0; unsigned rng; int fault_in = -1, seen = 0; bool flip = false;
  Rank(Shared& s, int W, int r, unsigned seed) : s(s), W(W), r(r), acc(N), rng(seed) { slot[0].resize(N * W); slot[1].resize(N * W); }
  void ring_bell() { if (s.h.sleepers.load(SC_LD)) { s.h.bell.fetch_add(1, std::memory_order_seq_cst); syscall(SYS_futex, &s.h.bell, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); } }
  void publish(std::atomic<u64>& w, u64 v) { w.store(v, SC_ST); ring_bell(); }
  template <class P> void wait(P ready) { for (int i = 0; i < SPIN; i++) if (ready(std::memory_order_acquire)) return; for (int i = 0; i < SPIN / 8; i++) { if (ready(std::memory_order_acquire)) return; sched_yield(); }
    s.h.sleepers.fetch_add(1, std::memory_order_seq_cst); timespec t{4, 0};
    for (;;) { u32 b = s.h.bell.load(std::memory_order_seq_cst); if (ready(std::memory_order_seq_cst)) break; sleeps++; long e = syscall(SYS_futex, &s.h.bell, FUTEX_WAIT_PRIVATE, b, &t, nullptr, 0); if (e && errno == ETIMEDOUT) { printf("LOST WAKE-UP or deadlock: rank %d posted %lu done %lu\n", r, (long)posted, (long)done); _exit(1); } }
    s.h.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  bool fault() { return fault_in >= 0 && fault_in-- == 0; }
  Rec& rec(int p, u64 k) { return s.lane[p].rec[k % R]; }
  u64 post(u32 kind, u64 fp, int g, u32 sl = 0, double inl = 0) { u64 k = ++posted; q[k % R] = {kind, g, fp, 0}; Rec& x = rec(r, k); x.fp = fp; x.kind = kind; x.slot = sl; x.inl = inl; publish(x.seq, k); return k; }
  bool err_at(int p, u64 k, std::memory_order o) { Rec& x = rec(p, k); return x.seq.load(o) == k && (x.kind == ERR || x.kind == RESET); }
  bool peer_err(std::memory_order o) { for (int p = 0; p < W; p++) if (p != r) for (u64 k = done + 1; k <= posted + 1; k++) if (err_at(p, k, o)) return true; return false; }
  int complete(u64 t) { while (done < t) { u64 k = done + 1; Q& o = q[k % R]; int v = OK;
      for (int p = 0; p < W; p++) { Rec& x = rec(p, k); wait([&](std::memory_order m) { u64 z = x.seq.load(m); if (z > k) { printf("LOST RECORD\n"); _exit(1); } return z == k; }); if (x.kind == ERR || x.kind == RESET) v = REMOTE; else if (v == OK && x.fp != o.fp) v = MISMATCH; }
      if (v == OK && fault()) { fail(); return LOCAL; }
      if (v == OK && o.kind == GATHER) for (int p = 0; p < W; p++) for (int i = 0; i < N; i++) slot[o.g % 2][p * N + i] = s.shard[p][o.g][i];
      if (v == OK && o.kind == REDUCE) for (int i = 0; i < N; i++) { acc[i] = 0; for (int p = 0; p < W; p++) acc[i] += s.grad[p][rec(p, k).slot][r * N + i]; }
      if (v == OK && o.kind == TINY) { tiny = 0; for (int p = 0; p < W; p++) tiny += rec(p, k).inl; }
      done = k; publish(s.lane[r].done, k); if (v) return v; } return OK; }
  void fail() { u64 k = posted + 1; post(ERR, 0, 0); done = k; publish(s.lane[r].done, k); }
  int reset() { done = posted; publish(s.lane[r].done, done); post(RESET, 0, 0);
    for (;;) { u64 k = posted; bool all = true; for (int p = 0; p < W; p++) { Rec& x = rec(p, k); wait([&](std::memory_order m) { u64 z = x.seq.load(m); if (z > k) { printf("LOST RECORD in reset\n"); _exit(1); } return z == k; }); all &= x.kind == RESET; } done = k; publish(s.lane[r].done, k); if (all) break; post(RESET, 0, 0); } epoch++; gs = 0; return OK; }
  int room() { while (posted - done >= D) if (int e = complete(done + 1)) return e; return OK; }
  int issue(int g) { if (int e = room()) return e; if (fault()) { fail(); return LOCAL; } gseq[g] = post(GATHER, 1000 + g, g); return OK; }
  int use(int g) { if (int e = complete(gseq[g])) return e; for (int p = 0; p < W; p++) for (int i = 0; i < N; i++) if (slot[g % 2][p * N + i] != (int)(steps * 1000 + g * 100 + p)) { printf("STALE shard\n"); _exit(1); } return OK; }
  int grad(int g) { u64 need = gsseq[gs]; if (int e = complete(need)) return e; int e = OK; for (int p = 0; p < W; p++) if (p != r) wait([&](std::memory_order m) { if (s.lane[p].done.load(m) >= need) return true; if (peer_err(m)) { if (s.lane[p].done.load(m) < need) e = REMOTE; return true; } return false; }); if (e) return e;
    for (int i = 0; i < N * W; i++) s.grad[r][gs][i] = (int)(steps * 7 + g + r + i); return OK; }
  int reduce(int g) { if (int e = room()) return e; if (fault()) { fail(); return LOCAL; } gsseq[gs] = post(REDUCE, 2000 + g + 16 * steps, g, gs); u64 k = posted; gs ^= 1; if (int e = complete(k)) return e; for (int i = 0; i < N; i++) { int want = 0; for (int p = 0; p < W; p++) want += (int)(steps * 7 + g + p + r * N + i); if (acc[i] != want) { printf("WRONG gradient\n"); _exit(1); } } return OK; }
  int window() { if (int e = complete(posted)) return e; publish(s.lane[r].step, posted); int e = OK; for (int p = 0; p < W; p++) if (p != r) wait([&](std::memory_order m) { if (s.lane[p].step.load(m) >= posted) return true; if (peer_err(m)) { if (s.lane[p].step.load(m) < posted) e = REMOTE; return true; } return false; }); if (e) return e;   // an error may be of the peer's next step: look again
    steps++; for (int g = 0; g < G; g++) for (int i = 0; i < N; i++) s.shard[r][g][i] = (int)(steps * 1000 + g * 100 + r); return OK; }
  int step() { int e; if ((e = issue(0)) || (e = issue(1)) || (e = use(0)) || (e = issue(2)) || (e = use(1)) || (e = use(2)) || (e = issue(1)) || (e = grad(2)) || (e = reduce(2)) || (e = use(1)) || (e = issue(0)) || (e = grad(1)) || (e = reduce(1)) || (e = use(0)) || (e = grad(0)) || (e = reduce(0))) return e;
    if ((e = room())) return e; post(TINY, 3000, 0, 0, r + 1.0); if ((e = complete(posted))) return e; if (tiny != W * (W + 1) / 2.0) { printf("WRONG tiny\n"); _exit(1); } return window(); }
};
int main(int argc, char** argv) { int W = argc > 1 ? atoi(argv[1]) : 3, S = argc > 2 ? atoi(argv[2]) : 300; unsigned seed = argc > 3 ? atoi(argv[3]) : 1; bool faults = seed != 0; Shared s(W); for (int r = 0; r < W; r++) for (int g = 0; g < G; g++) for (int i = 0; i < N; i++) s.shard[r][g][i] = g * 100 + r;
  std::atomic<u64> locals{0}, remotes{0}; std::vector<std::thread> th; std::vector<u32> ep(W), st(W); auto t0 = std::chrono::steady_clock::now();
  for (int r = 0; r < W; r++) th.emplace_back([&, r] { Rank k(s, W, r, seed * 977 + r * 131); while (k.steps < (u32)S) { if (faults && rand_r(&k.rng) % 4 == 0) k.fault_in = rand_r(&k.rng) % 20; else k.fault_in = -1; int e = k.step(); if (e) { if (e == LOCAL) locals++; else if (e == REMOTE) remotes++; else { printf("unexpected %d\n", e); _exit(1); } if (rand_r(&k.rng) % 3 == 0) sched_yield(); k.reset(); } } 
      k.reset(); ep[r] = k.epoch; st[r] = k.steps; });
  for (auto& t : th) t.join(); for (int r = 1; r < W; r++) if (ep[r] != ep[0] || st[r] != st[0]) { printf("DIVERGED\n"); return 1; }
  printf("W=%d steps=%d: %lu local failures, %lu remote errors, epoch %u on every rank, %lu sleeps, %.2f s: ok\n", W, S, (long)locals, (long)remotes, ep[0], (long)sleeps, std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count()); }
