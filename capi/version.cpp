// SPDX-License-Identifier: Apache-2.0
#include "device/kernels.hpp"
#include "guard.hpp"

#include <tpfsdp/version.h>

#include <dlfcn.h>

#include <cstdio>

namespace {

#if defined(__clang__)
constexpr const char *kCompiler = "clang " __clang_version__;
#else
constexpr const char *kCompiler = "gcc " __VERSION__;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char *kBuild = "sanitized";
#elif defined(NDEBUG)
constexpr const char *kBuild = "release";
#else
constexpr const char *kBuild = "debug";
#endif

// A buffer and not a string: nothing that may throw where no error can be told.
struct VersionText {
  char text[256];
  VersionText() noexcept {
    std::snprintf(text, sizeof text, "tpfsdp %d.%d.%d (%s, %s build, %s kernels)", TPFSDP_VERSION_MAJOR,
                  TPFSDP_VERSION_MINOR, TPFSDP_VERSION_PATCH, kCompiler, kBuild, tpfsdp::kernel_level());
  }
};

std::string version_name(int32_t number) {
  return tpfsdp::cat(number / 1000000, ".", number / 1000 % 1000, ".", number % 1000);
}

std::string path_of_library() {
  Dl_info info{};
  const bool is_known = dladdr(reinterpret_cast<const void *>(&tpfsdp_version_number), &info) != 0 && info.dli_fname;
  return is_known ? info.dli_fname : "an unknown file";
}

}  // namespace

extern "C" {

int32_t tpfsdp_version_number(void) TPFSDP_NOEXCEPT { return TPFSDP_VERSION_NUMBER; }

const char *tpfsdp_version_text(void) TPFSDP_NOEXCEPT {
  static const VersionText version;
  return version.text;
}

tpfsdp_status tpfsdp_version_require(int32_t version_number, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return tpfsdp::capi::guard(error, [&] {
    // Before 1.0 the minor number is what the major is later.
    constexpr int32_t kUnit = TPFSDP_VERSION_MAJOR == 0 ? 1000 : 1000000;
    const bool is_served = version_number > 0 && version_number / kUnit == TPFSDP_VERSION_NUMBER / kUnit &&
                           version_number <= TPFSDP_VERSION_NUMBER;
    if (!is_served)
      tpfsdp::fail(TPFSDP_ERR_ABI, "the program was built for tpfsdp ", version_name(version_number), ", but ",
                   path_of_library(), " is ", version_name(TPFSDP_VERSION_NUMBER),
                   "; load a library of the same version or build the program anew");
  });
}

}  // extern "C"
