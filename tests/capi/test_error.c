/* SPDX-License-Identifier: Apache-2.0
 * Error objects and the table of statuses. */
#include "check.h"

#include <stdlib.h>

static void test_names_and_classes(void) {
  static const struct {
    tpfsdp_status status;
    const char *name;
    tpfsdp_error_class error_class;
  } rows[] = {
      {TPFSDP_OK, "OK", TPFSDP_ERROR_CLASS_UNSPECIFIED},
      {TPFSDP_PENDING, "PENDING", TPFSDP_ERROR_CLASS_UNSPECIFIED},
      {TPFSDP_ERR_INVALID_ARGUMENT, "INVALID_ARGUMENT", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_INVALID_HANDLE, "INVALID_HANDLE", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_NOT_FOUND, "NOT_FOUND", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_STATE, "STATE", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_BUSY, "BUSY", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_ABI, "ABI", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_UNSUPPORTED, "UNSUPPORTED", TPFSDP_ERROR_CLASS_PROGRAM},
      {TPFSDP_ERR_OUT_OF_MEMORY, "OUT_OF_MEMORY", TPFSDP_ERROR_CLASS_MACHINE},
      {TPFSDP_ERR_IO, "IO", TPFSDP_ERROR_CLASS_MACHINE},
      {TPFSDP_ERR_CORRUPT, "CORRUPT", TPFSDP_ERROR_CLASS_MACHINE},
      {TPFSDP_ERR_NON_FINITE, "NON_FINITE", TPFSDP_ERROR_CLASS_MACHINE},
      {TPFSDP_ERR_CALLBACK, "CALLBACK", TPFSDP_ERROR_CLASS_STEP},
      {TPFSDP_ERR_REMOTE, "REMOTE", TPFSDP_ERROR_CLASS_STEP},
      {TPFSDP_ERR_MISMATCH, "MISMATCH", TPFSDP_ERROR_CLASS_STEP},
      {TPFSDP_ERR_CANCELLED, "CANCELLED", TPFSDP_ERROR_CLASS_STEP},
      {TPFSDP_ERR_TIMEOUT, "TIMEOUT", TPFSDP_ERROR_CLASS_GROUP},
      {TPFSDP_ERR_PEER_LOST, "PEER_LOST", TPFSDP_ERROR_CLASS_GROUP},
      {TPFSDP_ERR_ABORTED, "ABORTED", TPFSDP_ERROR_CLASS_GROUP},
      {TPFSDP_ERR_BACKEND, "BACKEND", TPFSDP_ERROR_CLASS_GROUP},
      {TPFSDP_ERR_BACKEND_UNAVAILABLE, "BACKEND_UNAVAILABLE", TPFSDP_ERROR_CLASS_RECREATE},
      {TPFSDP_ERR_FORKED, "FORKED", TPFSDP_ERROR_CLASS_RECREATE},
      {TPFSDP_ERR_INTERNAL, "INTERNAL", TPFSDP_ERROR_CLASS_REPORT},
      /* Of a newer library: the hundreds still tell the class. */
      {2, "UNKNOWN", TPFSDP_ERROR_CLASS_UNSPECIFIED},
      {-199, "UNKNOWN", TPFSDP_ERROR_CLASS_PROGRAM},
      {-250, "UNKNOWN", TPFSDP_ERROR_CLASS_MACHINE},
      {-499, "UNKNOWN", TPFSDP_ERROR_CLASS_GROUP},
      {-700, "UNKNOWN", TPFSDP_ERROR_CLASS_UNKNOWN},
      {-1, "UNKNOWN", TPFSDP_ERROR_CLASS_UNKNOWN},
      {INT32_MIN, "UNKNOWN", TPFSDP_ERROR_CLASS_UNKNOWN},
  };
  size_t i;
  for (i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    CHECK_TEXT(tpfsdp_error_status_name(rows[i].status), rows[i].name);
    CHECK_EQ(tpfsdp_error_status_class(rows[i].status), rows[i].error_class);
  }
}

static void test_info(void) {
  tpfsdp_error *error = NULL;
  tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
  CHECK_EQ(tpfsdp_version_require(999999999, &error), TPFSDP_ERR_ABI);
  CHECK(error != NULL);
  CHECK_EQ(tpfsdp_error_get_info(error, &info), TPFSDP_OK);
  CHECK_EQ(info.struct_size, sizeof info);
  CHECK_EQ(info.status, TPFSDP_ERR_ABI);
  CHECK_EQ(info.error_class, TPFSDP_ERROR_CLASS_PROGRAM);
  CHECK_EQ(info.rank, -1);
  CHECK_EQ(info.backend_code, -1);
  CHECK_EQ(info.is_sticky, 0);
  CHECK_EQ(info.sequence, -1);
  CHECK_TEXT(info.message, tpfsdp_error_message(error));
  CHECK_TEXT(info.operation, "");
  CHECK_TEXT(info.unit, "");
  CHECK_TEXT(info.group, "");
  CHECK_TEXT(info.backend, "");
  CHECK(tpfsdp_error_get_cause(error) == NULL);

  info.struct_size = 3;
  CHECK_EQ(tpfsdp_error_get_info(error, &info), TPFSDP_ERR_ABI);
  CHECK_EQ(info.status, TPFSDP_ERR_ABI); /* untouched */
  CHECK_EQ(tpfsdp_error_get_info(error, NULL), TPFSDP_ERR_INVALID_ARGUMENT);
  tpfsdp_handle_release(error);
}

/* Callers built with an older and with a newer header. */
static void test_info_sizes(void) {
  struct {
    tpfsdp_error_info info;
    unsigned char newer[16];
  } wide;
  tpfsdp_error *error = NULL;
  size_t i, set = 0;
  CHECK_EQ(tpfsdp_version_require(0, &error), TPFSDP_ERR_ABI);
  memset(&wide, 0xaa, sizeof wide);
  wide.info.struct_size = (uint32_t)sizeof wide;
  CHECK_EQ(tpfsdp_error_get_info(error, &wide.info), TPFSDP_OK);
  for (i = 0; i < sizeof wide.newer; ++i) set += wide.newer[i] != 0;
  CHECK_EQ(set, 0);
  memset(&wide, 0xaa, sizeof wide);
  wide.info.struct_size = 16;
  CHECK_EQ(tpfsdp_error_get_info(error, &wide.info), TPFSDP_OK);
  CHECK_EQ(wide.info.status, TPFSDP_ERR_ABI);
  CHECK_EQ(((unsigned char *)&wide)[16], 0xaa);
  tpfsdp_handle_release(error);
}

static void test_handles_that_are_no_error(void) {
  int on_stack = 0;
  tpfsdp_error *stale = NULL;
  tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
  CHECK_TEXT(tpfsdp_error_message(NULL), "");
  CHECK_TEXT(tpfsdp_error_message((const tpfsdp_error *)&on_stack), "");
  CHECK(tpfsdp_error_get_cause(NULL) == NULL);
  CHECK_EQ(tpfsdp_error_get_info(NULL, &info), TPFSDP_ERR_INVALID_HANDLE);
  CHECK_EQ(tpfsdp_version_require(0, &stale), TPFSDP_ERR_ABI);
  tpfsdp_handle_release(stale);
  tpfsdp_handle_release(stale);
  CHECK_TEXT(tpfsdp_error_message(stale), "");
  CHECK_EQ(tpfsdp_error_get_info(stale, &info), TPFSDP_ERR_INVALID_HANDLE);
  CHECK(tpfsdp_handle_retain(stale) == NULL);
}

static void test_error_is_optional_and_overwritten(void) {
  tpfsdp_error *first = NULL, *second;
  CHECK_EQ(tpfsdp_version_require(0, NULL), TPFSDP_ERR_ABI);
  CHECK_EQ(tpfsdp_version_require(0, &first), TPFSDP_ERR_ABI);
  second = first;
  CHECK_EQ(tpfsdp_version_require(TPFSDP_VERSION_NUMBER, &second), TPFSDP_OK);
  CHECK(second == first); /* success leaves it alone */
  CHECK_EQ(tpfsdp_version_require(0, &second), TPFSDP_ERR_ABI);
  CHECK(second != first);
  CHECK(tpfsdp_error_message(first)[0] != '\0'); /* still the caller's */
  tpfsdp_handle_release(first);
  tpfsdp_handle_release(second);
}

int main(void) {
  test_names_and_classes();
  test_info();
  test_info_sizes();
  test_handles_that_are_no_error();
  test_error_is_optional_and_overwritten();
  return check_end();
}
