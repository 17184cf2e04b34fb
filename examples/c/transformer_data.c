/* SPDX-License-Identifier: Apache-2.0
 * The text as numbers of symbols, and who sees which piece of it when. */
#include "transformer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_CHARACTERS = 1 << 24 };

static int read_all(text *t, const char *path) {
  FILE *file = fopen(path, "rb");
  size_t count = 0;
  t->symbols = NULL;
  if (!file) {
    fprintf(stderr, "transformer: cannot read %s\n", path);
    return -1;
  }
  t->symbols = malloc(MOST_CHARACTERS);
  if (t->symbols) count = fread(t->symbols, 1, MOST_CHARACTERS, file);
  fclose(file);
  t->train_count = (int)rint((double)count * 0.9); /* the last tenth is never trained on */
  t->held_out_count = (int)count - t->train_count;
  if (t->held_out_count > MAX_LENGTH) return 0;
  fprintf(stderr, "transformer: no memory, or %s is too short\n", path);
  text_free(t);
  return -1;
}

int text_load(text *t, const char *path) {
  int numbers[SYMBOLS] = {0};
  if (read_all(t, path)) return -1;
  for (int i = 0; i < t->train_count + t->held_out_count; i++) numbers[t->symbols[i]] = 1;
  t->symbol_count = 0;
  for (int c = 0; c < SYMBOLS; c++)
    if (numbers[c]) numbers[c] = t->symbol_count++;
  for (int i = 0; i < t->train_count + t->held_out_count; i++) t->symbols[i] = (unsigned char)numbers[t->symbols[i]];
  return 0;
}

void text_free(text *t) { free(t->symbols), t->symbols = NULL; }

static void piece(const unsigned char *from, int length, int *tokens, int *targets) {
  for (int i = 0; i < length; i++) tokens[i] = from[i], targets[i] = from[i + 1];
}

void text_micro_batch(const text *t, int step, int rank, int pieces, int length, int *tokens, int *targets) {
  uint32_t seed[2];
  generator g;
  seed[0] = (uint32_t)step;
  seed[1] = (uint32_t)rank;
  generator_seed(&g, seed, 2);
  for (int i = 0; i < pieces; i++) {
    const uint32_t start = generator_below(&g, (uint32_t)(t->train_count - length));
    piece(t->symbols + start, length, tokens + i * length, targets + i * length);
  }
}

void text_held_out(const text *t, int first, int pieces, int length, int *tokens, int *targets) {
  const unsigned char *from = t->symbols + t->train_count + (int64_t)first * length;
  for (int i = 0; i < pieces * length; i += length) piece(from + i, length, tokens + i, targets + i);
}

double text_unigram_bits(const text *t) {
  double counts[SYMBOLS], nats = 0;
  for (int c = 0; c < t->symbol_count; c++) counts[c] = 1; /* none is impossible */
  for (int i = 0; i < t->train_count; i++) counts[t->symbols[i]]++;
  for (int i = t->train_count; i < t->train_count + t->held_out_count; i++)
    nats -= log(counts[t->symbols[i]] / (t->train_count + t->symbol_count));
  return nats / t->held_out_count / log(2);
}
