/* SPDX-License-Identifier: Apache-2.0
 * Loading the images, and dealing them out. */
#include "digits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_OUT = 5, MOST_IMAGES = 4096 };

static int set_create(image_set *set) {
  set->count = 0;
  set->pixels = malloc(sizeof(float) * PIXELS * MOST_IMAGES);
  set->labels = malloc(sizeof(int) * MOST_IMAGES);
  return set->pixels && set->labels ? 0 : -1;
}

int digits_load(digits *data, const char *path) {
  FILE *file = fopen(path, "r");
  int number, line = 0;
  if (!file) {
    fprintf(stderr, "digits: cannot read %s\n", path);
    return -1;
  }
  if (set_create(&data->train) || set_create(&data->test)) return -1;
  for (; fscanf(file, "%d", &number) == 1 && line < MOST_IMAGES; line++) {
    image_set *set = line % HELD_OUT == 0 ? &data->test : &data->train;
    float *pixels = set->pixels + (size_t)set->count * PIXELS;
    for (int i = 0; i < PIXELS; i++) {
      pixels[i] = (float)number / 16;
      if (fscanf(file, ",%d", &number) != 1) {
        fprintf(stderr, "digits: line %d of %s has fewer than %d numbers\n", line + 1, path, PIXELS + 1);
        fclose(file);
        return -1;
      }
    }
    set->labels[set->count++] = number;
  }
  fclose(file);
  return 0;
}

void digits_free(digits *data) {
  image_set *sets[2];
  sets[0] = &data->train;
  sets[1] = &data->test;
  for (int i = 0; i < 2; i++) free(sets[i]->pixels), free(sets[i]->labels);
}

/* An order of the images for each epoch: Fisher and Yates, with a small generator. */
static void shuffle(int *order, int count, int epoch) {
  uint64_t state = 88172645463325252u + (uint64_t)epoch * 1000003u;
  for (int i = 0; i < count; i++) order[i] = i;
  for (int i = count - 1; i > 0; i--) {
    int j, kept = order[i];
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    j = (int)(state % (uint64_t)(i + 1));
    order[i] = order[j];
    order[j] = kept;
  }
}

void digits_micro_batch(const digits *data, int step, int rank, int world_size, float *pixels, int *labels) {
  int order[MOST_IMAGES];
  int per_epoch = data->train.count / (world_size * BATCH);
  int start = (step % per_epoch * world_size + rank) * BATCH;
  shuffle(order, data->train.count, step / per_epoch);
  for (int i = 0; i < BATCH; i++) {
    int image = order[start + i];
    memcpy(pixels + (size_t)i * PIXELS, data->train.pixels + (size_t)image * PIXELS, sizeof(float) * PIXELS);
    labels[i] = data->train.labels[image];
  }
}
