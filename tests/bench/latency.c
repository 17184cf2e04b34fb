/* SPDX-License-Identifier: Apache-2.0
 * What a message costs between processes of this machine: an all-gather of 1 KiB a rank and a barrier, beside a bare
 * futex ping-pong of two processes. Rank 0 prints one line.
 *
 *     tpfsdp-run -n 2 ./latency */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <tpfsdp/tpfsdp.h>
#include <unistd.h>

enum { ROUNDS = 15, CALLS = 2000, FLOATS = 256 };

static void die(tpfsdp_error *error) {
  fprintf(stderr, "latency: %s\n", error ? tpfsdp_error_message(error) : "the system refused");
  exit(1);
}
#define TRY(...) do { tpfsdp_error *error = NULL; if ((__VA_ARGS__) < 0) die(error); } while (0)

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}
static double median(double *values) {
  qsort(values, ROUNDS, sizeof *values, by_value);
  return values[ROUNDS / 2];
}

static void hand_over(atomic_int *turn, int to) {
  atomic_store(turn, to);
  syscall(SYS_futex, turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}
static void wait_for(atomic_int *turn, int mine) {
  for (int seen; (seen = atomic_load(turn)) != mine;) syscall(SYS_futex, turn, FUTEX_WAIT, seen, NULL, NULL, 0);
}

/* There and back, half of it. */
static double ping_pong_us(void) {
  double times[ROUNDS];
  atomic_int *turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (turn == MAP_FAILED) die(NULL);
  const pid_t other = fork();
  if (other < 0) die(NULL);
  if (other == 0) {
    for (int i = 0; i < ROUNDS * CALLS; i++) wait_for(turn, 1), hand_over(turn, 0);
    _exit(0);
  }
  for (int round = 0; round < ROUNDS; round++) {
    const double began = now_us();
    for (int i = 0; i < CALLS; i++) hand_over(turn, 1), wait_for(turn, 0);
    times[round] = (now_us() - began) / CALLS / 2;
  }
  waitpid(other, NULL, 0);
  return median(times);
}

int main(void) {
  const char *launched = getenv("RANK");
  const double futex_us = launched && atoi(launched) == 0 ? ping_pong_us() : 0; /* before this process has ranks */
  tpfsdp_context *context;
  tpfsdp_context_info me = TPFSDP_INIT(tpfsdp_context_info);
  TRY(tpfsdp_context_create(NULL, &context, &error));
  TRY(tpfsdp_context_get_info(context, &me, &error));

  const int64_t part = FLOATS, whole = part * me.world_size;
  float *in = calloc((size_t)part, sizeof *in), *out = calloc((size_t)whole, sizeof *out);
  if (!in || !out) die(NULL);
  tpfsdp_view input, output;
  TRY(tpfsdp_tensor_view_init(&input, in, TPFSDP_DTYPE_F32, &part, 1, &error));
  TRY(tpfsdp_tensor_view_init(&output, out, TPFSDP_DTYPE_F32, &whole, 1, &error));
  double gathers[ROUNDS], barriers[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    double began = now_us();
    for (int i = 0; i < CALLS; i++) TRY(tpfsdp_group_all_gather(me.group, &input, &output, NULL, 0, NULL, NULL, &error));
    gathers[round] = (now_us() - began) / CALLS;
    began = now_us();
    for (int i = 0; i < CALLS; i++) TRY(tpfsdp_group_barrier(me.group, &error));
    barriers[round] = (now_us() - began) / CALLS;
  }
  if (me.rank == 0)
    printf("%d processes: all-gather of 1 KiB %.2f us, barrier %.2f us, futex ping-pong of two %.2f us\n", me.world_size,
           median(gathers), median(barriers), futex_us);
  TRY(tpfsdp_context_shutdown(context, &error));
  return 0;
}
