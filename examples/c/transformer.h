/* SPDX-License-Identifier: Apache-2.0
 * The character-level transformer of examples/python, in C and small: same tree, same start, same text for every rank
 * and step. Nothing here knows of tpfsdp; transformer_trainer.h does. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include <stdint.h>

enum { MAX_BLOCKS = 16, MAX_UNITS = 1 + MAX_BLOCKS, MAX_LENGTH = 256, MAX_RANKS = 8, SYMBOLS = 256 };

/* ---- transformer_shape.c: what parameters there are ---- */

typedef struct shape {
  int symbols, length, width, heads, blocks;
} shape;

/* What is gathered together: unit 0 is the root, whose token values are the output's weight, too; unit 1 + b is block
 * b. */
enum { TOKENS, POSITIONS, NORM_WEIGHT, NORM_BIAS, ROOT_PARAMS };
enum {
  NORM1_WEIGHT,
  NORM1_BIAS,
  QKV_WEIGHT,
  QKV_BIAS,
  PROJ_WEIGHT,
  PROJ_BIAS,
  NORM2_WEIGHT,
  NORM2_BIAS,
  UP_WEIGHT,
  UP_BIAS,
  DOWN_WEIGHT,
  DOWN_BIAS,
  BLOCK_PARAMS
};

typedef struct param_size {
  const char *layer, *name; /* below the unit: "qkv", "weight" */
  int rows, columns;        /* 1 column: one dimension */
} param_size;

/* A unit's values, or gradients, one pointer for each of its parameters. */
typedef struct param_set {
  float *p[BLOCK_PARAMS];
} param_set;

int unit_params(int unit);
param_size param_size_of(const shape *s, int unit, int param);
int64_t values_count(const shape *s);
/* Lays the sets of all units over values_count floats. */
void param_sets_over(const shape *s, float *memory, param_set *sets);
void initial_values(const shape *s, float *memory);

/* ---- transformer_random.c: the numbers that NumPy's default_rng gives ---- */

typedef struct generator {
  uint64_t state[2], increment[2]; /* 128 bits, low half first */
  uint32_t half;                   /* of a number that was used by half */
  int has_half;
} generator;

/* What normal numbers are drawn by: strips that cover the bell. */
typedef struct ziggurat {
  double step[256];     /* a strip's width, by 2^52 */
  uint64_t inside[256]; /* below it a number lies under the bell for sure */
  double height[256];   /* of the bell at the strip's end */
} ziggurat;

void generator_seed(generator *g, const uint32_t *words, int count); /* at most 4 */
uint32_t generator_below(generator *g, uint32_t end);
void ziggurat_build(ziggurat *z);
double generator_normal(generator *g, const ziggurat *z);

/* ---- transformer_data.c: who sees which piece of the text when ---- */

typedef struct text {
  unsigned char *symbols; /* train_count to train on, then held_out_count */
  int symbol_count, train_count, held_out_count;
} text;

/* 0, or -1 after a message. */
int text_load(text *t, const char *path);
void text_free(text *t);
/* What a rank sees in a step, whether ranks are threads, processes or the turns of one process. */
void text_micro_batch(const text *t, int step, int rank, int pieces, int length, int *tokens, int *targets);
/* Pieces of the held-out text that do not overlap, from number `first` on. */
void text_held_out(const text *t, int first, int pieces, int length, int *tokens, int *targets);
/* Bits per held-out character for who knows nothing but how often each symbol is in the training text. */
double text_unigram_bits(const text *t);

/* ---- transformer_layers.c, transformer_attention.c: the arithmetic, by hand. Every sum has one order. ---- */

void linear(float *y, const float *x, const float *weight, const float *bias, int rows, int in, int out);
/* bias, dbias: may be NULL. */
void linear_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                     int rows, int in, int out);
/* Also what its backward needs: the normed rows, and the factors that normed them. */
void norm(float *y, float *normed, float *factor, const float *x, const float *weight, const float *bias, int rows,
          int width);
/* Adds to dx. */
void norm_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *normed, const float *factor,
                   const float *weight, int rows, int width);
void gelu(float *y, float *tanhs, const float *x, int64_t count);
/* In place: dy becomes dx. */
void gelu_backward(float *dy, const float *x, const float *tanhs, int64_t count);
void attention(float *y, float *shares, const float *qkv, const shape *s, int pieces);
void attention_backward(float *dqkv, const float *dy, const float *qkv, const float *shares, const shape *s,
                        int pieces);

/* ---- transformer_model.c: the model's parts. p: values, g: gradients; a backward writes every element, but for the
 * embedding's, which adds: the gradient of the output's tied weight is there already. ---- */

typedef struct saved_block {
  float *normed1, *factor1, *a, *qkv, *shares, *mixed, *normed2, *factor2, *b, *up, *tanhs, *active;
} saved_block;

typedef struct activations {
  shape s;
  int pieces, rows;              /* of this forward; rows is pieces * length */
  float *x[MAX_BLOCKS + 1];      /* what goes into each block; at last into the head */
  saved_block saved[MAX_BLOCKS]; /* with recomputation all are the same memory */
  float *normed, *factor, *y, *dlogits;
  float *dx, *narrow, *wide, *out; /* gradients on their way; out: what a block that runs again gives */
  int *tokens, *targets;
  int64_t kept_bytes; /* of what blocks keep for backward */
  void *memory;
} activations;

/* 0, or -1 without memory. */
int activations_create(activations *a, const shape *s, int pieces, int recompute);
void activations_free(activations *a);
void embed(activations *a, const param_set *p);
void embed_backward(activations *a, param_set *g);
void block_forward(activations *a, int block, float *y, const param_set *p);
/* dx: from the gradient of what the block gives to that of what it takes. */
void block_backward(activations *a, int block, const param_set *p, param_set *g);
/* The mean loss in nats. */
float head(activations *a, const param_set *p);
void head_backward(activations *a, const param_set *p, param_set *g);

/* ---- transformer_optimizer.c ---- */

/* Element by element, so an update of shards is the update of the whole, bit for bit. */
typedef struct adamw {
  int step;
  double rate;
} adamw;
double learning_rate(int step, int steps);
void adamw_begin_step(adamw *optimizer, double rate);
void adamw_update(const adamw *optimizer, float *values, const float *grads, float *first, float *second,
                  int64_t count);

/* ---- transformer_reference.c: the unsharded run ---- */

typedef struct plan {
  shape s;
  const text *data;
  int ranks, steps, pieces, recompute;
  int held_out_pieces; /* how many are looked at; a multiple of ranks */
} plan;

/* The micro-batches of all ranks in rank order in one process. bits: per held-out character, before and after. 0, or
 * -1 without memory. */
int reference_train(const plan *todo, float *losses, float *values, double bits[2]);

#endif
