// SPDX-License-Identifier: Apache-2.0
// A host's record is dropped exactly once, in every way it can end; and error texts.
#include "base/callback.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

namespace {
thread_local bool fail_next_allocation = false;
}

// Not inlined, or gcc takes the pair malloc and free apart and warns of a mismatch.
[[gnu::noinline]] void *operator new(std::size_t size) {
  if (fail_next_allocation) {
    fail_next_allocation = false;
    throw std::bad_alloc();
  }
  if (void *data = std::malloc(size > 0 ? size : 1)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void *data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void *data, std::size_t) noexcept { std::free(data); }

namespace tpfsdp {
namespace {

struct Args {
  int number;
};
struct Record {
  Status (*call)(void *user, const Args *args);
  void *user;
  void (*drop)(void *user);
};
struct Counts {
  int calls = 0, drops = 0;
};

Record record_of(Counts &counts) {
  return {[](void *user, const Args *args) -> Status {
            static_cast<Counts *>(user)->calls += args->number;
            return TPFSDP_OK;
          },
          &counts, [](void *user) { ++static_cast<Counts *>(user)->drops; }};
}

TEST(Callback, IsDroppedAfterTheLastCopy) {
  Counts counts;
  {
    const auto callback = Callback<Args>::copy_of(record_of(counts), "on_step");
    const auto copy = callback;
    EXPECT_TRUE(callback);
    EXPECT_EQ(copy({3}), TPFSDP_OK);
    EXPECT_EQ(counts.calls, 3);
    EXPECT_EQ(counts.drops, 0);
  }
  EXPECT_EQ(counts.drops, 1);
}

TEST(Callback, WithoutDropAndEmpty) {
  Counts counts;
  Record record = record_of(counts);
  record.drop = nullptr;
  {
    const auto callback = Callback<Args>::copy_of(record, "on_step");
  }
  EXPECT_EQ(counts.drops, 0);
  EXPECT_FALSE(Callback<Args>());
}

TEST(Callback, ANullCallIsRefusedAfterItsDrop) {
  Counts counts;
  Record record = record_of(counts);
  record.call = nullptr;
  try {
    Callback<Args>::copy_of(record, "on_step");
    FAIL() << "was not refused";
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_INVALID_ARGUMENT);
    EXPECT_STREQ(failure.what(), "on_step.call is NULL");
  }
  EXPECT_EQ(counts.drops, 1);
}

TEST(Callback, IsDroppedOnceWhenThereIsNoMemoryForIt) {
  Counts counts;
  const Record record = record_of(counts);
  fail_next_allocation = true;
  EXPECT_THROW(Callback<Args>::copy_of(record, "on_step"), std::bad_alloc);
  EXPECT_FALSE(fail_next_allocation) << "the fault fired";
  EXPECT_EQ(counts.drops, 1);
}

TEST(Error, CatJoinsTextsAndNumbers) {
  EXPECT_EQ(cat("rank ", 3, " of ", int64_t{4}, ',', ' ', std::string("unit ") + "a", uint8_t{7}),
            "rank 3 of 4, unit a7");
  EXPECT_EQ(cat(), "");
  EXPECT_EQ(cat(INT64_MIN), "-9223372036854775808");
}

TEST(Error, CheckNamesTheConditionAndPlace) {
  try {
    TPFSDP_CHECK(1 + 1 == 3);
    FAIL();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_INTERNAL);
    EXPECT_NE(std::string(failure.what()).find("1 + 1 == 3 (test_callback.cpp:"), std::string::npos) << failure.what();
  }
}

TEST(Error, StickyAreTheFourHundredsAndInternal) {
  for (const Status status : std::initializer_list<Status>{TPFSDP_ERR_TIMEOUT, TPFSDP_ERR_PEER_LOST, TPFSDP_ERR_ABORTED,
                                                           TPFSDP_ERR_BACKEND, TPFSDP_ERR_INTERNAL, -499})
    EXPECT_TRUE(is_sticky(status)) << status;
  for (const Status status : std::initializer_list<Status>{TPFSDP_OK, TPFSDP_PENDING, TPFSDP_ERR_REMOTE,
                                                           TPFSDP_ERR_FORKED, TPFSDP_ERR_INVALID_ARGUMENT, -400, -500})
    EXPECT_FALSE(is_sticky(status)) << status;
}

}  // namespace
}  // namespace tpfsdp
