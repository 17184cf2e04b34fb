/* SPDX-License-Identifier: Apache-2.0
 * The numbers that NumPy's default_rng gives, so that a run in C starts where the one in Python does and sees the same
 * text: the seed is hashed into the state of a PCG64, normal numbers come from a ziggurat of 256 strips. */
#include "transformer.h"

#include <math.h>

__extension__ typedef unsigned __int128 wide;

static wide joined(const uint64_t halves[2]) { return (wide)halves[1] << 64 | halves[0]; }

static uint64_t next(generator *g) {
  const wide factor = (wide)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
  const wide state = joined(g->state) * factor + joined(g->increment);
  const uint64_t mixed = (uint64_t)(state >> 64) ^ (uint64_t)state;
  const unsigned turn = (unsigned)(state >> 122);
  g->state[0] = (uint64_t)state;
  g->state[1] = (uint64_t)(state >> 64);
  return mixed >> turn | mixed << (-turn & 63);
}

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t factor) {
  value ^= *constant;
  *constant *= factor;
  value *= *constant;
  return value ^ value >> 16;
}

void generator_seed(generator *g, const uint32_t *words, int count) {
  uint32_t pool[4], constant = 0x43b0d7e5u;
  uint64_t seeds[4];
  wide state, increment;
  for (int i = 0; i < 4; i++) pool[i] = hashed(i < count ? words[i] : 0, &constant, 0x931e8875u);
  for (int from = 0; from < 4; from++)
    for (int to = 0; to < 4; to++) {
      if (from == to) continue;
      pool[to] = 0xca01f9ddu * pool[to] - 0x4973f715u * hashed(pool[from], &constant, 0x931e8875u);
      pool[to] ^= pool[to] >> 16;
    }
  constant = 0x8b51f9ddu;
  for (int i = 0; i < 4; i++) {
    seeds[i] = hashed(pool[2 * i % 4], &constant, 0x58f38dedu);
    seeds[i] |= (uint64_t)hashed(pool[(2 * i + 1) % 4], &constant, 0x58f38dedu) << 32;
  }
  increment = ((wide)seeds[2] << 64 | seeds[3]) << 1 | 1;
  state = increment + ((wide)seeds[0] << 64 | seeds[1]);
  g->increment[0] = (uint64_t)increment;
  g->increment[1] = (uint64_t)(increment >> 64);
  g->state[0] = (uint64_t)state;
  g->state[1] = (uint64_t)(state >> 64);
  g->has_half = 0;
  next(g);
}

static uint32_t next_half(generator *g) {
  uint64_t both;
  if (g->has_half) {
    g->has_half = 0;
    return g->half;
  }
  both = next(g);
  g->has_half = 1;
  g->half = (uint32_t)(both >> 32);
  return (uint32_t)both;
}

/* Lemire's multiplication: numbers that would make some results likelier are drawn again. */
uint32_t generator_below(generator *g, uint32_t end) {
  const uint32_t refused = (UINT32_MAX - (end - 1)) % end;
  uint64_t product;
  do product = (uint64_t)next_half(g) * end;
  while ((uint32_t)product < refused);
  return (uint32_t)(product >> 32);
}

/* In [0, 1). */
static double next_double(generator *g) { return (double)(next(g) >> 11) * 0x1p-53; }

static double bell(double x) { return exp(-0.5 * x * x); }

/* Marsaglia and Tsang: strips of equal area under the bell, from the tail at `EDGE` up. Strip 0 has the tail, too. */
static const double EDGE = 3.6541528853610087963519472518;

void ziggurat_build(ziggurat *z) {
  const double area = EDGE * bell(EDGE) + sqrt(acos(-1) / 2) * erfc(EDGE / sqrt(2));
  double end = EDGE, before = EDGE;
  z->step[0] = area / bell(EDGE) * 0x1p-52;
  z->inside[0] = (uint64_t)(EDGE / (area / bell(EDGE)) * 0x1p52);
  z->inside[1] = 0;
  z->height[0] = 1;
  for (int i = 255; i > 0; i--) {
    z->step[i] = end * 0x1p-52;
    z->height[i] = bell(end);
    before = end;
    end = sqrt(-2 * log(area / before + bell(before)));
    if (i > 1) z->inside[i] = (uint64_t)(end / before * 0x1p52);
  }
}

/* The tail, by way of exponential numbers. */
static double beyond_the_edge(generator *g) {
  for (;;) {
    const double x = -log1p(-next_double(g)) / EDGE, y = -log1p(-next_double(g));
    if (y + y > x * x) return EDGE + x;
  }
}

double generator_normal(generator *g, const ziggurat *z) {
  for (;;) {
    const uint64_t number = next(g);
    const int i = (int)(number & 255);
    const uint64_t along = number >> 9 & 0xfffffffffffffu;
    const double x = (double)along * z->step[i], sign = number >> 8 & 1 ? -1 : 1;
    if (along < z->inside[i]) return sign * x;
    if (i == 0) return (along >> 8 & 1 ? -1 : 1) * beyond_the_edge(g);
    if ((z->height[i - 1] - z->height[i]) * next_double(g) + z->height[i] < bell(x)) return sign * x;
  }
}
