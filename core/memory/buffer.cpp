// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; older C libraries do not name it
#define MADV_POPULATE_WRITE 23
#endif

namespace tpfsdp {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t page_bytes() {
  static const auto kBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

void touch(std::byte *data, size_t size) {
  for (size_t at = 0; at < size; at += page_bytes()) *static_cast<volatile std::byte *>(data + at) = std::byte{0};
}

// Large memory starts at a huge page, so that all of it can lie in such.
std::byte *map_whole_pages(size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  if (size > SIZE_MAX - slack) throw std::bad_alloc();
  void *mapped = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto *data = static_cast<std::byte *>(mapped);
  if (slack == 0) {
    touch(data, size);
    return data;
  }
  const size_t before = (kHugePage - reinterpret_cast<size_t>(data) % kHugePage) % kHugePage;
  if (before > 0) munmap(data, before);
  data += before;
  if (slack > before) munmap(data + size, slack - before);
  madvise(data, size, MADV_HUGEPAGE);
  if (madvise(data, size, MADV_POPULATE_WRITE) == 0) return data;
  if (errno == EINVAL) {  // an older kernel
    touch(data, size);
    return data;
  }
  munmap(data, size);
  throw std::bad_alloc();
}

size_t mapped_bytes(int64_t size_bytes) {
  return (static_cast<size_t>(size_bytes) + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace

void *map_pages(int64_t size_bytes) { return map_whole_pages(mapped_bytes(std::max<int64_t>(size_bytes, 1))); }

void unmap_pages(void *data, int64_t size_bytes) noexcept {
  munmap(data, mapped_bytes(std::max<int64_t>(size_bytes, 1)));
}

Buffer::Buffer(int64_t size_bytes, MemoryAccount *account) : account_(account) {
  if (size_bytes < 0) fail(TPFSDP_ERR_INTERNAL, "a buffer of ", size_bytes, " bytes was asked for; please report it");
  if (size_bytes > 0) data_ = static_cast<std::byte *>(map_pages(size_bytes));
  size_bytes_ = size_bytes;
  if (account_) account_->add(size_bytes_);
}

Buffer::Buffer(Buffer &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      account_(std::exchange(other.account_, nullptr)) {}

Buffer &Buffer::operator=(Buffer &&other) noexcept {
  if (this != &other) {
    free();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    account_ = std::exchange(other.account_, nullptr);
  }
  return *this;
}

Buffer::~Buffer() { free(); }

void Buffer::free() noexcept {
  if (data_) unmap_pages(data_, size_bytes_);
  if (account_) account_->subtract(size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
  account_ = nullptr;
}

}  // namespace tpfsdp
