// SPDX-License-Identifier: Apache-2.0
#include "comm/file_store.hpp"

#include "base/hash.hpp"
#include "comm/private_directory.hpp"
#include "comm/recorder.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace tpfsdp {
namespace {

constexpr std::string_view kValuePrefix = "tpfsdp-value-", kSumPrefix = "tpfsdp-sum-";
constexpr const char *kLockName = "tpfsdp-lock";
constexpr size_t kHashDigits = 32, kTemporaryDigits = 16;
constexpr size_t kLengthBytes = 4;
constexpr size_t kMaxEntryBytes = kLengthBytes + kMaxStoreKeyBytes + kMaxStoreValueBytes;
constexpr int64_t kFirstPauseNs = 1'000'000, kLongestPauseNs = 20'000'000;

// Keys are any bytes, names of files are not: the name is a hash, and the key stands in the file.
std::string file_name(std::string_view prefix, const std::string &key) {
  return cat(prefix, hex_text(hash_text(key, 0)), hex_text(hash_text(key, 1)));
}

bool is_ours(std::string_view name) {
  const auto is = [name](std::string_view prefix, size_t digits) {
    return name.starts_with(prefix) && name.size() == prefix.size() + digits &&
           name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
  };
  return is(kValuePrefix, kHashDigits) || is(kSumPrefix, kHashDigits) || is(kTemporaryPrefix, kTemporaryDigits) ||
         name == kLockName;
}

// An entry: the length of the key (u32, little-endian), the key, the value.
std::string encode_head(const std::string &key) {
  std::string head;
  for (size_t byte = 0; byte < kLengthBytes; ++byte) head.push_back(static_cast<char>(key.size() >> (8 * byte)));
  return head + key;
}

class FileStore final : public Store {
 public:
  FileStore(std::string path, Directory owner) : path_(std::move(path)), owner_(owner) {}

  void set(const std::string &key, const std::string &value) override {
    check_store_entry(key.size(), value.size());
    write(open(), kValuePrefix, key, value);
  }

  std::optional<std::string> find(const std::string &key, int64_t deadline_ns) override {
    check_store_entry(key.size(), 0);
    for (int64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kLongestPauseNs)) {
      if (std::optional<std::string> value = read(open(), kValuePrefix, key)) return value;
      const int64_t now = monotonic_ns();
      if (now >= deadline_ns) return std::nullopt;
      const timespec time{0, static_cast<long>(std::min(deadline_ns - now, pause))};
      nanosleep(&time, nullptr);
    }
  }

  int64_t add(const std::string &key, int64_t amount) override {
    check_store_entry(key.size(), 0);
    const PrivateDirectory directory = open();
    const PrivateDirectory::Lock lock(directory, kLockName);
    int64_t sum = 0;
    if (const std::optional<std::string> text = read(directory, kSumPrefix, key)) {
      const char *const end = text->data() + text->size();
      if (const auto [stop, error] = std::from_chars(text->data(), end, sum); error != std::errc() || stop != end)
        fail(TPFSDP_ERR_CORRUPT, path_, "/", file_name(kSumPrefix, key), " holds no number");
    }
    if (__builtin_add_overflow(sum, amount, &sum))
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "adding ", amount, " to a sum of the store leaves the range of int64");
    write(directory, kSumPrefix, key, std::to_string(sum));
    return sum;
  }

  void discard() noexcept override {
    if (owner_ == Directory::kOfUser) return;
    try {
      const PrivateDirectory opened(path_);
      for (const std::string &name : opened.names())
        if (is_ours(name)) opened.remove(name);
      rmdir(path_.c_str());
    } catch (const std::exception &) {
      // What cannot be opened or listed is not ours to remove.
    }
  }

 private:
  // Another group of the same launch may have ended and removed it.
  PrivateDirectory open() const {
    if (owner_ == Directory::kOfJob) PrivateDirectory::make(path_);
    return PrivateDirectory(path_);
  }

  static void write(const PrivateDirectory &directory, std::string_view prefix, const std::string &key,
                    const std::string &value) {
    directory.replace(file_name(prefix, key), encode_head(key) + value);
  }

  std::optional<std::string> read(const PrivateDirectory &directory, std::string_view prefix,
                                  const std::string &key) const {
    const std::string name = file_name(prefix, key);
    std::optional<std::string> entry = directory.read(name, kMaxEntryBytes);
    if (!entry) return std::nullopt;
    const std::string head = encode_head(key);
    if (!entry->starts_with(head))
      fail(TPFSDP_ERR_CORRUPT, path_, "/", name, " is not the entry of its key: something else wrote it");
    return entry->substr(head.size());
  }

  const std::string path_;
  const Directory owner_;
};

}  // namespace

std::shared_ptr<Store> open_file_store(const std::string &directory, Directory owner) {
  std::string path = PrivateDirectory::normal_path(directory);
  PrivateDirectory::make(path);
  const PrivateDirectory opened(path);
  return std::make_shared<FileStore>(std::move(path), owner);
}

}  // namespace tpfsdp
