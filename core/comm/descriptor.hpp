// SPDX-License-Identifier: Apache-2.0
// File descriptors with an owner, and failed system calls as our errors.
#pragma once

#include "base/error.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace tpfsdp {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor &&other) noexcept : fd_(other.release()) {}
  Descriptor &operator=(Descriptor &&other) noexcept {
    Descriptor old(std::exchange(fd_, other.release()));
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A system call, again while signals interrupt it.
template <class Call>
auto uninterrupted(Call &&call) noexcept {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Where memory, descriptors or the room on a disk are used up, another try can succeed once there is some again.
inline Status status_of_errno(int code) noexcept {
  switch (code) {
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return TPFSDP_ERR_OUT_OF_MEMORY;
    default: return TPFSDP_ERR_IO;
  }
}

inline std::string errno_text(int code) { return std::generic_category().message(code); }

}  // namespace tpfsdp
