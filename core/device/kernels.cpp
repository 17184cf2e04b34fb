// SPDX-License-Identifier: Apache-2.0
// Which kernels run, and what needs no more than them: copy and zero.
#include "device/kernels.hpp"

#include "device/kernel_table.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace tpfsdp {
namespace {

// Below this a copy stays in the caches, where its reader finds it.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

// Best first. The builtin looks at XGETBV too: a CPU whose system does not save the registers does not count.
struct Level {
  const KernelTable *table;
  bool can_run;
};

template <class Use>
const KernelTable *first_level(Use &&use) noexcept {
#if defined(__x86_64__)
  const Level levels[] = {
      {&kAvx512Kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
      {&kAvx2Kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
      {&kBaselineKernels, true},
  };
#else
  const Level levels[] = {{&kBaselineKernels, true}};
#endif
  for (const Level &level : levels) {
    if (level.can_run && use(*level.table)) return level.table;
  }
  return nullptr;
}

// Read once, by the first thread that needs a kernel: another name, or one that cannot run here, means the best.
const KernelTable *choose() noexcept {
  const char *wanted = std::getenv("TPFSDP_ISA");
  const KernelTable *named = wanted ? kernels_of_level(wanted) : nullptr;
  return named ? named : first_level([](const KernelTable &) { return true; });
}

std::atomic<const KernelTable *> chosen{nullptr};

}  // namespace

const KernelTable *kernels_of_level(const char *level) noexcept {
  return first_level([level](const KernelTable &table) { return std::strcmp(table.level, level) == 0; });
}

const KernelTable &kernels() noexcept {
  const KernelTable *table = chosen.load(std::memory_order_acquire);
  if (!table) {
    table = choose();  // two threads choose the same
    chosen.store(table, std::memory_order_release);
  }
  return *table;
}

const char *kernel_level() noexcept { return kernels().level; }

void copy_bytes(void *target, const void *source, int64_t size_bytes) noexcept {
  if (size_bytes <= 0) return;
  if (size_bytes >= kStreamBytes) {
    kernels().stream_bytes(target, source, size_bytes);
  } else {
    std::memcpy(target, source, static_cast<size_t>(size_bytes));
  }
}

void zero_bytes(void *target, int64_t size_bytes) noexcept {
  if (size_bytes > 0) std::memset(target, 0, static_cast<size_t>(size_bytes));
}

}  // namespace tpfsdp
