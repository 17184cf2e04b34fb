/* SPDX-License-Identifier: Apache-2.0
 * How a rank trains: the library is called at the edges of every block, and computes nothing of the model. */
#include "transformer_trainer.h"
#include "verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pointers to the full values of a unit; not to be kept beyond its reshard. */
static tpfsdp_status full_values(trainer *t, int unit, param_set *set) {
  for (int p = 0; p < unit_params(unit); p++) {
    tpfsdp_view view;
    TRY(tpfsdp_param_get_view(t->params[unit][p], TPFSDP_FACE_FULL, &view, t->me->error));
    set->p[p] = view.data;
  }
  return TPFSDP_OK;
}

/* The library's memory for gradients of parameters first..last-1 of a unit. */
static tpfsdp_status grad_buffers(trainer *t, int unit, int first, int last, int accumulate, param_set *set) {
  for (int p = first; p < last; p++) {
    tpfsdp_view view;
    TRY(tpfsdp_param_get_grad_buffer(t->params[unit][p], accumulate, &view, t->me->error));
    set->p[p] = view.data;
  }
  return TPFSDP_OK;
}

/* They are written, and count. */
static tpfsdp_status grads_ready(trainer *t, int unit, int first, int last, const param_set *set) {
  for (int p = first; p < last; p++) {
    const param_size size = param_size_of(&t->a.s, unit, p);
    if (t->grad_factor != 1)
      for (int64_t i = 0; i < (int64_t)size.rows * size.columns; i++) set->p[p][i] *= t->grad_factor;
    TRY(tpfsdp_param_grad_ready(t->params[unit][p], t->me->error));
  }
  return TPFSDP_OK;
}

static tpfsdp_status run_block(trainer *t, int block, float *y) {
  param_set values;
  TRY(tpfsdp_module_pre_forward(t->units[1 + block], t->me->error)); /* gathered */
  TRY(full_values(t, 1 + block, &values));
  block_forward(&t->a, block, y, &values);
  return tpfsdp_module_post_forward(t->units[1 + block], t->me->error); /* and let go */
}

static tpfsdp_status forward(trainer *t, float *out_loss) {
  param_set values;
  TRY(tpfsdp_module_pre_forward(t->root, t->me->error));
  TRY(full_values(t, 0, &values)); /* the root stays full: its forward is around those of the blocks */
  embed(&t->a, &values);
  for (int b = 0; b < t->a.s.blocks; b++) TRY(run_block(t, b, t->a.x[b + 1]));
  *out_loss = head(&t->a, &values);
  return tpfsdp_module_post_forward(t->root, t->me->error);
}

static tpfsdp_status back_through_block(trainer *t, int block) {
  const int unit = 1 + block;
  param_set values, grads;
  TRY(tpfsdp_module_pre_backward(t->units[unit], t->me->error));   /* gathered again; the next one is on its way */
  if (t->work->todo.recompute) TRY(run_block(t, block, t->a.out)); /* inside a backward this lets go of nothing */
  TRY(full_values(t, unit, &values));
  TRY(grad_buffers(t, unit, 0, BLOCK_PARAMS, 0, &grads));
  block_backward(&t->a, block, &values, &grads);
  TRY(grads_ready(t, unit, 0, BLOCK_PARAMS, &grads));
  return tpfsdp_module_post_backward(t->units[unit], t->me->error); /* starts the reduction */
}

static tpfsdp_status backward(trainer *t) {
  param_set values, grads;
  TRY(tpfsdp_module_pre_backward(t->root, t->me->error));
  TRY(full_values(t, 0, &values));
  TRY(grad_buffers(t, 0, TOKENS, TOKENS + 1, 0, &grads));
  TRY(grad_buffers(t, 0, NORM_WEIGHT, ROOT_PARAMS, 0, &grads));
  head_backward(&t->a, &values, &grads);
  TRY(grads_ready(t, 0, NORM_WEIGHT, ROOT_PARAMS, &grads));
  TRY(tpfsdp_param_grad_ready(t->params[0][TOKENS], t->me->error));
  for (int b = t->a.s.blocks; b-- > 0;) TRY(back_through_block(t, b));
  /* The tied gradient has the head's part already: the embedding adds its own to it. */
  TRY(grad_buffers(t, 0, TOKENS, NORM_WEIGHT, 1, &grads));
  embed_backward(&t->a, &grads);
  TRY(grads_ready(t, 0, TOKENS, NORM_WEIGHT, &grads));
  TRY(tpfsdp_module_post_backward(t->root, t->me->error));
  return tpfsdp_module_end_backward(t->root, t->me->error); /* averaged; shards may be written now */
}

static tpfsdp_status optimizer_step(trainer *t, adamw *optimizer, double rate) {
  tpfsdp_error **error = t->me->error;
  adamw_begin_step(optimizer, rate);
  for (int u = 0; u <= t->a.s.blocks; u++)
    for (int p = 0; p < unit_params(u); p++) {
      tpfsdp_view shard, grad;
      int64_t count;
      TRY(tpfsdp_param_get_view(t->params[u][p], TPFSDP_FACE_SHARD, &shard, error));
      TRY(tpfsdp_param_get_view(t->params[u][p], TPFSDP_FACE_GRAD, &grad, error));
      count = shard.size_bytes / (int64_t)sizeof(float);
      adamw_update(optimizer, shard.data, grad.data, t->moments[u][p], t->moments[u][p] + count, count);
    }
  return tpfsdp_module_zero_grad(t->root, 1, error);
}

/* Bits per character. Ranks gather together, so each takes as many pieces as the others. */
static tpfsdp_status held_out_bits(trainer *t, double *out_bits) {
  const plan *todo = &t->work->todo;
  const int share = todo->held_out_pieces / todo->ranks, begin = share * t->me->rank;
  double nats = 0;
  tpfsdp_view scalar;
  TRY(tpfsdp_module_set_grad_enabled(t->root, 0, t->me->error));
  for (int done = 0; done < share; done += todo->pieces) {
    float loss;
    t->a.pieces = share - done < todo->pieces ? share - done : todo->pieces;
    t->a.rows = t->a.pieces * t->a.s.length;
    text_held_out(todo->data, begin + done, t->a.pieces, t->a.s.length, t->a.tokens, t->a.targets);
    TRY(forward(t, &loss));
    nats += (double)loss * t->a.pieces;
  }
  t->a.pieces = todo->pieces;
  t->a.rows = t->a.pieces * t->a.s.length;
  TRY(tpfsdp_module_set_grad_enabled(t->root, 1, t->me->error));
  *out_bits = nats / share / log(2);
  TRY(tpfsdp_tensor_view_init(&scalar, out_bits, TPFSDP_DTYPE_F64, NULL, 0, t->me->error));
  return tpfsdp_group_all_reduce(t->group, &scalar, &scalar, TPFSDP_REDUCE_AVG, NULL, NULL, t->me->error);
}

/* All values, for the comparison. */
static tpfsdp_status copy_values(trainer *t) {
  tpfsdp_scope *scope;
  tpfsdp_status status = TPFSDP_OK;
  param_set copies[MAX_UNITS], full;
  TRY(tpfsdp_scope_open(&t->root, 1, NULL, &scope, t->me->error));
  param_sets_over(&t->a.s, t->run->values, copies);
  for (int u = 0; u <= t->a.s.blocks && status >= 0; u++) {
    status = full_values(t, u, &full);
    for (int p = 0; p < unit_params(u) && status >= 0; p++) {
      const param_size size = param_size_of(&t->a.s, u, p);
      memcpy(copies[u].p[p], full.p[p], sizeof(float) * (size_t)size.rows * (size_t)size.columns);
    }
  }
  tpfsdp_handle_release(scope); /* closes it */
  return status;
}

static tpfsdp_status train(trainer *t) {
  const plan *todo = &t->work->todo;
  tpfsdp_error **error = t->me->error;
  adamw optimizer = {0, 0};
  TRY(tree_create(t));
  TRY(held_out_bits(t, &t->run->bits[0]));
  TRY(tpfsdp_trace_get_counters(t->me->context, 1, &t->run->counters, error));
  for (int step = 0; step < todo->steps; step++) {
    float *loss = &t->run->losses[step];
    tpfsdp_view scalar;
    text_micro_batch(todo->data, step, t->me->rank, todo->pieces, todo->s.length, t->a.tokens, t->a.targets);
    TRY(forward(t, loss));
    TRY(backward(t));
    TRY(optimizer_step(t, &optimizer, learning_rate(step, todo->steps)));
    TRY(tpfsdp_tensor_view_init(&scalar, loss, TPFSDP_DTYPE_F32, NULL, 0, error));
    TRY(tpfsdp_group_all_reduce(t->group, &scalar, &scalar, TPFSDP_REDUCE_AVG, NULL, NULL, error));
    if (t->me->rank == 0 && (step % 50 == 0 || step == todo->steps - 1)) {
      printf("  step %4d  loss %.4f, %.3f bits\n", step, (double)*loss, (double)*loss / log(2));
      fflush(stdout);
    }
  }
  TRY(tpfsdp_trace_get_counters(t->me->context, 0, &t->run->counters, error));
  TRY(tpfsdp_root_get_memory_info(t->root, &t->run->memory, error));
  TRY(held_out_bits(t, &t->run->bits[1]));
  return copy_values(t);
}

tpfsdp_status rank_main(void *user, const tpfsdp_rank_args *me) {
  job *work = user;
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  tpfsdp_status status;
  trainer *t = calloc(1, sizeof *t);
  if (!t) return TPFSDP_ERR_OUT_OF_MEMORY;
  t->me = me;
  t->work = work;
  t->run = &work->runs[me->rank];
  t->grad_factor = planted_fault(me->rank);
  status = tpfsdp_context_get_info(me->context, &info, me->error);
  t->group = info.group;
  if (status >= 0) snprintf(t->run->backend, sizeof t->run->backend, "%s", info.backend);
  if (status >= 0 && activations_create(&t->a, &work->todo.s, work->todo.pieces, work->todo.recompute))
    status = TPFSDP_ERR_OUT_OF_MEMORY;
  t->run->kept_bytes = t->a.kept_bytes;
  if (status >= 0) status = train(t);
  for (int u = 0; u < MAX_UNITS; u++)
    for (int p = 0; p < BLOCK_PARAMS; p++) free(t->moments[u][p]);
  tpfsdp_handle_release(t->root);
  activations_free(&t->a);
  free(t);
  return status;
}
