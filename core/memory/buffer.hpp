// SPDX-License-Identifier: Apache-2.0
// Memory of the library for one rank, and the account that every byte of it is entered in.
#pragma once

#include "base/error.hpp"

#include <algorithm>
#include <cstddef>

namespace tpfsdp {

// Tensors start at 64 bytes, large ones at 256, or some hosts copy silently.
constexpr int64_t kLargeTensorBytes = 64 * 1024;
constexpr int64_t alignment_for(int64_t size_bytes) { return size_bytes >= kLargeTensorBytes ? 256 : 64; }
constexpr int64_t align_up(int64_t offset, int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// What a tree holds now and has held at most, by the bytes that were asked for.
class MemoryAccount {
 public:
  void add(int64_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void subtract(int64_t bytes) { held_ -= bytes; }
  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

// Whole pages, zero-filled and present, huge ones where they help. Throws bad_alloc.
void *map_pages(int64_t size_bytes);
void unmap_pages(void *data, int64_t size_bytes) noexcept;

// Private memory, zero-filled, faulted in when it is made (huge pages where they help), so that no steady-state step
// faults. Entered in an account for its life.
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t size_bytes, MemoryAccount *account);
  Buffer(Buffer &&other) noexcept;
  Buffer &operator=(Buffer &&other) noexcept;
  ~Buffer();

  std::byte *data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void free() noexcept;

  std::byte *data_ = nullptr;
  int64_t size_bytes_ = 0;
  MemoryAccount *account_ = nullptr;
};

}  // namespace tpfsdp
