/* SPDX-License-Identifier: Apache-2.0
 * What sharding is for: a model whose training state no process here could hold. Every process limits its own memory
 * (RLIMIT_DATA, as `ulimit -d` does); one rank alone ends with OUT_OF_MEMORY, four train the model, each with a fourth.
 *
 *     ./does_not_fit 112 128                   one process: does not fit
 *     tpfsdp-run -n 4 ./does_not_fit 112 128   fits
 *
 * Arguments: layers of 1 MiB each, and the limit in MiB. Parameters, gradients and two moments of Adam are 4 MiB a
 * layer. The layers are built and sharded one by one, so that the whole never exists anywhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tpfsdp/tpfsdp.h>

enum { WIDTH = 512, BATCH = 4, STEPS = 3 };
static const float RATE = 1e-4F;

typedef struct Layer {
  tpfsdp_module *module;
  tpfsdp_param *weight;
  float *moments; /* two for each element of the shard */
  float *input;
} Layer;

static int32_t rank = -1;
static int layers, built, limit_mib;
static int64_t moments_bytes;
static void die(const char *what, tpfsdp_error *error) {
  const char *why = error ? tpfsdp_error_message(error) : "the program itself got no memory";
  fprintf(stderr, "rank %d: %s failed with %d of %d layers built and at most %d MiB to hold: %s\n", rank, what, built,
          layers, limit_mib, why);
  exit(1);
}
#define TRY(what, ...)                       \
  do {                                       \
    tpfsdp_error *error = NULL;              \
    if ((__VA_ARGS__) < 0) die(what, error); \
  } while (0)

static void *allocate(size_t size, const char *what) {
  void *memory = calloc(1, size);
  if (!memory) die(what, NULL);
  return memory;
}

/* What this process holds, shared pages counted by its part of them: the figure to compare with the limit. */
static double proportional_mib(void) {
  char line[128];
  long kilobytes = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "Pss: %ld kB", &kilobytes) == 1) break;
  if (file) fclose(file);
  return (double)kilobytes / 1024;
}

static void build(tpfsdp_context *context, tpfsdp_module *root, Layer *layer, int number) {
  const int64_t shape[2] = {WIDTH, WIDTH};
  char name[24];
  tpfsdp_view whole, shard;
  float *values = allocate(sizeof(float) * WIDTH * WIDTH, "building"); /* of this layer only, until it is sharded */
  for (int i = 0; i < WIDTH * WIDTH; i++) values[i] = (float)((i * 7 + number) % 13 - 6) / 32768;
  TRY("a view", tpfsdp_tensor_view_init(&whole, values, TPFSDP_DTYPE_F32, shape, 2, &error));
  TRY("a parameter", tpfsdp_param_create(&whole, 1, &layer->weight, &error));
  TRY("a module", tpfsdp_module_create(context, NULL, &layer->module, &error));
  snprintf(name, sizeof name, "layer%d", number);
  TRY("a layer", tpfsdp_module_add_module(root, name, layer->module, &error));
  TRY("a layer", tpfsdp_module_register_parameter(layer->module, "weight", layer->weight, &error));
  TRY("building", tpfsdp_fully_shard(&layer->module, 1, NULL, NULL, &error));
  TRY("the shard", tpfsdp_param_get_view(layer->weight, TPFSDP_FACE_SHARD, &shard, &error));
  free(values);
  layer->moments = allocate(2 * (size_t)shard.size_bytes, "building");
  moments_bytes += 2 * shard.size_bytes;
  layer->input = allocate(sizeof(float) * BATCH * WIDTH, "building");
  built++;
}

/* y = x + W x, so that depth changes nothing but memory. */
static void forward(Layer *layer, float *x) {
  tpfsdp_view weight;
  memcpy(layer->input, x, sizeof(float) * BATCH * WIDTH);
  TRY("forward", tpfsdp_module_pre_forward(layer->module, &error));
  TRY("forward", tpfsdp_param_get_view(layer->weight, TPFSDP_FACE_FULL, &weight, &error));
  for (int b = 0; b < BATCH; b++)
    for (int o = 0; o < WIDTH; o++) {
      const float *row = (const float *)weight.data + (size_t)o * WIDTH, *in = layer->input + (size_t)b * WIDTH;
      float sum = 0;
      for (int i = 0; i < WIDTH; i++) sum += row[i] * in[i];
      x[b * WIDTH + o] += sum;
    }
  TRY("forward", tpfsdp_module_post_forward(layer->module, &error));
}

static void backward(Layer *layer, float *dy) {
  tpfsdp_view weight, grad;
  float dx[BATCH * WIDTH];
  TRY("backward", tpfsdp_module_pre_backward(layer->module, &error));
  TRY("backward", tpfsdp_param_get_view(layer->weight, TPFSDP_FACE_FULL, &weight, &error));
  TRY("backward", tpfsdp_param_get_grad_buffer(layer->weight, 0, &grad, &error));
  memcpy(dx, dy, sizeof dx);
  for (int o = 0; o < WIDTH; o++) {
    const float *row = (const float *)weight.data + (size_t)o * WIDTH;
    float *grad_row = (float *)grad.data + (size_t)o * WIDTH;
    memset(grad_row, 0, sizeof(float) * WIDTH);
    for (int b = 0; b < BATCH; b++)
      for (int i = 0; i < WIDTH; i++) {
        grad_row[i] += dy[b * WIDTH + o] * layer->input[b * WIDTH + i];
        dx[b * WIDTH + i] += dy[b * WIDTH + o] * row[i];
      }
  }
  TRY("backward", tpfsdp_param_grad_ready(layer->weight, &error));
  TRY("backward", tpfsdp_module_post_backward(layer->module, &error));
  memcpy(dy, dx, sizeof dx);
}

static void adam(Layer *layer, int step) {
  tpfsdp_view shard, grad;
  TRY("the optimizer", tpfsdp_param_get_view(layer->weight, TPFSDP_FACE_SHARD, &shard, &error));
  TRY("the optimizer", tpfsdp_param_get_view(layer->weight, TPFSDP_FACE_GRAD, &grad, &error));
  const int64_t count = shard.size_bytes / (int64_t)sizeof(float);
  float *m = layer->moments, *v = layer->moments + count;
  for (int64_t i = 0; i < count; i++) {
    const float g = ((const float *)grad.data)[i];
    m[i] = 0.9F * m[i] + 0.1F * g;
    v[i] = 0.999F * v[i] + 0.001F * g * g;
    const float update = m[i] / (1 - powf(0.9F, (float)step)) / (sqrtf(v[i] / (1 - powf(0.999F, (float)step))) + 1e-8F);
    ((float *)shard.data)[i] -= RATE * update;
  }
}

int main(int count, char **arguments) {
  layers = count > 1 ? atoi(arguments[1]) : 112;
  limit_mib = count > 2 ? atoi(arguments[2]) : 128;
  if (layers < 1 || limit_mib < 1) return fprintf(stderr, "usage: does_not_fit LAYERS LIMIT_MIB\n"), 2;
  const rlim_t limit = (rlim_t)limit_mib << 20;
  const struct rlimit both = {limit, limit};
  if (setrlimit(RLIMIT_DATA, &both) != 0) return perror("setrlimit"), 1;

  tpfsdp_context *context;
  tpfsdp_context_info me = TPFSDP_INIT(tpfsdp_context_info);
  tpfsdp_module *root;
  TRY("joining", tpfsdp_context_create(NULL, &context, &error));
  TRY("joining", tpfsdp_context_get_info(context, &me, &error));
  rank = me.rank;
  if (rank == 0)
    printf("%d rank(s): training state %d MiB, each process may hold %d MiB\n", me.world_size, 4 * layers, limit_mib);
  fflush(stdout);
  TRY("the root", tpfsdp_module_create(context, NULL, &root, &error));
  Layer *all = allocate(sizeof(Layer) * (size_t)layers, "building");
  for (int i = 0; i < layers; i++) build(context, root, &all[i], i);
  TRY("sharding", tpfsdp_fully_shard(&root, 1, NULL, NULL, &error));

  double peak = 0, loss = 0;
  for (int step = 1; step <= STEPS; step++) {
    float x[BATCH * WIDTH];
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = (float)((i * 5 + 3 * rank) % 11 - 5) / 8;
    TRY("forward", tpfsdp_module_pre_forward(root, &error));
    for (int i = 0; i < layers; i++) forward(&all[i], x);
    TRY("forward", tpfsdp_module_post_forward(root, &error));
    loss = 0;
    for (int i = 0; i < BATCH * WIDTH; i++) loss += x[i] * x[i] / (BATCH * WIDTH), x[i] *= 2.0F / (BATCH * WIDTH);
    TRY("backward", tpfsdp_module_pre_backward(root, &error));
    for (int i = layers; i-- > 0;) backward(&all[i], x);
    const double held = proportional_mib();
    peak = held > peak ? held : peak;
    TRY("the end of backward", tpfsdp_module_end_backward(root, &error));
    for (int i = 0; i < layers; i++) adam(&all[i], step);
    TRY("zero_grad", tpfsdp_module_zero_grad(root, 1, &error));
    if (rank == 0) printf("  step %d  loss of rank 0 %.6f\n", step, loss), fflush(stdout);
  }
  tpfsdp_memory_info memory = TPFSDP_INIT(tpfsdp_memory_info);
  TRY("the memory", tpfsdp_root_get_memory_info(root, &memory, &error));
  const double formula = (double)(memory.planned_peak_bytes + moments_bytes) / (1 << 20);
  printf("rank %d: peak %.1f MiB (PSS) of %d MiB; shards, gradients, moments and slots are %.1f MiB\n", rank, peak,
         limit_mib, formula);
  fflush(stdout);
  TRY("the end", tpfsdp_context_shutdown(context, &error));
  return peak * (1 << 20) < (double)limit ? 0 : 1;
}
