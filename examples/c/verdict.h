/* SPDX-License-Identifier: Apache-2.0
 * What both trainers need to be believed: a fault that is planted on purpose, and how far two runs are apart. */
#ifndef VERDICT_H
#define VERDICT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What TPFSDP_FAULT says this rank's gradients are multiplied by; 1 without a fault. */
static inline float planted_fault(int rank) {
  const char *fault = getenv("TPFSDP_FAULT");
  if (fault && strncmp(fault, "scale_grad:", 11) == 0) return strtof(fault + 11, NULL);
  if (fault && strncmp(fault, "drop_rank:", 10) == 0 && atoi(fault + 10) == rank) return 0;
  return 1;
}

/* Floats as numbers in their order. */
static inline int64_t place_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? (int64_t)INT32_MIN - bits : bits;
}

/* `most`, or more where two floats of a and b are further apart. */
static inline int64_t max_ulp(int64_t most, const float *a, const float *b, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t difference = llabs(place_of(a[i]) - place_of(b[i]));
    if (difference > most) most = difference;
  }
  return most;
}

#endif
