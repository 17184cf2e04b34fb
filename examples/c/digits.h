/* SPDX-License-Identifier: Apache-2.0
 * The digits classifier in C: data, arithmetic and reference, which know nothing of tpfsdp; digits.c trains sharded. */
#ifndef DIGITS_H
#define DIGITS_H

#include <stdint.h>

enum { PIXELS = 64, CLASSES = 10, LAYERS = 3, WIDEST = 128, BATCH = 32, MAX_RANKS = 8 };

/* ---- digits_data.c: who sees which image when ---- */

typedef struct image_set {
  int count;
  float *pixels; /* count rows of PIXELS, in [0, 1] */
  int *labels;
} image_set;

typedef struct digits {
  image_set train, test; /* every fifth image is held out */
} digits;

/* Reads 65 numbers a line. 0, or -1 after a message. */
int digits_load(digits *data, const char *path);
void digits_free(digits *data);
/* What a rank sees in a step, whether ranks are threads or the turns of one process. */
void digits_micro_batch(const digits *data, int step, int rank, int world_size, float *pixels, int *labels);

/* ---- digits_math.c: the arithmetic, by hand ---- */

typedef struct layer_size {
  const char *name;
  int in, out;
} layer_size;

extern const layer_size layer_sizes[LAYERS];

/* Weights [out][in] and biases [out] of all layers, back to back, and where each lies. */
int values_count(void);
int weight_offset(int layer);
int bias_offset(int layer);
void initial_values(float *values);

void linear(float *y, const float *x, const float *weight, const float *bias, int rows, int in, int out);
/* dx may be NULL. */
void linear_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                     int rows, int in, int out);
void relu(float *x, int count);
/* dx[i] = 0 where relu gave 0 */
void relu_backward(float *dx, const float *activated, int count);
/* The mean loss; turns logits into their gradients. */
float cross_entropy(float *logits, const int *labels, int rows);

/* Element by element, so an update of shards is the update of the whole, bit for bit. */
typedef struct adamw {
  int step;
  double power1, power2; /* of the betas */
} adamw;
void adamw_begin_step(adamw *optimizer);
void adamw_update(const adamw *optimizer, float *values, const float *grads, float *first, float *second,
                  int64_t count);

/* ---- digits_reference.c: the unsharded run ---- */

/* The micro-batches of all ranks in rank order in one process. 0, or -1 without memory. */
int reference_train(const digits *data, int world_size, int steps, float *losses, float *values);

#endif
