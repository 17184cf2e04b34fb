// SPDX-License-Identifier: Apache-2.0
// What the ranks of a test have in common beside the library: memory and a meeting point, made before the ranks start,
// which threads share and processes inherit. Nothing in it is destroyed but the memory itself, so that a rank which was
// killed is not waited for.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace shared {

class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  void *data() const { return data_; }

 private:
  size_t bytes_;
  void *data_;
};

// One value without pointers: a number, a struct of numbers, an atomic.
template <class T>
class Shared {
 public:
  template <class... Args>
  explicit Shared(Args &&...args) : memory_(sizeof(T)), value_(new(memory_.data()) T{std::forward<Args>(args)...}) {}
  T &operator*() const { return *value_; }
  T *operator->() const { return value_; }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  Memory memory_;
  T *value_;
};

// A vector, or with char a text, that one rank writes as a whole.
template <class T>
class SharedVector {
 public:
  SharedVector() : memory_(kFirst + kCapacity * sizeof(T)), count_(new(memory_.data()) size_t(0)) {}
  template <class Values>
  void operator=(const Values &values) {
    if (values.size() > kCapacity)
      throw std::length_error(std::to_string(values.size()) + " values, room for " + std::to_string(kCapacity));
    std::copy(values.begin(), values.end(), data());
    *count_ = values.size();
  }
  std::vector<T> get() const { return std::vector<T>(data(), data() + *count_); }
  std::string text() const { return std::string(data(), *count_); }

 private:
  static_assert(std::is_trivially_copyable_v<T>);
  static constexpr size_t kFirst = 64, kCapacity = size_t{1} << 20;
  T *data() const { return reinterpret_cast<T *>(static_cast<std::byte *>(memory_.data()) + kFirst); }

  Memory memory_;  // pages that nobody touches cost nothing
  size_t *count_;
};
using SharedValues = SharedVector<float>;
using SharedText = SharedVector<char>;

// Lets the ranks of a test meet without the library.
class Meeting {
 public:
  explicit Meeting(int32_t parties) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&*barrier_, &attributes, static_cast<unsigned>(parties));
    pthread_barrierattr_destroy(&attributes);
  }
  void arrive_and_wait() { pthread_barrier_wait(&*barrier_); }

 private:
  Shared<pthread_barrier_t> barrier_;
};

}  // namespace shared
