// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "layout.hpp"

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace tpfsdp::host {

namespace {

constexpr size_t PIECE_BYTES = size_t{16} << 20;

Outcome no_memory(size_t bytes, const std::string &why) {
  return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY, "no " + std::to_string(bytes) + " bytes of shared memory: " + why);
}

/// What this machine can still give, as it says itself; -1: it does not say.
int64_t machine_bytes() {
  FILE *file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return -1;
  char line[128];
  long long kilobytes = -1;
  while (kilobytes < 0 && std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "MemAvailable: %lld kB", &kilobytes) != 1) kilobytes = -1;
  std::fclose(file);
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

/// A number that a file begins with; -1: it does not.
int64_t number_in(const char *path) {
  FILE *file = std::fopen(path, "re");
  if (file == nullptr) return -1;
  long long number = -1;
  if (std::fscanf(file, "%lld", &number) != 1) number = -1;
  std::fclose(file);
  return number;
}

/// The least of what the machine has and of what a container's own limit leaves.
int64_t available_bytes() {
  const int64_t machine = machine_bytes();
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit < 0 || used < 0) return machine;
  const int64_t container = std::max<int64_t>(0, limit - used);
  return machine < 0 ? container : std::min(machine, container);
}

/// What would end in a signal instead of an error.
Outcome check_limits(uint64_t end, size_t bytes) {
  rlimit files{};
  if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY && end > files.rlim_cur)
    return no_memory(bytes, "the limit on file sizes (ulimit -f) of " + std::to_string(files.rlim_cur) +
                                " bytes holds for shared memory too, and " + std::to_string(end) +
                                " are needed; raise it");
  if (bytes < HUGE_PAGE_BYTES) return {};
  // The kernel would rather end a process than refuse.
  const int64_t available = available_bytes();
  if (available >= 0 && bytes > static_cast<uint64_t>(available))
    return no_memory(bytes, "this machine, or this container, has " + std::to_string(available) +
                                " left; use smaller units, or more memory");
  return {};
}

}  // namespace

size_t whole_pages(size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

SharedFile::SharedFile(Descriptor file) : file_(std::move(file)) {
  struct stat status{};
  if (fstat(file_.get(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

SharedFile::~SharedFile() {
  if (file_ && !is_intact()) file_.release();
}

bool SharedFile::is_intact() const {
  struct stat status{};
  return fstat(file_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

bool SharedFile::is_sealed() const {
  const int seals = fcntl(file_.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

uint64_t SharedFile::size() const {
  struct stat status{};
  const bool is_this = fstat(file_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  return is_this ? static_cast<uint64_t>(status.st_size) : 0;
}

Outcome SharedFile::create() {
  int fd = memfd_create("tpfsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("tpfsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY,
                          std::string("no file for shared memory (memfd_create): ") + std::strerror(errno));
  *this = SharedFile(Descriptor(fd));
  // A file that shrinks takes mapped pages away from its readers.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return Outcome::error(TPFSDP_ERR_BACKEND, std::string("shared memory cannot be sealed: ") + std::strerror(errno));
  return {};
}

Outcome SharedFile::extend(uint64_t offset, size_t bytes) {
  if (!is_intact())
    return Outcome::error(TPFSDP_ERR_BACKEND,
                          "this process closed the descriptors of this library's shared memory, and cannot get more");
  Outcome end = check_limits(offset + bytes, bytes);
  if (!end.ok()) return end;
  // In pieces: some kernels undo all of a call that a signal interrupts.
  for (size_t at = 0; at < bytes;) {
    const size_t piece = std::min(PIECE_BYTES, bytes - at);
    const int result = posix_fallocate(file_.get(), static_cast<off_t>(offset + at), static_cast<off_t>(piece));
    if (result == EINTR) continue;
    if (result != 0) {
      punch(offset, bytes);
      return no_memory(bytes, std::strerror(result));
    }
    at += piece;
  }
  return {};
}

void SharedFile::punch(uint64_t offset, size_t bytes) const noexcept {
  if (!is_intact()) return;
  int result;
  do
    result = fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
}

std::byte *SharedFile::map(uint64_t offset, size_t bytes, bool writable) const {
  void *mapped = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file_.get(),
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= HUGE_PAGE_BYTES) madvise(mapped, bytes, MADV_HUGEPAGE);
  // The pages are there; without this each would still cost a fault at its first use.
  madvise(mapped, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  return static_cast<std::byte *>(mapped);
}

}  // namespace tpfsdp::host
