// SPDX-License-Identifier: Apache-2.0
// Files without a name (memfd): what lies in them is gone with the last process that has it, however that ended. Their
// pages are there before anybody writes or reads them, so that memory that runs short is an error here and never a
// signal later.
#ifndef TPFSDP_BACKENDS_HOST_SHARED_FILE_HPP
#define TPFSDP_BACKENDS_HOST_SHARED_FILE_HPP

#include <cstddef>
#include <cstdint>

#include "descriptor.hpp"
#include "outcome.hpp"

namespace tpfsdp::host {

/// Of this machine.
size_t page_bytes();
size_t whole_pages(size_t bytes);  ///< rounded up

/// Offsets and sizes are multiples of page_bytes().
class SharedFile {
 public:
  SharedFile() = default;
  /// One that came from a peer.
  explicit SharedFile(Descriptor file);
  SharedFile(SharedFile &&) = default;
  SharedFile &operator=(SharedFile &&) = default;
  ~SharedFile();

  /// An empty file that never shrinks.
  Outcome create();
  int get() const { return file_.get(); }
  explicit operator bool() const { return static_cast<bool>(file_); }
  /// False: the host closed the descriptor, which may be another file's now.
  bool is_intact() const;
  /// A peer's file that could shrink would take mapped pages away.
  bool is_sealed() const;
  /// 0 if it is not intact.
  uint64_t size() const;

  /// Makes [offset, offset + bytes) zeroed memory of the file.
  Outcome extend(uint64_t offset, size_t bytes);
  /// Gives the memory of the range back; the file keeps its length.
  void punch(uint64_t offset, size_t bytes) const noexcept;
  /// Maps the range with its pages present. Throws bad_alloc.
  std::byte *map(uint64_t offset, size_t bytes, bool writable) const;

 private:
  Descriptor file_;
  uint64_t device_ = 0, inode_ = 0;
};

}  // namespace tpfsdp::host

#endif
