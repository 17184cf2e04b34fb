// SPDX-License-Identifier: Apache-2.0
// Explicit-state model of the host engine: all interleavings of W ranks running one program, with
// release/acquire happens-before tracked by vector clocks (a data access not ordered after every conflicting
// earlier access is a race, however the interleaving happened to fall), version tags on every region, one or two
// injected local failures or deaths at any point, and deadlock detection.  Breadth first, so traces are shortest.
// build: g++ -O2 -std=c++20 -o engine engine.cpp     run: ./engine <config> [variant] [state limit]   (./engine list; SCHED=1 prints a trace as a schedule file)
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
using u8 = uint8_t; using std::string;
constexpr int MW = 3, MC = 2, MG = 3, MS = 30, MK = 96;
enum Kind : u8 { NONE, GATHER, REDUCE, SYNC, ERR, RESET, CLOSE };
enum Mode : u8 { PRIVATE, SHARED, MAPPED, MAPPED_CAST };
enum Op : u8 { ISSUE, WAIT, USE, REL, GRAD, RS, WIN, BARR, AR1, AR2, DO_FAIL, DO_RESET, DO_CLOSE, TERM, EXTRA };
static const char* opn[] = {"issue", "wait", "use", "release", "grad", "reduce", "window", "barrier", "allreduce1", "allreduce2", "fail", "reset", "close", "end", "extra"};
struct I { u8 op, g, only; };
struct Cfg {
  int W = 2, C = 1, G = 3, R = 8, D = 3, fails = 0, deaths = 0; Mode mode = PRIVATE; u8 comm[MG] = {0, 0, 0}, colour[MG] = {0, 1, 0};
  std::vector<I> prog; int retry = 0, failfrom = 0, failto = 99; bool noreset = false, direct = false, xwin = false;   // xwin: explicit windows (data only, no step word)
    // noreset: the failing host never calls reset
  // protocol switches: true = correct
  bool inorder = true, rel_words = true, slot_wait = true, progress = true, immut = true, err_first = true, reset_all = true, reset_loop = true,
       flow = false, recheck = true, cast_wait = true, watch = true, rel_seq = true, rec_slot = true, refcount = true, done_hold = false, window_wait = true, src_slot = false, err_post = true, consume = true, step_tag = false, last_look = true, watch_open = true, step_word = true, err_all = true, ar_wait = true, win_rel = true;
} F;
struct Loc { u8 tag, wclk, rd[MW]; };                       // single writer: its owner
struct Rank {
  u8 pc, ph, wp, saw, slow, err, failed, closed, fseq;
  u8 posted[MC], done[MC], kind[MC][MS], arg[MC][MS], exec[MC][MS];
  u8 ver[MG], castver[MG], need[MG], held[MG], gseq[MG], okseq[MG], fills[MG], slotg[MG], slotv[MG];
  u8 arn, rsn, rsseq[2], wins, last_err, ar_src;
};
struct alignas(8) State {
  Rank r[MW]; u8 vc[MW][MW], snap[MW][MK][MW];
  u8 pk[MC][MW][MS], pf[MC][MW][MS], pc_[MC][MW][MS], px[MC][MW][MS], pw[MC][MW][MS];  // post record: kind, fingerprint, clock, slot index, step
  u8 dn[MC][MW], dcl[MC][MW][MS];                           // done word, clock of the first store >= value
  u8 st[MC][MW], scl[MC][MW][MS];                           // step word: sequence at which this rank reached its window
  u8 rl[MG][MW], rcl[MG][MW][MS];                           // release word per slot or mapped region
  Loc src[MW][MG], gs[MW][2], sl[MG][MW], ar[MW][MW];           // shard/cast source, gradient slots, common slot slices, all-reduce buffer
  u8 verd[MC][MS], dead[MW], abort_, fails, deaths, viol, pad_;
};
static const char* vio[] = {"", "RACE: source overwritten while a peer may read it", "RACE: read of a source not ordered after its write", "STALE: wrong version read", "RACE: gradient slot overwritten early", "RACE: gradient slot read unordered", "STALE: wrong gradient read",
  "RACE: common slot overwritten early", "RACE: common slot read unordered", "STALE: common slot holds another group", "DISAGREE: one sequence, two verdicts", "LOST RECORD: post overwritten before it was read", "FALSE DEATH: a rank that closed cleanly reported lost",
  "TORN STEP: a window opened although a peer failed in that step", "USE AFTER FREE: region freed while a peer may read", "RESET FAILED: reset returned without all ranks resetting", "EPOCH/SHARD VERSIONS DIFFER AT END", "STALE: all-reduce", "PRIVATE SLOT wrong content", "UNEXPECTED ERROR without a fault", "STUCK", "LIVE FAILURE UNSEEN"};
static State* X; static void bad(int v) { if (!X->viol) X->viol = v; }
static void rel_store(State& s, int r, u8& clk) { u8 c = s.vc[r][r]; if (c >= MK) { printf("clock\n"); exit(2); } memcpy(s.snap[r][c], s.vc[r], MW); clk = c; s.vc[r][r]++; }
static void acq(State& s, int r, int p, u8 c) { if (c && c > s.vc[r][p]) for (int i = 0; i < F.W; i++) if (s.snap[p][c][i] > s.vc[r][i]) s.vc[r][i] = s.snap[p][c][i]; }
static void wr(State& s, int r, Loc& l, u8 tag, int v) { for (int i = 0; i < F.W; i++) if (i != r && l.rd[i] > s.vc[r][i]) bad(v); l.tag = tag; l.wclk = s.vc[r][r]; }
static u8 rdl(State& s, int r, int owner, Loc& l, int v) { if (r != owner && l.wclk > s.vc[r][owner]) bad(v); l.rd[r] = s.vc[r][r]; return l.tag; }
static void put_done(State& s, int r, int c, int v) { u8 k; int o = s.dn[c][r]; if (v <= o) return; rel_store(s, r, k); for (int x = o + 1; x <= v; x++) s.dcl[c][r][x] = k; s.dn[c][r] = v; }
static void put_step(State& s, int r, int c, int v) { u8 k; int o = s.st[c][r]; if (v <= o) return; rel_store(s, r, k); for (int x = o + 1; x <= v; x++) s.scl[c][r][x] = k; s.st[c][r] = v; }
static void put_rel(State& s, int r, int w, int v) { u8 k; int o = s.rl[w][r]; if (v <= o) return; rel_store(s, r, k); for (int x = o + 1; x <= v; x++) s.rcl[w][r][x] = k; s.rl[w][r] = v; }
static int relw(int g) { return F.mode == SHARED ? F.colour[g] : g; }
static bool post(State& s, int r, int c, Kind k, u8 fp, u8 arg, u8 x = 0) {   // false: blocked by ring flow control
  Rank& R = s.r[r]; int q = R.posted[c] + 1; if (q >= MS) { printf("seq\n"); exit(2); }
  if (F.flow && q > F.R) for (int p = 0; p < F.W; p++) if (p != r) { if (s.dn[c][p] < q - F.R) return false; acq(s, r, p, s.dcl[c][p][q - F.R]); }
  u8 clk; rel_store(s, r, clk); s.pk[c][r][q] = k; s.pf[c][r][q] = fp; s.pc_[c][r][q] = clk; s.px[c][r][q] = x; s.pw[c][r][q] = R.wins; R.kind[c][q] = k; R.arg[c][q] = arg; R.posted[c] = q; return true; }
// A wait on peer p that is not satisfied: death and abort ends it. 1 = went to TERM.
static int stuck(State& s, int r, int p, int ch) { Rank& R = s.r[r];   // only called when the awaited word is not there yet
  if (s.abort_) { if (ch) return 0; R.pc = 255; R.err = 9; return 1; }
  if (!F.recheck) { if (!R.slow) { if (ch != 3) return 0; R.slow = 1 + p; return 1; } }       // naive: looks at the word, later at liveness
  if (s.dead[p] && F.recheck && ch == 0) { if (!F.deaths) bad(12); s.abort_ = 1; R.pc = 255; R.err = 8; return 1; }
  return 0; }
static int naive_dead(State& s, int r, int p) { Rank& R = s.r[r]; if (F.recheck || R.slow != 1 + p || !s.dead[p]) return 0; if (!F.deaths || s.dead[p] == 2) bad(12); s.abort_ = 1; R.pc = 255; R.err = 8; return 1; }
static void raise_(State& s, int r, int e) { Rank& R = s.r[r]; R.last_err = e; R.wp = R.saw = R.slow = 0; R.ph = 0; R.failed = 1; if (!F.fails && !F.deaths) bad(19); R.pc = F.noreset ? 255 : 200; if (F.noreset) R.err = 2; }
// an error record of a peer at my next sequence; 0 none, 1 seen. Knowledge forces sight, else either (ch 4 = not yet seen).
static bool err_seen(State& s, int r, int c, int ch, bool win = false) { Rank& R = s.r[r];
  for (int p = 0; p < F.W; p++) if (p != r) for (int q = F.watch_open ? R.done[c] + 1 : R.posted[c] + 1; q <= R.posted[c] + 1; q++) { u8 k = s.pk[c][p][q];
    if ((k == ERR || k == RESET) && !(win && F.step_tag && s.pw[c][p][q] != R.wins) && (s.pc_[c][p][q] <= s.vc[r][p] || ch == 0)) { acq(s, r, p, s.pc_[c][p][q]); return true; } } return false; }
// complete own ops of comm c up to t. 0 blocked, 1 transition made, 2 nothing to do
static int complete(State& s, int r, int c, int t, int ch, int only = 0) {
  Rank& R = s.r[r]; int k = 0;
  if (F.inorder) { if (R.done[c] >= t) return 2; k = R.done[c] + 1; }
  else { if (only) k = R.exec[c][only] ? 0 : only; else for (int i = 1; i <= t; i++) if (!R.exec[c][i]) { k = i; break; } if (!k) return 2; }
  if (R.wp == r) R.wp++;
  if (R.wp < F.W) { int p = R.wp; if (naive_dead(s, r, p)) return 1;
    if (s.pk[c][p][k]) { if (ch == 3) return 0; if (s.r[p].posted[c] >= k + F.R) bad(11); acq(s, r, p, s.pc_[c][p][k]);
      u8 kd = s.pk[c][p][k]; if (kd == ERR) R.saw |= 1; else if (kd == RESET && R.kind[c][k] != RESET) R.saw |= 2; else if (kd != R.kind[c][k] || s.pf[c][p][k] != s.pf[c][r][k]) R.saw |= 4;
      R.wp++; R.slow = 0; if (R.wp == r) R.wp++; return 1; }
    return stuck(s, r, p, ch); }
  u8 v = R.saw ? 2 : 1; if (s.verd[c][k] && s.verd[c][k] != v) bad(10); s.verd[c][k] = v;
  int g = R.arg[c][k];
  if (v == 1 && ch != 1) { if (R.kind[c][k] == GATHER && F.mode == PRIVATE) { for (int p = 0; p < F.W; p++) { u8 tg = rdl(s, r, p, F.src_slot ? s.sl[F.colour[g]][p] : s.src[p][g], 2); if (tg != (F.src_slot ? 16 * g + R.ver[g] : R.ver[g])) bad(3); } R.slotg[F.colour[g]] = g + 1; R.slotv[F.colour[g]] = R.ver[g]; }
    if (R.kind[c][k] == GATHER) R.okseq[g] = k;
    if (R.kind[c][k] == REDUCE) for (int p = 0; p < F.W; p++) { int x = F.rec_slot ? s.px[c][p][k] : s.px[c][r][k]; if (rdl(s, r, p, s.gs[p][x], 5) != s.pf[c][r][k]) bad(6); } }
  if (v == 1 && R.kind[c][k] == SYNC && s.pf[c][r][k] == 50) { for (int p = 0; p < F.W; p++) if (rdl(s, r, p, s.ar[p][r], 17) != R.ar_src) bad(17); if (ch != 1) wr(s, r, s.ar[r][r], R.ar_src + 1, 17); }
  if (v == 1 && R.kind[c][k] == SYNC && s.pf[c][r][k] == 51) { for (int p = 0; p < F.W; p++) { if (rdl(s, r, p, s.ar[p][p], 17) != R.ar_src + 1) bad(17); if (p != r && ch != 1) wr(s, r, s.ar[r][p], R.ar_src + 1, 17); } }
  if (v == 1 && ch == 1) { // fails in the middle of reading
    for (int p = 0; p < F.W; p++) if (R.kind[c][k] == REDUCE) rdl(s, r, p, s.gs[p][F.rec_slot ? s.px[c][p][k] : s.px[c][r][k]], 5); else if (R.kind[c][k] == GATHER && F.mode == PRIVATE) rdl(s, r, p, s.src[p][g], 2);
    s.fails++; R.wp = R.saw = 0; R.ph = 0; R.failed = 1; R.last_err = 1;
    if (!F.immut) { s.pk[c][r][k] = ERR; u8 clk; rel_store(s, r, clk); s.pc_[c][r][k] = clk; R.done[c] = k; put_done(s, r, c, k); R.pc = 200; return 1; }
    R.pc = F.direct ? 200 : 199; return 1; }
  R.wp = R.saw = 0; R.exec[c][k] = 1; if (F.inorder) R.done[c] = k; else if (k > R.done[c]) R.done[c] = k;
  if (!F.done_hold || R.kind[c][k] != GATHER) { int d = R.done[c]; if (F.done_hold) { for (int i = 1; i <= d; i++) for (int gg = 0; gg < F.G; gg++) if (R.held[gg] && R.gseq[gg] == i && i <= d) d = i - 1; } put_done(s, r, c, d); }
  if (v == 2) { raise_(s, r, 2); } return 1; }
static int wait_done(State& s, int r, int c, int t, int ch, bool win = false) { Rank& R = s.r[r];   // peers' done >= t, one peer at a time in wp
  if (R.wp == r) R.wp++; if (R.wp >= F.W) { R.wp = 0; return 2; } int p = R.wp;
  if (!F.last_look && !R.slow && ch == 3 && !(win && F.step_word ? s.st[c][p] >= t : s.dn[c][p] >= t)) { R.slow = 1; return 1; }   // mistake: remembers 'not there', then sees an error, and does not look again
  if (!F.last_look && R.slow && ch == 4) { if (!err_seen(s, r, c, 0, win)) return 0; raise_(s, r, 2); return 1; }
  if (win && F.step_word ? s.st[c][p] >= t : s.dn[c][p] >= t) { if (t) acq(s, r, p, win && F.step_word ? s.scl[c][p][t] : s.dcl[c][p][t]); R.wp++; if (!F.last_look) R.slow = 0; if (R.wp == r) R.wp++; if (R.wp >= F.W) { R.wp = 0; return 2; } return wait_done(s, r, c, t, ch, win); }
  if (F.watch && ch == 0 && err_seen(s, r, c, 0, win)) { raise_(s, r, 2); return 1; } return stuck(s, r, p, ch); }
static int wait_rel(State& s, int r, int w, int c, int t, int ch, bool win = false) { Rank& R = s.r[r];
  if (R.wp == r) R.wp++; if (R.wp >= F.W) { R.wp = 0; return 2; } int p = R.wp;
  if (s.rl[w][p] >= t) { if (t) acq(s, r, p, s.rcl[w][p][t]); R.wp++; if (R.wp >= F.W) { R.wp = 0; return 2; } return wait_rel(s, r, w, c, t, ch, win); }
  if (F.watch && ch == 0 && err_seen(s, r, c, 0, win)) { raise_(s, r, 2); return 1; } return stuck(s, r, p, ch); }
static void release(State& s, int r, int g) { Rank& R = s.r[r]; if (!R.held[g]) return; R.held[g] = 0; int c = F.comm[g];
  if (F.done_hold) { int d = R.done[c]; for (int gg = 0; gg < F.G; gg++) if (R.held[gg] && F.comm[gg] == c && R.gseq[gg] <= d) d = R.gseq[gg] - 1; put_done(s, r, c, d); return; }
  if (F.mode != PRIVATE) put_rel(s, r, relw(g), F.rel_seq ? R.gseq[g] : R.fills[relw(g)]); }
static int step_in(State& s, int r, int ch, string* lab) {
  Rank& R = s.r[r]; X = &s; if (R.pc == 255 || s.dead[r]) return 0;
  if (ch == 2) { if (s.deaths >= F.deaths || R.pc >= 199) return 0; s.deaths++; s.dead[r] = 1; return 1; }
  if (R.pc == 199) { // local failure: post ERR on every comm, and give up the ops in flight (order matters)
    int n = F.C; int a = F.err_first ? R.ph < n : R.ph >= n; int c = R.ph % n; if (ch) return 0;
    if (a) { if (F.err_post && (F.err_all || c == 0) && !post(s, r, c, ERR, 0, 0)) return 0; } else { if (F.consume || R.posted[c] == 0) { int d = R.posted[c]; R.done[c] = d; put_done(s, r, c, d); } }
    if (++R.ph == 2 * n) { R.ph = 0; for (int cc = 0; cc < n; cc++) { R.done[cc] = R.posted[cc]; put_done(s, r, cc, R.done[cc]); } R.pc = F.noreset ? 255 : 200; if (F.noreset) R.err = 1; } return 1; }
  if (R.pc == 200) { // reset_iter_state, collective over all comms
    int n = F.C; if (ch != 0 && ch != 3) return 0;
    if (R.ph == 0) { for (int c = 0; c < n; c++) { R.done[c] = R.posted[c]; put_done(s, r, c, R.done[c]); } for (int g = 0; g < F.G; g++) { R.held[g] = 0; R.slotg[g] = 0; if (F.mode != PRIVATE && F.rel_seq) put_rel(s, r, relw(g), R.posted[F.comm[g]]); else if (F.mode != PRIVATE) put_rel(s, r, relw(g), R.fills[relw(g)]); } R.ph = 1; R.wp = 0; if (ch) return 0; return 1; }
    if (R.ph >= 1 && R.ph <= n) { if (ch) return 0; int c = R.ph - 1; if (!post(s, r, c, RESET, 0, 0)) return 0; R.ph = F.reset_all ? R.ph + 1 : n + 1 + c; R.wp = R.saw = 0; return 1; }
    int c = R.ph - n - 1; int k = R.posted[c]; if (R.wp == r) R.wp++;
    if (R.wp < F.W) { int p = R.wp; if (naive_dead(s, r, p)) return 1; if (s.pk[c][p][k]) { if (ch == 3) return 0; if (s.r[p].posted[c] >= k + F.R) bad(11); acq(s, r, p, s.pc_[c][p][k]); if (s.pk[c][p][k] != RESET) R.saw = 1; R.wp++; return 1; } return stuck(s, r, p, ch); }
    if (ch) return 0;
    R.wp = 0; R.done[c] = k; put_done(s, r, c, k); bool all = !R.saw; R.saw = 0;
    if (!all && F.reset_loop) { if (!post(s, r, c, RESET, 0, 0)) { R.saw = 1; R.wp = F.W; R.done[c] = k; return 0; } return 1; }
    if (!all) bad(15);
    for (int g = 0; g < F.G; g++) if (F.comm[g] == c) { R.okseq[g] = k; if (F.mode != PRIVATE && F.rel_seq) put_rel(s, r, relw(g), k); }
    if (c + 1 < n) { R.ph = F.reset_all ? R.ph + 1 : 1 + c + 1; return 1; }
    R.ph = 0; R.pc = F.retry; R.failed = 0; R.arn = 0; R.fseq++; return 1; }
  I in = F.prog[R.pc]; if (in.only && in.only != r + 1) { R.pc++; return step_in(s, r, ch, lab); } int g = in.g, c = F.comm[g];
  if (lab) *lab = string(opn[in.op]) + (in.op == WIN || in.op == DO_CLOSE ? "" : string(" ") + char('A' + g));
  auto next = [&] { R.pc++; R.ph = R.wp = R.saw = R.slow = 0; return 1; };
  bool canfail = s.fails < F.fails && R.pc >= F.failfrom && R.pc < F.failto && (in.op != WIN || R.ph < F.C) && in.op != DO_CLOSE && in.op != TERM;
  if (ch == 1) { if (!canfail) return 0; bool reading = R.wp >= F.W || (R.wp == r && r == F.W - 1);
    if (in.op == WIN && (!reading || R.done[R.ph] >= R.posted[R.ph])) return 0;
    if (!((in.op == WAIT || in.op == WIN || (in.op == AR1 && (R.ph == 1 || R.ph == 2))) && reading)) { if (in.op == USE || in.op == REL) return 0; s.fails++; R.failed = 1; R.last_err = 1; R.pc = F.direct ? 200 : 199; R.ph = R.wp = R.saw = R.slow = 0; return 1; } }
  switch (in.op) {
    case ISSUE: case EXTRA: { int w = relw(g);
      if (R.posted[c] - R.done[c] >= F.D) { int x = complete(s, r, c, R.done[c] + 1, ch); if (x != 2) return x; }
      if (ch == 1) return 0;
      if (F.mode == SHARED) { if (F.slot_wait && R.ph == 0) { int need = F.rel_seq ? 0 : R.fills[w]; if (F.rel_seq) for (int h = 0; h < F.G; h++) if (relw(h) == w && R.okseq[h] > need) need = R.okseq[h]; int x = wait_rel(s, r, w, c, need, ch); if (x != 2) return x; if (ch) return 0; R.ph = 1; }
        if (ch) return 0; wr(s, r, s.sl[w][r], 16 * g + R.ver[g], 7); R.fills[w]++; }
      if (F.src_slot) { if (ch) return 0; wr(s, r, s.sl[F.colour[g]][r], 16 * g + R.ver[g], 7); }
      if (F.mode == MAPPED_CAST && R.castver[g] != R.ver[g]) { if (F.cast_wait && R.ph == 0) { int x = wait_rel(s, r, g, c, R.okseq[g], ch); if (x != 2) return x; R.ph = 1; } if (ch) return 0; wr(s, r, s.src[r][g], R.ver[g], 1); R.castver[g] = R.ver[g]; }
      if (ch) return 0; if (!post(s, r, c, GATHER, g, g)) return 0; R.gseq[g] = R.posted[c]; R.held[g] = 1; return next(); }
    case WAIT: { int x = complete(s, r, c, R.gseq[g], ch, R.gseq[g]); if (x == 2) { if (ch) return 0; return next() ? step_in(s, r, 0, lab) : 0; } return x; }
    case USE: { if (ch) return 0; if (F.mode == PRIVATE) { if (R.slotg[F.colour[g]] != g + 1 || R.slotv[F.colour[g]] != R.ver[g]) bad(18); return next(), step_in(s, r, 0, lab); }
      for (int p = 0; p < F.W; p++) { if (F.mode == SHARED) { if (rdl(s, r, p, s.sl[F.colour[g]][p], 8) != 16 * g + R.ver[g]) bad(9); } else if (rdl(s, r, p, s.src[p][g], 2) != R.ver[g]) bad(3); } return next(); }
    case REL: if (ch) return 0; if (F.rel_words || F.done_hold) release(s, r, g); else R.held[g] = 0; return next();
    case GRAD: { int x = R.rsn % 2; if (R.ph == 0) { if (F.progress) { int y = complete(s, r, c, R.rsseq[x], ch); if (y != 2) return y; } R.ph = 1; R.wp = 0; }
      if (ch == 1) return 0; int y = wait_done(s, r, c, R.rsseq[x], ch); if (y != 2) return y; if (ch) return 0; wr(s, r, s.gs[r][x], 32 + 4 * R.wins + g + 64 * R.fseq, 4); return next(); }
    case RS: { if (R.posted[c] - R.done[c] >= F.D) { int x = complete(s, r, c, R.done[c] + 1, ch); if (x != 2) return x; } if (ch) return 0; int x = R.rsn % 2; if (!post(s, r, c, REDUCE, 32 + 4 * R.wins + g + 64 * R.fseq, g, x)) return 0; R.rsseq[x] = R.posted[c]; R.rsn++; return next(); }
    case WIN: { // complete own; peers' done; releases; error check; write
      if (R.ph < F.C) { int y = complete(s, r, R.ph, R.posted[R.ph], ch); if (y != 2) return y; R.ph++; R.wp = 0; return step_in(s, r, ch, lab); }
      if (ch == 1) return 0;
      if (R.ph == F.C && F.step_word && !R.saw) { if (ch) return 0; R.saw = 1; for (int cc = 0; cc < F.C; cc++) put_step(s, r, cc, R.posted[cc]); return 1; }
      if (R.ph < 2 * F.C) { int cc = R.ph - F.C; if (F.window_wait) { int y = wait_done(s, r, cc, R.posted[cc], ch, true); if (y != 2) return y; } if (F.watch && !F.step_word) { if (ch == 0 && err_seen(s, r, cc, 0, true)) { raise_(s, r, 2); return 1; } if (ch == 4 && err_seen(s, r, cc, 4, true)) return 0; if (ch && ch != 4) return 0; } else if (ch) return 0; R.ph++; R.wp = 0; return 1; }
      if (F.mode == MAPPED && F.rel_words && F.win_rel && R.ph < 2 * F.C + F.G) { int gg = R.ph - 2 * F.C; int y = wait_rel(s, r, gg, F.comm[gg], R.okseq[gg], ch, true); if (y != 2) return y; R.ph++; R.wp = 0; return step_in(s, r, ch, lab); }
      if (ch) return 0; for (int gg = 0; gg < F.G; gg++) { R.ver[gg]++; if (F.mode == PRIVATE || F.mode == MAPPED) wr(s, r, s.src[r][gg], R.ver[gg], 1); }
      for (int p = 0; p < F.W && !F.xwin; p++) if (s.r[p].failed && s.r[p].wins == R.wins && s.r[p].last_err == 1) bad(13);
      R.wins++; return next(); }
    case AR1: { // all-reduce in place: two sequences, then peers' done before the buffer is the host's again
      if (R.ph == 0) { if (ch) return 0; R.ar_src = 100 + 20 * R.fseq + 2 * R.arn++; for (int p = 0; p < F.W; p++) wr(s, r, s.ar[r][p], R.ar_src, 17); if (!post(s, r, c, SYNC, 50, g)) return 0; R.ph = 1; return 1; }
      if (R.ph == 1) { int y = complete(s, r, c, R.posted[c], ch); if (y != 2) return y; if (ch) return 0; if (!post(s, r, c, SYNC, 51, g)) return 0; R.ph = 2; return 1; }
      if (R.ph == 2) { int y = complete(s, r, c, R.posted[c], ch); if (y != 2) return y; R.ph = 3; R.wp = 0; }
      if (ch == 1) return 0; if (F.ar_wait) { int y = wait_done(s, r, c, R.posted[c], ch); if (y != 2) return y; } if (ch) return 0; return next(); }
    case BARR: if (R.ph == 0) { if (ch) return 0; if (!post(s, r, c, SYNC, 60, g)) return 0; R.ph = 1; return 1; } { int y = complete(s, r, c, R.posted[c], ch); if (y == 2) { if (ch) return 0; return next() ? step_in(s, r, 0, lab) : 0; } return y; }
    case DO_CLOSE: { if (R.ph == 0) { for (int cc = 0; cc < F.C; cc++) { int y = complete(s, r, cc, R.posted[cc], ch); if (y != 2) return y; } if (ch) return 0; for (int cc = 0; cc < F.C; cc++) post(s, r, cc, CLOSE, 0, 0); R.ph = 1; R.wp = 0; return 1; }
      int cc = R.ph - 1; if (cc < F.C) { int y = complete(s, r, cc, R.posted[cc], ch); if (y == 2) { R.ph++; R.wp = 0; return step_in(s, r, ch, lab); } return y; }
      if (ch) return 0; for (int gg = 0; gg < F.G; gg++) wr(s, r, s.src[r][gg], 99, 14); wr(s, r, s.gs[r][0], 99, 14); wr(s, r, s.gs[r][1], 99, 14); s.dead[r] = 2; R.pc = 255; return 1; }
    case TERM: if (ch) return 0; R.pc = 255; return 1;
  }
  return 0;
}
static bool step(State& s, int r, int ch, string* lab) { int was = s.r[r].pc; int x = step_in(s, r, ch, lab); if (x == 1 && !F.refcount && s.r[r].pc == 255 && (s.r[r].err == 9 || s.r[r].err == 8) && was != 255) { X = &s; for (int g = 0; g < F.G; g++) wr(s, r, s.src[r][g], 99, 14); } return x == 1; }
static void gc(State& s) { // forget what every rank knows, so that equal futures are equal states
  for (int p = 0; p < F.W; p++) { int m = 255; for (int q = 0; q < F.W; q++) if (q != p && s.r[q].pc != 255 && s.dead[q] == 0 && s.vc[q][p] < m) m = s.vc[q][p]; int top = s.vc[p][p]; for (int k = 0; k < top && k <= m; k++) memset(s.snap[p][k], 0, MW);
    for (int c = 0; c < F.C; c++) for (int i = 0; i < MS; i++) { if (s.pc_[c][p][i] <= m) s.pc_[c][p][i] = 0; if (s.dcl[c][p][i] <= m) s.dcl[c][p][i] = 0; } for (int g = 0; g < F.G; g++) for (int i = 0; i < MS; i++) if (s.rcl[g][p][i] <= m) s.rcl[g][p][i] = 0; for (int c = 0; c < F.C; c++) for (int i = 0; i < MS; i++) if (s.scl[c][p][i] <= m) s.scl[c][p][i] = 0; } }
struct H { uint64_t a, b; bool operator==(const H& o) const { return a == o.a && b == o.b; } }; struct HH { size_t operator()(const H& h) const { return h.a; } };
static H hash(const State& s) { const uint64_t* p = (const uint64_t*)&s; size_t n = sizeof(State) / 8; uint64_t a = 0x9E3779B97F4A7C15ull, b = 0xC2B2AE3D27D4EB4Full; for (size_t i = 0; i < n; i++) { a ^= p[i]; a *= 0xff51afd7ed558ccdull; a ^= a >> 32; b += p[i] ^ (b >> 29); b *= 0x9FB21C651E98DF25ull; b ^= b >> 35; } return {a, b}; }
struct Par { uint32_t parent; u8 r, ch; };
static std::vector<Par> par;
static void trace(uint32_t id, const State& init) { std::vector<uint32_t> path; for (uint32_t i = id; i; i = par[i].parent) path.push_back(i); State s = init; int n = path.size();
  static const char* kn[] = {"-", "gather", "reduce", "sync", "ERR", "RESET", "CLOSE"}; string prev;
  for (int i = n - 1; i >= 0; i--) { State o = s; int r = par[path[i]].r, ch = par[path[i]].ch; string lab; bool ok = step(s, r, ch, &lab); (void)ok; gc(s); string ev;
    auto add = [&](string e) { ev += (ev.empty() ? "" : ", ") + e; };
    for (int c = 0; c < F.C; c++) { if (s.r[r].posted[c] != o.r[r].posted[c]) add("post " + string(kn[s.pk[c][r][s.r[r].posted[c]]]) + " #" + std::to_string(s.r[r].posted[c]) + (F.C > 1 ? " on comm " + std::to_string(c) : "")); if (s.st[c][r] != o.st[c][r]) add("step=" + std::to_string(s.st[c][r])); if (s.dn[c][r] != o.dn[c][r]) add("done=" + std::to_string(s.dn[c][r])); }
    for (int g = 0; g < F.G; g++) if (s.rl[g][r] != o.rl[g][r]) add("released[" + std::to_string(g) + "]=" + std::to_string(s.rl[g][r]));
    if (ch == 1) add(o.r[r].pc == s.r[r].pc ? "fails" : "FAILS LOCALLY"); if (ch == 2) add("DIES"); if (s.r[r].wins != o.r[r].wins) add("WRITES its shards"); if (s.r[r].pc == 200 && o.r[r].pc != 200 && ch != 1) add("returns error"); if (s.r[r].pc == 255 && o.r[r].pc != 255) add("returns/ends");
    if (s.r[r].wp != o.r[r].wp && ev.empty()) add("sees peer"); if (ev.empty()) add("step");
    if (getenv("SCHED")) { for (int c = 0; c < F.C; c++) { string k = F.C > 1 ? "." + std::to_string(c) : ""; int q = s.r[r].posted[c]; if (q != o.r[r].posted[c]) printf("%d:%s%s#%d\n", r, s.pk[c][r][q] == ERR ? "FAIL" : s.pk[c][r][q] == RESET ? "RESET" : "POST", k.c_str(), q); if (s.st[c][r] != o.st[c][r]) printf("%d:STEP%s#%d\n", r, k.c_str(), s.st[c][r]); if (s.dn[c][r] != o.dn[c][r]) printf("%d:DONE%s#%d\n", r, k.c_str(), s.dn[c][r]); }
      for (int g = 0; g < F.G; g++) if (s.rl[g][r] != o.rl[g][r]) printf("%d:RELEASE%d#%d\n", r, g, s.rl[g][r]); if (s.r[r].wins != o.r[r].wins) printf("%d:WRITE#%d\n", r, s.r[r].wins); if (s.dead[r] != o.dead[r]) printf("%d:LIFE#%d\n", r, s.dead[r]); continue; }
    string line = "  rank " + std::to_string(r) + ": " + (o.r[r].pc == 199 ? "fail" : o.r[r].pc == 200 ? "reset" : lab) + ": " + ev; if (ev != "sees peer" || i == 0) printf("%s\n", line.c_str()); } }
static int check(const char* name, size_t limit) {
  State s; memset(&s, 0, sizeof s); for (int r = 0; r < F.W; r++) { s.vc[r][r] = 1; for (int g = 0; g < F.G; g++) s.src[r][g].wclk = 0; for (int g = 0; g < F.G; g++) s.r[r].castver[g] = 0; }
  State init = s; std::unordered_map<H, uint32_t, HH> seen; seen.reserve(1 << 20); par.clear(); par.push_back({0, 0, 0}); std::vector<std::pair<State, uint32_t>> cur{{s, 0}}, nx; seen[hash(s)] = 0; size_t depth = 0, trans = 0, ends = 0, errends = 0;
  while (!cur.empty()) { nx.clear();
    for (auto& [st, id] : cur) { bool any = false; 
      for (int r = 0; r < F.W; r++) for (int ch = 0; ch < 5; ch++) { State t = st; if (!step(t, r, ch, nullptr)) continue; if (ch != 1 && ch != 2) any = true; gc(t); trans++;
          H h = hash(t); auto [it, isnew] = seen.try_emplace(h, (uint32_t)par.size()); if (!isnew) continue; par.push_back({id, (u8)r, (u8)ch});
          if (t.viol) { printf("%-34s VIOLATION after %zu states, %zu steps: %s\n", name, seen.size(), depth + 1, vio[t.viol]); trace(it->second, init); return 1; }
          nx.emplace_back(t, it->second); }
      if (!any) { bool term = true; for (int r = 0; r < F.W; r++) if (st.r[r].pc != 255 && !st.dead[r]) term = false;
        if (!term) { printf("%-34s DEADLOCK after %zu states, %zu steps; waiting:", name, seen.size(), depth); for (int r = 0; r < F.W; r++) { int pc = st.r[r].pc; printf(" rank %d in %s", r, pc == 255 ? "-" : pc == 200 ? "reset" : pc == 199 ? "fail" : (string(opn[F.prog[pc].op]) + " " + char('A' + F.prog[pc].g)).c_str()); } printf("\n"); trace(id, init); return 1; }
        ends++; bool e = false;
        if (F.deaths) { int w0 = -1; for (int r = 0; r < F.W; r++) if (st.dead[r] != 1) { if (w0 < 0) w0 = st.r[r].wins; else if (w0 != st.r[r].wins) { printf("%-34s VIOLATION: survivors disagree about the last window\n", name); trace(id, init); return 1; } } }
        for (int r = 0; r < F.W; r++) e |= st.r[r].err; errends += e;
        if (!st.abort_ && !F.noreset && !F.deaths) for (int r = 1; r < F.W; r++) if (st.r[r].ver[0] != st.r[0].ver[0] || st.r[r].fseq != st.r[0].fseq) { printf("%-34s VIOLATION: %s\n", name, vio[16]); trace(id, init); return 1; } } }
    cur.swap(nx); depth++; if (seen.size() > limit) { printf("%-34s no violation in the first %zu states (depth %zu): NOT EXHAUSTIVE\n", name, seen.size(), depth); return 2; } }
  printf("%-34s ok: %zu states, %zu transitions, depth %zu, %zu end states\n", name, seen.size(), trans, depth, ends); return 0; }
// programs -------------------------------------------------------------------------------------------------
static std::vector<I> step3() { return {{ISSUE, 0}, {ISSUE, 1}, {WAIT, 0}, {USE, 0}, {REL, 0}, {ISSUE, 2}, {WAIT, 1}, {USE, 1}, {REL, 1}, {WAIT, 2}, {USE, 2}, {ISSUE, 1}, {GRAD, 2}, {RS, 2}, {REL, 2}, {WAIT, 1}, {USE, 1}, {ISSUE, 0}, {GRAD, 1}, {RS, 1}, {REL, 1}, {WAIT, 0}, {USE, 0}, {GRAD, 0}, {RS, 0}, {REL, 0}, {WIN, 0}}; }
static std::vector<I> step2() { return {{ISSUE, 0}, {ISSUE, 1}, {WAIT, 0}, {USE, 0}, {REL, 0}, {WAIT, 1}, {USE, 1}, {ISSUE, 0}, {GRAD, 1}, {RS, 1}, {REL, 1}, {WAIT, 0}, {USE, 0}, {GRAD, 0}, {RS, 0}, {REL, 0}, {WIN, 0}}; }
static std::vector<I> cat(std::vector<std::vector<I>> v) { std::vector<I> o; for (auto& x : v) o.insert(o.end(), x.begin(), x.end()); return o; }
static std::vector<I> close_() { return {{DO_CLOSE, 0}}; }
static std::vector<I> mini() { return {{ISSUE, 0}, {WAIT, 0}, {USE, 0}, {GRAD, 0}, {RS, 0}, {REL, 0}, {WIN, 0}}; }
static std::vector<I> fwd() { return {{ISSUE, 0}, {ISSUE, 1}, {WAIT, 0}, {USE, 0}, {REL, 0}, {WAIT, 1}, {USE, 1}, {REL, 1}, {WIN, 0}}; }   // eval, then a write (EMA)
static std::vector<I> never() { return {{ISSUE, 0}, {ISSUE, 1}, {ISSUE, 2}, {WAIT, 0}, {USE, 0}, {WAIT, 1}, {USE, 1}, {WAIT, 2}, {USE, 2}, {GRAD, 2}, {RS, 2}, {GRAD, 1}, {RS, 1}, {GRAD, 0}, {RS, 0}, {REL, 2}, {REL, 1}, {REL, 0}, {WIN, 0}}; }  // no reshard after forward
static void three() { F.colour[2] = 2; }
static void retry_at(const std::vector<I>& a) { F.retry = a.size(); }
static std::map<string, std::function<void()>> cfgs = {
  {"p2", [] { F.W = 2; F.prog = cat({step3(), step3(), close_()}); }},
  {"s2", [] { F.W = 2; F.mode = SHARED; F.prog = cat({step3(), step3(), close_()}); }},
  {"m2", [] { F.W = 2; F.mode = MAPPED; F.prog = cat({step3(), step3(), close_()}); }},
  {"c2", [] { F.W = 2; F.mode = MAPPED_CAST; F.prog = cat({step3(), step3(), close_()}); }},
  {"p3", [] { F.W = 3; F.G = 2; F.prog = cat({step2(), step2(), close_()}); }},
  {"s3", [] { F.W = 3; F.G = 3; F.mode = SHARED; F.prog = cat({step3(), close_()}); }},
  {"m3", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.prog = cat({step2(), mini(), close_()}); }},
  {"c3", [] { F.W = 3; F.G = 2; F.mode = MAPPED_CAST; F.prog = cat({step2(), mini(), close_()}); }},
  {"p2two", [] { F.W = 2; F.C = 2; F.comm[1] = 1; F.prog = cat({step3(), step3(), close_()}); }},
  {"m2two", [] { F.W = 2; F.C = 2; F.comm[1] = 1; F.mode = MAPPED; F.prog = cat({step3(), step3(), close_()}); }},
  {"p3two", [] { F.W = 3; F.C = 2; F.G = 2; F.comm[1] = 1; F.prog = cat({step2(), mini(), close_()}); }},
  {"p2f", [] { F.W = 2; F.G = 3; F.fails = 2; F.prog = cat({step3(), mini(), close_()}); retry_at(step3()); }},
  {"s2f", [] { F.W = 2; F.G = 3; F.mode = SHARED; F.fails = 2; F.prog = cat({step3(), mini(), close_()}); retry_at(step3()); }},
  {"m2f", [] { F.W = 2; F.G = 3; F.mode = MAPPED; F.fails = 2; F.prog = cat({step3(), mini(), close_()}); retry_at(step3()); }},
  {"c2f", [] { F.W = 2; F.G = 3; F.mode = MAPPED_CAST; F.fails = 2; F.prog = cat({step3(), mini(), close_()}); retry_at(step3()); }},
  {"p2twof", [] { F.W = 2; F.C = 2; F.G = 3; F.comm[1] = 1; F.fails = 2; F.prog = cat({step3(), mini(), close_()}); retry_at(step3()); }},
  {"p3f", [] { F.W = 3; F.G = 2; F.fails = 1; F.prog = cat({step2(), mini(), close_()}); retry_at(step2()); }},
  {"s3f", [] { F.W = 3; F.G = 2; F.colour[1] = 0; F.mode = SHARED; F.fails = 1; F.prog = cat({mini(), mini(), close_()}); retry_at(mini()); }},
  {"p3f2", [] { F.W = 3; F.G = 1; F.fails = 2; F.prog = cat({mini(), mini(), close_()}); retry_at(mini()); }},
  {"m3f", [] { F.W = 3; F.G = 1; F.mode = MAPPED; F.fails = 1; F.prog = cat({mini(), mini(), close_()}); retry_at(mini()); }},
  {"nr2", [] { F.W = 2; F.G = 3; F.mode = SHARED; F.fails = 1; F.noreset = true; F.deaths = 0; F.prog = cat({step3(), {{TERM, 0}}}); F.retry = step3().size(); }},
  {"p2d", [] { F.W = 2; F.G = 3; F.deaths = 1; F.prog = cat({step3(), mini(), close_()}); }},
  {"s2d", [] { F.W = 2; F.G = 3; F.mode = SHARED; F.deaths = 1; F.prog = cat({step3(), mini(), close_()}); }},
  {"m3d", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.deaths = 1; F.prog = cat({step2(), close_()}); }},
  {"p3d", [] { F.W = 3; F.G = 2; F.deaths = 2; F.prog = cat({step2(), close_()}); }},
  {"e2p", [] { F.W = 2; F.G = 2; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }}, {"e2m", [] { F.W = 2; F.G = 2; F.mode = MAPPED; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e2c", [] { F.W = 2; F.G = 2; F.mode = MAPPED_CAST; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }}, {"e2s", [] { F.W = 2; F.G = 2; F.mode = SHARED; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e3p", [] { F.W = 3; F.G = 2; F.prog = cat({fwd(), fwd(), close_()}); }}, {"e3m", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.prog = cat({fwd(), fwd(), close_()}); }}, {"e3c", [] { F.W = 3; F.G = 2; F.mode = MAPPED_CAST; F.prog = cat({fwd(), fwd(), close_()}); }},
  {"n2p", [] { F.W = 2; three(); F.prog = cat({never(), never(), close_()}); }}, {"n2m", [] { F.W = 2; three(); F.mode = MAPPED; F.prog = cat({never(), never(), close_()}); }}, {"n2s", [] { F.W = 2; three(); F.mode = SHARED; F.prog = cat({never(), never(), close_()}); }},
  {"n3p", [] { F.W = 3; three(); F.prog = cat({never(), close_()}); }}, {"n3m", [] { F.W = 3; three(); F.mode = MAPPED; F.prog = cat({never(), close_()}); }}, {"n3c", [] { F.W = 3; three(); F.mode = MAPPED_CAST; F.prog = cat({never(), close_()}); }},
  {"n2pf", [] { F.W = 2; three(); F.fails = 2; F.prog = cat({never(), mini(), close_()}); retry_at(never()); }}, {"n2mf", [] { F.W = 2; three(); F.mode = MAPPED; F.fails = 2; F.prog = cat({never(), mini(), close_()}); retry_at(never()); }},
  {"e2mf", [] { F.W = 2; F.G = 2; F.mode = MAPPED; F.fails = 2; F.prog = cat({fwd(), fwd(), close_()}); retry_at(fwd()); }}, {"e2cf", [] { F.W = 2; F.G = 2; F.mode = MAPPED_CAST; F.fails = 2; F.prog = cat({fwd(), fwd(), close_()}); retry_at(fwd()); }}, {"e3pf", [] { F.W = 3; F.G = 2; F.fails = 1; F.prog = cat({fwd(), fwd(), close_()}); retry_at(fwd()); }},
  {"n3pd", [] { F.W = 3; three(); F.deaths = 1; F.prog = cat({never(), close_()}); }}, {"e3md", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.deaths = 2; F.prog = cat({fwd(), close_()}); }},
  {"nr2p", [] { F.W = 2; three(); F.fails = 1; F.noreset = true; F.prog = cat({never(), {{TERM, 0}}}); }}, {"nr3m", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.fails = 1; F.noreset = true; F.prog = cat({fwd(), {{TERM, 0}}}); }},
  {"x2two", [] { F.W = 2; F.C = 2; F.G = 3; F.comm[1] = 1; F.colour[2] = 2; std::vector<I> a = {{ISSUE, 0, 1}, {WAIT, 0, 1}, {EXTRA, 2, 2}, {ISSUE, 1}, {WAIT, 1}}; F.prog = cat({a, mini(), close_()}); retry_at(a); F.fails = 1; F.failfrom = 98; }},
  {"p2twor", [] { F.W = 2; F.C = 2; F.G = 2; F.comm[1] = 1; F.fails = 2; F.direct = true; F.prog = cat({step2(), mini(), close_()}); retry_at(step2()); }},
  {"a2", [] { F.W = 2; F.G = 2; F.prog = cat({{{AR1, 0}, {AR1, 0}, {AR1, 0}}, mini(), close_()}); }}, {"a3", [] { F.W = 3; F.G = 2; F.prog = cat({{{ISSUE, 0}, {AR1, 0}, {WAIT, 0}, {AR1, 0}, {AR1, 0}, {USE, 0}, {REL, 0}}, mini(), close_()}); }},
  {"a2f", [] { F.W = 2; F.G = 2; F.fails = 2; std::vector<I> a = {{AR1, 0}, {AR1, 0}}; F.prog = cat({a, {{AR1, 0}}, mini(), close_()}); retry_at(a); }}, {"a3f", [] { F.W = 3; F.G = 2; F.fails = 1; std::vector<I> a = {{AR1, 0}, {AR1, 0}}; F.prog = cat({a, {{AR1, 0}}, mini(), close_()}); retry_at(a); }},
  {"e2px", [] { F.W = 2; F.G = 2; F.mode = PRIVATE; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e2mx", [] { F.W = 2; F.G = 2; F.mode = MAPPED; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e2cx", [] { F.W = 2; F.G = 2; F.mode = MAPPED_CAST; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e2sx", [] { F.W = 2; F.G = 2; F.mode = SHARED; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), fwd(), close_()}); }},
  {"e3px", [] { F.W = 3; F.G = 2; F.mode = PRIVATE; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), close_()}); }},
  {"e3mx", [] { F.W = 3; F.G = 2; F.mode = MAPPED; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), close_()}); }},
  {"e3cx", [] { F.W = 3; F.G = 2; F.mode = MAPPED_CAST; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), close_()}); }},
  {"e3sx", [] { F.W = 3; F.G = 2; F.mode = SHARED; F.xwin = true; F.step_word = false; F.watch = false; F.prog = cat({fwd(), fwd(), close_()}); }},
  {"h2m", [] { F.W = 2; F.G = 2; F.mode = MAPPED; F.xwin = true; F.step_word = false; F.prog = cat({{{ISSUE, 0}, {ISSUE, 1}, {WAIT, 0}, {WAIT, 1}, {GRAD, 0}, {RS, 0}, {USE, 0}, {USE, 1}, {REL, 0}, {REL, 1}, {WIN, 0}}, fwd(), close_()}); }},
  {"nr2two", [] { F.W = 2; F.C = 2; F.G = 3; F.comm[1] = 1; F.fails = 1; F.noreset = true; F.prog = cat({step3(), {{TERM, 0}}}); }},
  {"nr3two", [] { F.W = 3; F.C = 2; F.G = 2; F.comm[1] = 1; F.mode = MAPPED; F.fails = 1; F.noreset = true; F.prog = cat({fwd(), {{TERM, 0}}}); }},
  {"x2", [] { F.W = 2; F.G = 2; F.fails = 0; F.deaths = 0; F.prog = cat({{{EXTRA, 1, 2}}, mini(), mini(), close_()}); F.retry = 1 + mini().size(); F.fails = 1; F.failfrom = 98; }},
  {"x3", [] { F.W = 3; F.G = 2; F.prog = cat({{{EXTRA, 1, 2}}, mini(), mini(), close_()}); F.retry = 1 + mini().size(); F.fails = 1; F.failfrom = 98; }},
};
static std::map<string, std::function<void()>> vars = {
  {"done_out_of_order", [] { F.inorder = false; }}, {"mapped_done_at_gather", [] { F.rel_words = false; }}, {"one_done_word_held", [] { F.done_hold = true; F.rel_words = false; }},
  {"no_slot_release", [] { F.slot_wait = false; }}, {"wait_without_progress", [] { F.progress = false; }}, {"revise_post", [] { F.immut = false; }}, {"done_before_error", [] { F.err_first = false; }},
  {"reset_comm_by_comm", [] { F.reset_all = false; }}, {"reset_once", [] { F.reset_loop = false; }}, {"liveness_no_recheck", [] { F.recheck = false; }}, {"cast_no_wait", [] { F.cast_wait = false; }},
  {"no_error_watch", [] { F.watch = false; }}, {"release_counts_local", [] { F.rel_seq = false; }}, {"slot_parity_local", [] { F.rec_slot = false; }}, {"free_on_abort", [] { F.refcount = false; }}, {"no_window_wait", [] { F.window_wait = false; }}, {"source_in_slot", [] { F.src_slot = true; }}, {"failure_not_posted", [] { F.err_post = false; }},
  {"allreduce_no_final_wait", [] { F.ar_wait = false; }}, {"window_no_release_wait", [] { F.win_rel = false; }}, {"window_on_done", [] { F.step_word = false; F.step_tag = true; }}, {"error_no_last_look", [] { F.last_look = false; }}, {"error_no_last_look_but_tagged", [] { F.last_look = false; F.step_tag = true; }}, {"error_on_one_comm", [] { F.err_all = false; }}, {"watch_next_only", [] { F.watch_open = false; }}, {"window_on_done_error_untagged", [] { F.step_word = false; }}, {"ring_d2_r3", [] { F.D = 2; F.R = 3; }}, {"ring_d2_r4", [] { F.D = 2; F.R = 4; }}, {"ring_d2_r5", [] { F.D = 2; F.R = 5; }}, {"ring_d2_r6", [] { F.D = 2; F.R = 6; }}, {"ring_d3_r7", [] { F.D = 3; F.R = 7; }}, {"ring_d1_r4", [] { F.D = 1; F.R = 4; }}, {"ring_d1_r3", [] { F.D = 1; F.R = 3; }}, {"flow_control", [] { F.D = 2; F.R = 4; F.flow = true; }},
};
int main(int argc, char** argv) { if (argc < 2 || string(argv[1]) == "list") { for (auto& [k, v] : cfgs) printf("config %s\n", k.c_str()); for (auto& [k, v] : vars) printf("variant %s\n", k.c_str()); return 0; }
  string n = argv[1]; cfgs.at(n)(); if (argc > 2) { vars.at(argv[2])(); n += string(" ") + argv[2]; } size_t lim = argc > 3 ? strtoull(argv[3], 0, 10) : 12000000; static_assert(sizeof(State) % 8 == 0 || true); return check(n.c_str(), lim); }
