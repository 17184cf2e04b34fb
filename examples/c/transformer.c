/* SPDX-License-Identifier: Apache-2.0
 * Trains a character-level transformer sharded: each block is a unit of its own, the root owns the embedding, whose
 * values are also the output's weight. Forward and backward are by hand, in transformer_model.c.
 *
 *   zcat data/devil.txt.gz > devil.txt
 *   transformer devil.txt --ranks 2 --compare          ranks are threads of this process; a minute
 *   tpfsdp-run -n 2 transformer devil.txt --compare    ranks are processes; or mpirun, srun
 *   transformer devil.txt --ranks 2 --unsharded        what they must equal: all micro-batches in one process
 *
 * The last line is the result as JSON. With --compare the unsharded run follows, and the exit status is 1 where a loss
 * or a parameter differs by one unit in the last place. TPFSDP_FAULT=scale_grad:1.01 or drop_rank:1 plants an error in
 * the gradients, which it must find. */
#include "transformer_trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
  const char *path;
  int threads; /* 0: this process is one rank, as its launcher says */
  int compare, unsharded;
} options;

static int usage(const char *program) {
  fprintf(stderr,
          "usage: %s TEXT [--ranks N] [--steps 300] [--batch 8] [--width 48] [--length 32] [--heads 4] [--blocks 4]\n"
          "       [--held-out PIECES] [--mode private|shared|mapped] [--recompute] [--compare] [--unsharded]\n",
          program);
  return 2;
}

static int set_mode(job *work, const char *name) {
  static const char *const names[] = {"private", "shared", "mapped"}, *const suffixes[] = {"", "-shared", "-mapped"};
  for (int i = 0; i < 3; i++)
    if (strcmp(name, names[i]) == 0) {
      work->mode = TPFSDP_UNSHARD_PRIVATE + i;
      work->mode_suffix = suffixes[i];
      return 0;
    }
  return -1;
}

/* 0, or -1 for what is not known. */
static int parse(options *o, job *work, int count, char **arguments) {
  struct {
    const char *name;
    int *number;
    int is_switch;
  } known[] = {{"--ranks", &o->threads, 0},
               {"--steps", &work->todo.steps, 0},
               {"--batch", &work->todo.pieces, 0},
               {"--width", &work->todo.s.width, 0},
               {"--length", &work->todo.s.length, 0},
               {"--heads", &work->todo.s.heads, 0},
               {"--blocks", &work->todo.s.blocks, 0},
               {"--held-out", &work->todo.held_out_pieces, 0},
               {"--compare", &o->compare, 1},
               {"--unsharded", &o->unsharded, 1},
               {"--recompute", &work->todo.recompute, 1}};
  const int known_count = (int)(sizeof known / sizeof *known);
  for (int i = 1; i < count; i++) {
    int k = 0;
    while (k < known_count && strcmp(arguments[i], known[k].name) != 0) k++;
    if (k < known_count && known[k].is_switch)
      *known[k].number = 1;
    else if (k < known_count && i + 1 < count)
      *known[k].number = atoi(arguments[++i]);
    else if (strcmp(arguments[i], "--mode") == 0 && i + 1 < count && set_mode(work, arguments[i + 1]) == 0)
      i++;
    else if (arguments[i][0] != '-' && !o->path)
      o->path = arguments[i];
    else
      return -1;
  }
  return 0;
}

static int is_possible(const plan *todo) {
  const shape *s = &todo->s;
  return todo->steps > 0 && todo->pieces > 0 && todo->held_out_pieces >= 0 && s->heads > 0 && s->width > 1 &&
         s->width % s->heads == 0 && s->length > 0 && s->length <= MAX_LENGTH && s->blocks > 0 &&
         s->blocks <= MAX_BLOCKS;
}

/* What depends on the number of ranks. 0, or -1 after a message. */
static int settle(job *work, int ranks) {
  plan *todo = &work->todo;
  const int all = (todo->data->held_out_count - 1) / todo->s.length;
  const int wanted = todo->held_out_pieces > 0 && todo->held_out_pieces < all ? todo->held_out_pieces : all;
  todo->ranks = ranks;
  todo->held_out_pieces = wanted / (ranks > 0 ? ranks : 1) * ranks;
  if (ranks > 0 && ranks <= MAX_RANKS && todo->held_out_pieces > 0 && job_create(work) == 0) return 0;
  fprintf(stderr, "transformer: not with %d ranks\n", ranks);
  return -1;
}

static int failure(tpfsdp_error *error) {
  fprintf(stderr, "transformer: %s\n", error ? tpfsdp_error_message(error) : "this rank cannot train");
  tpfsdp_handle_release(error);
  return 1;
}

static int run_threads(job *work, const options *o) {
  tpfsdp_rank_callback ranks = {rank_main, NULL, NULL};
  tpfsdp_error *error = NULL;
  if (settle(work, o->threads)) return 2;
  ranks.user = work;
  if (tpfsdp_context_run_ranks(o->threads, NULL, &ranks, &error) < 0) return failure(error);
  return job_report(work, 0, o->threads - 1, o->compare);
}

/* Rank 0 tells of all: they have the same losses, since those are averaged. */
static int run_process(job *work, const options *o) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  tpfsdp_rank_args me = TPFSDP_INIT(tpfsdp_rank_args);
  tpfsdp_error *error = NULL;
  tpfsdp_status status = tpfsdp_context_create(NULL, &me.context, &error);
  if (status < 0) return failure(error);
  me.error = &error;
  status = tpfsdp_context_get_info(me.context, &info, &error);
  me.rank = info.rank;
  me.world_size = info.world_size;
  if (status >= 0) status = settle(work, info.world_size) ? TPFSDP_ERR_INVALID_ARGUMENT : rank_main(work, &me);
  if (status >= 0) status = tpfsdp_context_shutdown(me.context, &error);
  if (status < 0) tpfsdp_context_abort(me.context, "this rank failed");
  tpfsdp_handle_release(me.context);
  if (status < 0) return failure(error);
  return me.rank == 0 ? job_report(work, 0, 0, o->compare) : 0;
}

int main(int count, char **arguments) {
  options o = {NULL, 0, 0, 0};
  job *work = calloc(1, sizeof *work);
  text data;
  int failed;
  if (!work) return 2;
  work->todo.s.width = 48, work->todo.s.length = 32, work->todo.s.heads = 4, work->todo.s.blocks = 4;
  work->todo.steps = 300, work->todo.pieces = 8;
  set_mode(work, "private");
  if (parse(&o, work, count, arguments) || !o.path || !is_possible(&work->todo)) {
    free(work);
    return usage(arguments[0]);
  }
  if (text_load(&data, o.path)) {
    free(work);
    return 2;
  }
  work->todo.data = &data;
  work->todo.s.symbols = data.symbol_count;
  if (o.unsharded)
    failed = settle(work, o.threads ? o.threads : 1) ? 2 : job_reference(work);
  else
    failed = o.threads ? run_threads(work, &o) : run_process(work, &o);
  job_free(work);
  text_free(&data);
  free(work);
  return failed;
}
