// SPDX-License-Identifier: Apache-2.0
#include "comm/private_directory.hpp"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

namespace tpfsdp {
namespace {

constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

[[noreturn]] void refuse(const std::string &path, const std::string &found) {
  fail(TPFSDP_ERR_INVALID_ARGUMENT, path, " ", found, "; ranks meet in a directory of their own user (", geteuid(),
       ") that nobody else can write, as \"mkdir -m 700\" makes it");
}

[[noreturn]] void fail_at(const std::string &path, const char *what, int code) {
  fail(status_of_errno(code), path, " cannot be ", what, ": ", errno_text(code));
}

std::string mode_text(mode_t mode) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

std::string temporary_name() {
  uint64_t bits = 0;
  if (uninterrupted([&] { return getrandom(&bits, sizeof(bits), 0); }) < 0)
    fail(TPFSDP_ERR_IO, "no random number for the name of a file: ", errno_text(errno));
  return cat(kTemporaryPrefix, hex_text(bits));
}

// Goes away unless it was kept under another name.
class Temporary {
 public:
  Temporary(int directory, std::string name) : directory_(directory), name_(std::move(name)) {}
  Temporary(const Temporary &) = delete;
  Temporary &operator=(const Temporary &) = delete;
  ~Temporary() {
    if (!is_kept_) unlinkat(directory_, name_.c_str(), 0);
  }
  bool keep_as(const std::string &name) {
    is_kept_ = uninterrupted([&] { return renameat(directory_, name_.c_str(), directory_, name.c_str()); }) == 0;
    return is_kept_;
  }

 private:
  int directory_;
  std::string name_;
  bool is_kept_ = false;
};

// Full or failed; errno says why.
bool write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = uninterrupted([&] { return ::write(file, content.data(), content.size()); });
    if (written < 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string hex_text(uint64_t bits) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(bits));
  return text.data();
}

std::string PrivateDirectory::normal_path(const std::string &path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the directory where ranks meet has ",
         path.empty() ? "no name" : "a zero byte in its name", "; name a directory that all ranks can reach");
  std::error_code error;
  std::string normal = std::filesystem::absolute(path, error).string();
  if (error) fail_at(path, "found", error.value());
  // The last component by itself: opening "link/" or "link/." would follow the link.
  while (normal.ends_with('/') || normal.ends_with("/.")) normal.pop_back();
  return normal.empty() ? "/" : normal;
}

void PrivateDirectory::make(const std::string &path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    if (mkdir(path.substr(0, end).c_str(), kDirectoryMode) != 0 && errno != EEXIST) fail_at(path, "made", errno);
  }
}

PrivateDirectory::PrivateDirectory(std::string path)
    : path_(std::move(path)),
      directory_(
          uninterrupted([this] { return ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); })) {
  struct stat info{};
  if (!directory_) {
    const int code = errno;
    if (lstat(path_.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) refuse(path_, "is a symbolic link");
    if (code == ENOTDIR) refuse(path_, "is no directory");
    fail_at(path_, "opened", code);
  }
  if (fstat(directory_.get(), &info) != 0) fail_at(path_, "examined", errno);
  if (info.st_uid != geteuid()) refuse(path_, cat("belongs to user ", info.st_uid));
  if (info.st_mode & (S_IWGRP | S_IWOTH))
    refuse(path_, cat("has mode ", mode_text(info.st_mode), ": others than its user can write it"));
}

void PrivateDirectory::fail_on(const std::string &name, const char *what, int code) const {
  fail_at(cat(path_, "/", name), what, code);
}

Descriptor PrivateDirectory::open(const std::string &name, int flags) const {
  return Descriptor(
      uninterrupted([&] { return openat(directory_.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kFileMode); }));
}

std::optional<std::string> PrivateDirectory::read(const std::string &name, size_t max_bytes) const {
  const Descriptor file = open(name, O_RDONLY | O_NONBLOCK);  // a pipe of this name does not hold us up
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    fail_on(name, "opened", errno);
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) fail_on(name, "examined", errno);
  if (!S_ISREG(info.st_mode) || info.st_size > static_cast<off_t>(max_bytes))
    fail(TPFSDP_ERR_CORRUPT, path_, "/", name, " is no file of at most ", max_bytes, " bytes: something else wrote it");
  std::string content(static_cast<size_t>(info.st_size), '\0');
  for (size_t have = 0; have < content.size();) {
    const ssize_t got = uninterrupted([&] { return ::read(file.get(), content.data() + have, content.size() - have); });
    if (got < 0) fail_on(name, "read", errno);
    if (got == 0) fail(TPFSDP_ERR_CORRUPT, path_, "/", name, " became shorter while it was read");
    have += static_cast<size_t>(got);
  }
  return content;
}

void PrivateDirectory::replace(const std::string &name, std::string_view content) const {
  std::string temporary;
  Descriptor file;
  do {
    temporary = temporary_name();
    file = open(temporary, O_WRONLY | O_CREAT | O_EXCL);
  } while (!file && errno == EEXIST);
  if (!file) fail_on(name, "written", errno);
  Temporary written(directory_.get(), std::move(temporary));
  if (!write_all(file.get(), content)) fail_on(name, "written", errno);
  // Only the close tells when the room on a disk of the network was not enough.
  if (close(file.release()) != 0 && errno != EINTR) fail_on(name, "written", errno);
  if (!written.keep_as(name)) fail_on(name, "written", errno);
}

std::vector<std::string> PrivateDirectory::names() const {
  Descriptor copy = open(".", O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, int (*)(DIR *)> listing(copy ? fdopendir(copy.get()) : nullptr, closedir);
  if (!listing) fail_at(path_, "listed", errno);
  copy.release();
  std::vector<std::string> names;
  while (const dirent *entry = readdir(listing.get())) names.emplace_back(entry->d_name);
  return names;
}

void PrivateDirectory::remove(const std::string &name) const noexcept { unlinkat(directory_.get(), name.c_str(), 0); }

PrivateDirectory::Lock::Lock(const PrivateDirectory &directory, const std::string &name)
    : file_(directory.open(name, O_RDWR | O_CREAT)) {
  if (!file_) directory.fail_on(name, "opened", errno);
  if (uninterrupted([&] { return flock(file_.get(), LOCK_EX); }) != 0) directory.fail_on(name, "locked", errno);
}

// By name, and not only by closing: a child forked meanwhile would hold the lock with its copy of the descriptor.
PrivateDirectory::Lock::~Lock() { flock(file_.get(), LOCK_UN); }

}  // namespace tpfsdp
