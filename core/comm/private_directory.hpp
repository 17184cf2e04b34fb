// SPDX-License-Identifier: Apache-2.0
// A directory that only this user can write: whatever name is found in it, one of our own processes has put it there.
#pragma once

#include "comm/descriptor.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tpfsdp {

class PrivateDirectory {
 public:
  // The path that means the same when the working directory changes, and that ends in the directory's own name.
  static std::string normal_path(const std::string &path);
  // Makes the directory, and parents that are missing, with mode 0700; nothing if it is there.
  static void make(const std::string &normal_path);

  // Opens it. Throws INVALID_ARGUMENT for a symbolic link, for another user's directory and for one that others can
  // write: the caller has named what cannot be trusted, and can name or make another.
  explicit PrivateDirectory(std::string normal_path);

  // All of a file, nothing if there is none. CORRUPT if it is no file, or larger than max_bytes.
  std::optional<std::string> read(const std::string &name, size_t max_bytes) const;
  // Puts a file in place of whatever has this name, whole or not at all.
  void replace(const std::string &name, std::string_view content) const;
  std::vector<std::string> names() const;
  void remove(const std::string &name) const noexcept;  // a file; nothing else

  // Holds the lock file of this name until it is destroyed, or until the process ends.
  class Lock {
   public:
    Lock(const PrivateDirectory &directory, const std::string &name);
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;
    ~Lock();

   private:
    Descriptor file_;
  };

 private:
  [[noreturn]] void fail_on(const std::string &name, const char *what, int code) const;
  Descriptor open(const std::string &name, int flags) const;

  std::string path_;
  Descriptor directory_;
};

// What a file is called while `replace` writes it; one that is found later is of a process that died.
inline constexpr std::string_view kTemporaryPrefix = "tpfsdp-temporary-";

// `bits` as hexadecimal digits, for names of files.
std::string hex_text(uint64_t bits);

}  // namespace tpfsdp
