// SPDX-License-Identifier: Apache-2.0
#include "comm/file_store.hpp"

#include "comm/private_directory.hpp"
#include "support/allocation.hpp"
#include "unit/comm/stores.hpp"

#include <fstream>
#include <set>
#include <thread>

#include <sys/file.h>
#include <sys/stat.h>

namespace tpfsdp {
namespace {

constexpr const char *kAdder = "TPFSDP_TEST_FILE_ADDER", *kHolder = "TPFSDP_TEST_FILE_HOLDER";
constexpr int64_t kAdds = 50;

std::vector<std::string> names_in(const std::string &directory) {
  std::vector<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

// The one file of the store; its name is a hash.
std::string only_file(const std::string &directory) {
  const std::vector<std::string> names = names_in(directory);
  EXPECT_EQ(names.size(), 1u);
  return directory + "/" + names.at(0);
}

TEST(FileStore, KeepsTheContract) {
  const TemporaryDirectory temporary;
  const size_t before = open_descriptors();
  check_contract(*open_file_store(temporary / "store"));
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(entries_of(temporary.path()), 1u);  // no key has left the directory
  // "a", the keys, "largest"; the sums of "n", "a" and "most"; the lock.
  EXPECT_EQ(entries_of(temporary / "store"), 2 + difficult_keys().size() + 3 + 1);
  for (const auto &entry : std::filesystem::directory_iterator(temporary / "store"))
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms{0600}) << entry.path();
}

TEST(FileStore, WaitsForAKeyOfAnotherThread) {
  const TemporaryDirectory temporary;
  const auto store = open_file_store(temporary / "store");
  std::thread writer([&] { open_file_store(temporary / "store")->set("late", "here"); });
  EXPECT_EQ(store->get("late", INT64_MAX), "here");
  writer.join();
}

TEST(FileStoreChild, Adds) {
  const char *directory = task(kAdder);
  if (!directory) return;
  const auto store = open_file_store(directory);
  store->get("go", INT64_MAX);
  for (int64_t i = 0; i < kAdds; ++i) store->set(cat("sum ", store->add("sum", 1)), "");
}

TEST(FileStore, SumsOfThreadsAndProcessesAreExact) {
  const TemporaryDirectory temporary;
  const auto store = open_file_store(temporary / "store");
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i)
    children.push_back(std::make_unique<Child>("FileStoreChild.Adds",
                                               std::map<std::string, std::string>{{kAdder, temporary / "store"}}));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      store->get("go", INT64_MAX);
      for (int64_t add = 0; add < kAdds; ++add) store->set(cat("sum ", store->add("sum", 1)), "");
    });
  store->set("go", "");
  for (std::thread &thread : threads) thread.join();
  for (const auto &child : children) EXPECT_EQ(child->wait(), 0);
  for (int64_t sum = 1; sum <= 6 * kAdds; ++sum) EXPECT_EQ(store->find(cat("sum ", sum), 0), "") << sum;
  EXPECT_EQ(store->add("sum", 0), 6 * kAdds);
}

TEST(FileStoreChild, HoldsTheLock) {
  const char *directory = task(kHolder);
  if (!directory) return;
  const PrivateDirectory opened(directory);
  const PrivateDirectory::Lock lock(opened, "tpfsdp-lock");
  open_file_store(directory)->set("held", "");
  for (;;) pause();
}

TEST(FileStore, DeathOfALockHolderFreesTheLock) {
  const TemporaryDirectory temporary;
  const auto store = open_file_store(temporary / "store");
  Child holder("FileStoreChild.HoldsTheLock", {{kHolder, temporary / "store"}});
  store->get("held", INT64_MAX);
  const Descriptor lock(open((temporary / "store/tpfsdp-lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), -1);
  EXPECT_EQ(errno, EWOULDBLOCK);
  std::thread adder([&] { EXPECT_EQ(store->add("n", 1), 1); });
  holder.kill();
  adder.join();
}

TEST(FileStore, MakesMissingParentsForItsUserOnly) {
  const TemporaryDirectory temporary;
  const mode_t before = umask(0);
  open_file_store(temporary / "a/b//c/");
  umask(before);
  for (const char *made : {"a", "a/b", "a/b/c"})
    EXPECT_EQ(std::filesystem::status(temporary / made).permissions(), std::filesystem::perms{0700}) << made;
}

TEST(FileStore, MeansTheSameDirectoryAfterChdir) {
  const TemporaryDirectory temporary;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temporary.path());
  const auto store = open_file_store("store");
  std::filesystem::current_path(before);
  store->set("a", "b");
  EXPECT_EQ(open_file_store(temporary / "store")->find("a", 0), "b");
}

TEST(FileStore, RefusesADirectoryThatOthersCouldHaveFilled) {
  const TemporaryDirectory temporary;
  const auto text_for = [](const std::string &directory) {
    return refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { open_file_store(directory); });
  };
  const std::string real = temporary / "real", link = temporary / "link", file = temporary / "file";
  std::filesystem::create_directory(real);
  chmod(real.c_str(), 0700);
  std::filesystem::create_directory_symlink(real, link);
  const std::string needed = cat("; ranks meet in a directory of their own user (", geteuid(),
                                 ") that nobody else can write, as \"mkdir -m 700\" makes it");
  EXPECT_EQ(text_for(link), cat(link, " is a symbolic link", needed));
  EXPECT_EQ(text_for(link + "/"), cat(link, " is a symbolic link", needed));
  EXPECT_EQ(text_for(link + "/./"), cat(link, " is a symbolic link", needed));
  std::filesystem::create_symlink(temporary / "nowhere", temporary / "dangling");
  EXPECT_EQ(text_for(temporary / "dangling"), cat(temporary / "dangling", " is a symbolic link", needed));
  std::ofstream(file) << "x";
  EXPECT_EQ(text_for(file), cat(file, " is no directory", needed));
  for (const mode_t mode : {0720, 0702, 0777}) {
    chmod(real.c_str(), mode);
    const char *shown = mode == 0720 ? "0720" : mode == 0702 ? "0702" : "0777";
    EXPECT_EQ(text_for(real), cat(real, " has mode ", shown, ": others than its user can write it", needed));
  }
  chmod(real.c_str(), 0755);
  open_file_store(real)->set("a", "b");

  // Root gives one away; others look at one of root's.
  const std::string foreign = geteuid() == 0 ? real : "/usr";
  if (geteuid() == 0) {
    ASSERT_EQ(chown(real.c_str(), 65534, 65534), 0);
  }
  EXPECT_EQ(text_for(foreign), cat(foreign, " belongs to user ", geteuid() == 0 ? 65534 : 0, needed));

  EXPECT_TRUE(contains(text_for(""), "has no name"));
  EXPECT_TRUE(contains(text_for(std::string("/tmp/a\0b", 8)), "a zero byte"));
}

TEST(FileStore, LooksAtTheDirectoryAtEachCall) {
  const TemporaryDirectory temporary;
  const auto store = open_file_store(temporary / "store");
  store->set("a", "b");
  chmod((temporary / "store").c_str(), 0777);
  refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store->set("a", "c"); });
  refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store->find("a", 0); });
  refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { store->add("a", 1); });
  std::filesystem::remove_all(temporary / "store");
  const std::string text = refusal(TPFSDP_ERR_IO, [&] { store->find("a", INT64_MAX); });
  EXPECT_EQ(text, cat(temporary / "store", " cannot be opened: No such file or directory"));
}

TEST(FileStore, SaysWhatElseWroteAnEntry) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary / "store";
  const auto store = open_file_store(directory);
  store->set("a", "b");
  const std::string file = only_file(directory);
  std::ofstream(file) << std::string("\1\0\0\0c", 5) << "value";  // the entry of another key
  EXPECT_EQ(refusal(TPFSDP_ERR_CORRUPT, [&] { store->find("a", 0); }),
            cat(file, " is not the entry of its key: something else wrote it"));
  std::filesystem::resize_file(file, 4 + kMaxStoreKeyBytes + kMaxStoreValueBytes + 1);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_CORRUPT, [&] { store->find("a", 0); }), "at most 1052676 bytes"));
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_CORRUPT, [&] { store->find("a", 0); }), "is no file"));
  std::filesystem::remove(file);
  std::filesystem::create_symlink("/etc/passwd", file);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_IO, [&] { store->find("a", 0); }), "cannot be opened"));
  store->set("a", "b");  // takes the link's place
  EXPECT_EQ(store->find("a", 0), "b");

  std::filesystem::remove(file);
  store->add("n", 1);
  std::filesystem::remove(directory + "/tpfsdp-lock");
  std::ofstream(only_file(directory), std::ios::app) << "1x";
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_CORRUPT, [&] { store->add("n", 1); }), "holds no number"));
}

TEST(FileStore, LeavesNothingOfAValueThatDoesNotFit) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary / "store";
  const auto store = open_file_store(directory);
  store->set("a", "before");
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  {
    const Limit limit(RLIMIT_FSIZE, 4096);  // as a disk with room for one page: a short write, then an error
    const std::string text =
        refusal(TPFSDP_ERR_OUT_OF_MEMORY, [&] { store->set("a", std::string(kMaxStoreValueBytes, 'v')); });
    EXPECT_TRUE(contains(text, "cannot be written: File too large")) << text;
  }
  signal(SIGXFSZ, handler);
  EXPECT_EQ(store->find("a", 0), "before");
  EXPECT_EQ(entries_of(directory), 1u);
}

TEST(FileStore, SaysThatNoDescriptorIsLeft) {
  const TemporaryDirectory temporary;
  const auto store = open_file_store(temporary / "store");
  const Limit limit(RLIMIT_NOFILE, 0);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_OUT_OF_MEMORY, [&] { store->set("a", "b"); }), "Too many open files"));
  refusal(TPFSDP_ERR_OUT_OF_MEMORY, [&] { store->find("a", 0); });
  refusal(TPFSDP_ERR_OUT_OF_MEMORY, [&] { store->add("a", 1); });
}

TEST(FileStore, EveryAllocationMayFail) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary / "store";
  const std::string key(100, 'k'), value(100, 'v');
  const size_t before = open_descriptors();
  const auto store = open_file_store(directory);
  int64_t failures = 0;
  for (;; ++failures) {
    try {
      allocation::fail_after(failures);
      store->set(key, value);
      EXPECT_EQ(store->find(key, 0), value);
      store->add(key, 1);
      allocation::never_fail();
      break;
    } catch (const std::bad_alloc &) {
      EXPECT_TRUE(allocation::has_failed());
    }
    for (const std::string &name : names_in(directory)) EXPECT_FALSE(name.starts_with(kTemporaryPrefix)) << name;
    EXPECT_EQ(open_descriptors(), before);
  }
  EXPECT_GT(failures, 10);
}

TEST(FileStore, OfTheJobIsDiscardedWithItsOwnFilesOnly) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary / "store", foreign = directory + "/tpfsdp-value-notes";
  const size_t before = open_descriptors();
  const auto store = open_file_store(directory + "/", Directory::kOfJob);
  const auto fill = [&] {
    store->set("a", "b");
    store->add("n", 1);
    std::ofstream(directory + "/tpfsdp-temporary-0123456789abcdef") << "of a process that died";
  };
  fill();
  EXPECT_EQ(entries_of(directory), 4u);
  store->discard();
  EXPECT_FALSE(std::filesystem::exists(directory));
  store->discard();

  fill();  // another group of the job begins
  std::ofstream(foreign) << "of the user";
  open_file_store(directory)->discard();
  EXPECT_EQ(entries_of(directory), 5u);
  store->discard();
  EXPECT_EQ(only_file(directory), foreign);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace tpfsdp
