/* SPDX-License-Identifier: Apache-2.0
 * The smallest test frame, for C99 and C++20: every CHECK counts; the last line is 'N passed, N failed, 0 skipped'. */
#ifndef TPFSDP_TESTS_CAPI_CHECK_H
#define TPFSDP_TESTS_CAPI_CHECK_H

#include <tpfsdp/tpfsdp.h>

#include <stdio.h>
#include <string.h>

/* Counted by several threads in some tests; an increment is one instruction of the compiler's atomics. */
static int check_passed = 0, check_failed = 0;

static inline int check_count(int is_right, const char *file, int line, const char *what) {
  if (is_right) {
    __atomic_fetch_add(&check_passed, 1, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(&check_failed, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  }
  return is_right;
}

#define CHECK(condition) check_count((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

static inline int check_integers(long long got, long long expected, const char *file, int line, const char *what) {
  if (got != expected) fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", file, line, what, got, expected);
  return check_count(got == expected, file, line, what);
}

#define CHECK_EQ(got, expected) check_integers((long long)(got), (long long)(expected), __FILE__, __LINE__, #got)

static inline int check_texts(const char *got, const char *expected, const char *file, int line, const char *what) {
  const int is_right = got && strcmp(got, expected) == 0;
  if (!is_right)
    fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", file, line, what, got ? got : "NULL", expected);
  return check_count(is_right, file, line, what);
}

#define CHECK_TEXT(got, expected) check_texts((got), (expected), __FILE__, __LINE__, #got)

/* `part` occurs in `text`. */
static inline int check_part(const char *text, const char *part, const char *file, int line) {
  const int is_right = text && strstr(text, part) != NULL;
  if (!is_right) fprintf(stderr, "%s:%d: \"%s\" does not contain \"%s\"\n", file, line, text ? text : "NULL", part);
  return check_count(is_right, file, line, part);
}

#define CHECK_CONTAINS(text, part) check_part((text), (part), __FILE__, __LINE__)

/* A call that must succeed: tells the error's text when it does not. `call` uses &error. */
#define CHECK_OK(call)                                                                            \
  do {                                                                                            \
    tpfsdp_error *error = NULL;                                                                   \
    const tpfsdp_status check_status = (call);                                                    \
    if (check_status != TPFSDP_OK)                                                                \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, tpfsdp_error_message(error)); \
    check_count(check_status == TPFSDP_OK, __FILE__, __LINE__, #call);                            \
    tpfsdp_handle_release(error);                                                                 \
  } while (0)

/* A call that must fail with `status` and a text that contains `part`. `call` uses &error. */
#define CHECK_FAILS(call, status, part)                                  \
  do {                                                                   \
    tpfsdp_error *error = NULL;                                          \
    check_integers((call), (status), __FILE__, __LINE__, #call);         \
    check_part(tpfsdp_error_message(error), (part), __FILE__, __LINE__); \
    tpfsdp_handle_release(error);                                        \
  } while (0)

/* The end of main(). */
static inline int check_end(void) {
  printf("%d passed, %d failed, 0 skipped\n", check_passed, check_failed);
  return check_failed == 0 && check_passed > 0 ? 0 : 1;
}

#endif
