/* SPDX-License-Identifier: Apache-2.0
 * Trains the digits classifier sharded over rank threads, full parameters in memory of this program that is freed at
 * every reshard, and compares every loss and parameter with the unsharded run.
 *
 *   digits DATA.csv RANKS STEPS RESULT.json
 *
 * TPFSDP_FAULT=scale_grad:1.01 or drop_rank:1 plants an error in the gradients, which the comparison must find. */
#include "digits.h"
#include "digits_result.h"
#include "verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A failure ends this rank; run_ranks ends the others and hands its error out. */
#define TRY(...)                           \
  do {                                     \
    tpfsdp_status status_ = (__VA_ARGS__); \
    if (status_ < 0) return status_;       \
  } while (0)

typedef struct layer {
  tpfsdp_module *module;
  tpfsdp_param *params[2]; /* weight, bias */
  float *first[2], *second[2];
  int64_t shard_count[2];
} layer;

typedef struct trainer {
  const tpfsdp_rank_args *me;
  job *job;
  rank_run *run;
  tpfsdp_group *group;
  tpfsdp_module *model;
  layer layers[LAYERS];
  float grad_factor;                    /* 1, but for a planted fault */
  float in[LAYERS + 1][BATCH * WIDEST]; /* what goes into each layer; at last the logits */
  float down[2][BATCH * WIDEST];        /* gradients of it, in turn */
} trainer;

/* The program's memory for full parameters: here when a layer needs it, and gone after. */
static tpfsdp_status host_memory(void *user, const tpfsdp_memory_args *request) {
  rank_run *run = user;
  if (request->op == TPFSDP_MEMORY_RELEASE) {
    free(*request->data);
    run->live_bytes -= request->size_bytes;
  } else if (request->op == TPFSDP_MEMORY_ACQUIRE) {
    void *memory = malloc((size_t)request->size_bytes);
    if (!memory) return TPFSDP_ERR_OUT_OF_MEMORY;
    *request->data = memory;
    run->acquires++;
    run->live_bytes += request->size_bytes;
    if (run->live_bytes > run->peak_live_bytes) run->peak_live_bytes = run->live_bytes;
  } else {
    return TPFSDP_ERR_UNSUPPORTED;
  }
  if (run->sample_count < MAX_SAMPLES) run->samples[run->sample_count++] = run->live_bytes;
  return TPFSDP_OK;
}

static tpfsdp_status layer_create(trainer *t, int l, float *values) {
  const layer_size *size = &layer_sizes[l];
  const int64_t shape[2] = {size->out, size->in};
  tpfsdp_error **error = t->me->error;
  tpfsdp_memory_callback memory = {host_memory, t->run, NULL};
  tpfsdp_module_options named = TPFSDP_INIT(tpfsdp_module_options);
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  layer *self = &t->layers[l];
  named.class_name = "Linear";
  options.host_memory = &memory;
  TRY(tpfsdp_module_create(t->me->context, &named, &self->module, error));
  for (int p = 0; p < 2; p++) {
    tpfsdp_view view;
    float *whole = values + (p ? bias_offset(l) : weight_offset(l));
    TRY(tpfsdp_tensor_view_init(&view, whole, TPFSDP_DTYPE_F32, shape, 2 - p, error));
    TRY(tpfsdp_param_create(&view, 1, &self->params[p], error));
    TRY(tpfsdp_module_register_parameter(self->module, p ? "bias" : "weight", self->params[p], error));
  }
  TRY(tpfsdp_module_add_module(t->model, size->name, self->module, error));
  TRY(tpfsdp_fully_shard(&self->module, 1, NULL, &options, error)); /* this rank's rows are cut out; values may go */
  for (int p = 0; p < 2; p++) {
    tpfsdp_view shard;
    TRY(tpfsdp_param_get_view(self->params[p], TPFSDP_FACE_SHARD, &shard, error));
    self->shard_count[p] = shard.size_bytes / (int64_t)sizeof(float);
    self->first[p] = calloc((size_t)self->shard_count[p] * 2 + 1, sizeof(float));
    if (!self->first[p]) return TPFSDP_ERR_OUT_OF_MEMORY;
    self->second[p] = self->first[p] + self->shard_count[p];
    t->run->optimizer_bytes += 2 * shard.size_bytes;
  }
  return TPFSDP_OK;
}

static tpfsdp_status model_create(trainer *t) {
  tpfsdp_error **error = t->me->error;
  tpfsdp_status status = TPFSDP_OK;
  float *values = malloc(sizeof(float) * (size_t)values_count());
  if (!values) return TPFSDP_ERR_OUT_OF_MEMORY;
  initial_values(values);
  status = tpfsdp_module_create(t->me->context, NULL, &t->model, error);
  for (int l = 0; l < LAYERS && status >= 0; l++) status = layer_create(t, l, values);
  free(values);
  if (status < 0) return status;
  TRY(tpfsdp_fully_shard(&t->model, 1, NULL, NULL, error)); /* the root */
  return tpfsdp_root_prepare(t->model, error);
}

/* From in[0] to the logits in in[LAYERS]. */
static tpfsdp_status forward(trainer *t, int rows) {
  tpfsdp_error **error = t->me->error;
  TRY(tpfsdp_module_pre_forward(t->model, error));
  for (int l = 0; l < LAYERS; l++) {
    const layer_size *size = &layer_sizes[l];
    layer *self = &t->layers[l];
    tpfsdp_view weight, bias;
    TRY(tpfsdp_module_pre_forward(self->module, error)); /* ACQUIRE, then the gather writes into it */
    TRY(tpfsdp_param_get_view(self->params[0], TPFSDP_FACE_FULL, &weight, error));
    TRY(tpfsdp_param_get_view(self->params[1], TPFSDP_FACE_FULL, &bias, error));
    linear(t->in[l + 1], t->in[l], weight.data, bias.data, rows, size->in, size->out);
    if (l + 1 < LAYERS) relu(t->in[l + 1], rows * size->out);
    TRY(tpfsdp_module_post_forward(self->module, error)); /* RELEASE: freed */
  }
  return tpfsdp_module_post_forward(t->model, error);
}

/* From the gradients of the logits, in in[LAYERS], to averaged gradient shards. */
static tpfsdp_status backward(trainer *t) {
  tpfsdp_error **error = t->me->error;
  const float *dy = t->in[LAYERS];
  for (int l = LAYERS; l-- > 0;) {
    const layer_size *size = &layer_sizes[l];
    layer *self = &t->layers[l];
    float *dx = l > 0 ? t->down[l % 2] : NULL;
    tpfsdp_view weight, grads[2];
    TRY(tpfsdp_module_pre_backward(self->module, error));
    TRY(tpfsdp_param_get_view(self->params[0], TPFSDP_FACE_FULL, &weight, error));
    for (int p = 0; p < 2; p++) TRY(tpfsdp_param_get_grad_buffer(self->params[p], 0, &grads[p], error));
    linear_backward(dx, grads[0].data, grads[1].data, dy, t->in[l], weight.data, BATCH, size->in, size->out);
    if (dx) relu_backward(dx, t->in[l], BATCH * size->in);
    for (int p = 0; p < 2; p++) {
      if (t->grad_factor != 1)
        for (int64_t i = 0; i < grads[p].size_bytes / (int64_t)sizeof(float); i++)
          ((float *)grads[p].data)[i] *= t->grad_factor;
      TRY(tpfsdp_param_grad_ready(self->params[p], error));
    }
    TRY(tpfsdp_module_post_backward(self->module, error)); /* starts the reduction */
    dy = dx;
  }
  return tpfsdp_module_end_backward(t->model, error); /* averaged; shards may be written now */
}

static tpfsdp_status optimizer_step(trainer *t, adamw *optimizer) {
  tpfsdp_error **error = t->me->error;
  adamw_begin_step(optimizer);
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < 2; p++) {
      layer *self = &t->layers[l];
      tpfsdp_view shard, grad;
      TRY(tpfsdp_param_get_view(self->params[p], TPFSDP_FACE_SHARD, &shard, error));
      TRY(tpfsdp_param_get_view(self->params[p], TPFSDP_FACE_GRAD, &grad, error));
      adamw_update(optimizer, shard.data, grad.data, self->first[p], self->second[p], self->shard_count[p]);
    }
  return tpfsdp_module_zero_grad(t->model, 1, error);
}

/* Each rank takes its share of the held-out images; all make the same number of forwards. */
static tpfsdp_status evaluate(trainer *t) {
  const image_set *test = &t->job->data->test;
  const int share = (test->count + t->job->ranks - 1) / t->job->ranks;
  const int begin = share * t->me->rank;
  const int end = begin + share < test->count ? begin + share : test->count;
  TRY(tpfsdp_module_set_grad_enabled(t->model, 0, t->me->error));
  for (int done = 0; done < share; done += BATCH) {
    const int left = end - begin - done;
    const int rows = left < 0 ? 0 : left < BATCH ? left : BATCH;
    memcpy(t->in[0], test->pixels + (int64_t)(begin + done) * PIXELS, sizeof(float) * PIXELS * (size_t)rows);
    TRY(forward(t, rows));
    for (int i = 0; i < rows; i++) {
      const float *row = t->in[LAYERS] + (int64_t)i * CLASSES;
      int best = 0;
      for (int c = 1; c < CLASSES; c++) best = row[c] > row[best] ? c : best;
      t->run->hits += best == test->labels[begin + done + i];
    }
  }
  return TPFSDP_OK;
}

/* All values, for the comparison. */
static tpfsdp_status copy_values(trainer *t) {
  tpfsdp_error **error = t->me->error;
  tpfsdp_scope *scope;
  TRY(tpfsdp_scope_open(&t->model, 1, NULL, &scope, error));
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < 2; p++) {
      tpfsdp_view full;
      TRY(tpfsdp_param_get_view(t->layers[l].params[p], TPFSDP_FACE_FULL, &full, error));
      memcpy(t->run->values + (p ? bias_offset(l) : weight_offset(l)), full.data, (size_t)full.size_bytes);
    }
  TRY(tpfsdp_scope_close(scope, error));
  tpfsdp_handle_release(scope);
  return TPFSDP_OK;
}

static tpfsdp_status train(trainer *t) {
  tpfsdp_error **error = t->me->error;
  adamw optimizer = {0, 0, 0};
  int labels[BATCH];
  TRY(model_create(t));
  for (int step = 0; step < t->job->steps; step++) {
    float *loss = &t->run->losses[step];
    tpfsdp_view scalar;
    if (step == t->job->steps - 1) t->run->sample_count = 0; /* the samples are of the last step */
    digits_micro_batch(t->job->data, step, t->me->rank, t->job->ranks, t->in[0], labels);
    TRY(forward(t, BATCH));
    *loss = cross_entropy(t->in[LAYERS], labels, BATCH);
    TRY(backward(t));
    TRY(optimizer_step(t, &optimizer));
    TRY(tpfsdp_tensor_view_init(&scalar, loss, TPFSDP_DTYPE_F32, NULL, 0, error));
    TRY(tpfsdp_group_all_reduce(t->group, &scalar, &scalar, TPFSDP_REDUCE_AVG, NULL, NULL, error));
    if (t->me->rank == 0 && (step % 50 == 0 || step == t->job->steps - 1)) {
      printf("  step %4d  loss %.6f\n", step, (double)*loss);
      fflush(stdout);
    }
  }
  t->run->step_sample_count = t->run->sample_count;
  t->run->step_peak_bytes = t->run->peak_live_bytes;
  TRY(tpfsdp_trace_get_counters(t->me->context, 0, &t->run->counters, error));
  TRY(tpfsdp_root_get_memory_info(t->model, &t->run->memory, error));
  TRY(evaluate(t));
  return copy_values(t);
}

static tpfsdp_status rank_main(void *user, const tpfsdp_rank_args *me) {
  tpfsdp_context_info info = TPFSDP_INIT(tpfsdp_context_info);
  tpfsdp_status status;
  trainer *t = calloc(1, sizeof *t);
  if (!t) return TPFSDP_ERR_OUT_OF_MEMORY;
  t->me = me;
  t->job = user;
  t->run = &t->job->runs[me->rank];
  t->grad_factor = planted_fault(me->rank);
  status = tpfsdp_context_get_info(me->context, &info, me->error);
  t->group = info.group;
  if (status >= 0) snprintf(t->run->backend, sizeof t->run->backend, "%s", info.backend);
  if (status >= 0) status = train(t);
  for (int l = 0; l < LAYERS; l++) {
    for (int p = 0; p < 2; p++) tpfsdp_handle_release(t->layers[l].params[p]), free(t->layers[l].first[p]);
    tpfsdp_handle_release(t->layers[l].module);
  }
  tpfsdp_handle_release(t->model); /* in any order */
  free(t);
  return status;
}

int main(int argc, char **argv) {
  tpfsdp_rank_callback ranks = {rank_main, NULL, NULL};
  tpfsdp_error *error = NULL;
  digits data;
  job work;
  int failed;
  if (argc != 5 || atoi(argv[2]) < 1 || atoi(argv[2]) > MAX_RANKS || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: %s DATA.csv RANKS STEPS RESULT.json\n", argv[0]);
    return 2;
  }
  if (digits_load(&data, argv[1]) || job_create(&work, &data, atoi(argv[2]), atoi(argv[3]))) return 2;
  ranks.user = &work;
  if (tpfsdp_context_run_ranks(work.ranks, NULL, &ranks, &error) < 0) {
    fprintf(stderr, "digits: %s\n", tpfsdp_error_message(error));
    tpfsdp_handle_release(error);
    return 1;
  }
  failed = job_report(&work, argv[4]);
  job_free(&work);
  digits_free(&data);
  return failed;
}
