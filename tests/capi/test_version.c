/* SPDX-License-Identifier: Apache-2.0
 * Which library is loaded, and who may use it. */
#include "check.h"

static void test_number_and_text(void) {
  char start[64];
  snprintf(start, sizeof start, "tpfsdp %d.%d.%d (", TPFSDP_VERSION_MAJOR, TPFSDP_VERSION_MINOR, TPFSDP_VERSION_PATCH);
  CHECK_EQ(tpfsdp_version_number(), TPFSDP_VERSION_NUMBER);
  CHECK_EQ(TPFSDP_VERSION_NUMBER, TPFSDP_VERSION_MAJOR * 1000000 + TPFSDP_VERSION_MINOR * 1000 + TPFSDP_VERSION_PATCH);
  CHECK_EQ(strncmp(tpfsdp_version_text(), start, strlen(start)), 0);
  CHECK_CONTAINS(tpfsdp_version_text(), " build, ");
  CHECK_CONTAINS(tpfsdp_version_text(), " kernels)");
  CHECK(strchr(tpfsdp_version_text(), '\n') == NULL);
  CHECK(tpfsdp_version_text() == tpfsdp_version_text());
}

static void test_require(void) {
  const int32_t unit = TPFSDP_VERSION_MAJOR == 0 ? 1000 : 1000000;
  CHECK_OK(tpfsdp_version_require(TPFSDP_VERSION_NUMBER, &error));
  CHECK_FAILS(tpfsdp_version_require(TPFSDP_VERSION_NUMBER + 1, &error), TPFSDP_ERR_ABI, "tpfsdp 0.1.1");
  CHECK_FAILS(tpfsdp_version_require(TPFSDP_VERSION_NUMBER + 1, &error), TPFSDP_ERR_ABI, "is 0.1.0");
  CHECK_FAILS(tpfsdp_version_require(TPFSDP_VERSION_NUMBER + unit, &error), TPFSDP_ERR_ABI, "tpfsdp 0.2.0");
  CHECK_FAILS(tpfsdp_version_require(2000000, &error), TPFSDP_ERR_ABI, "tpfsdp 2.0.0");
  CHECK_FAILS(tpfsdp_version_require(0, &error), TPFSDP_ERR_ABI, "libtpfsdp.so");
  CHECK_FAILS(tpfsdp_version_require(-5, &error), TPFSDP_ERR_ABI, "libtpfsdp.so");
}

int main(void) {
  test_number_and_text();
  test_require();
  return check_end();
}
