// SPDX-License-Identifier: Apache-2.0
#include "comm/recorder.hpp"
#include "comm/store.hpp"
#include "unit/comm/refusal.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tpfsdp {
namespace {

TEST(Store, GivesWhatWasSet) {
  const auto store = make_local_store();
  store->set("a", std::string("x\0y", 3));
  EXPECT_EQ(store->get("a", 0), std::string("x\0y", 3));
  store->set("a", "z");
  EXPECT_EQ(store->find("a", 0), "z");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", -1), 2);
}

TEST(Store, WaitsForAKeyOfAnotherThread) {
  const auto store = make_local_store();
  std::thread writer([&] { store->set("late", "here"); });
  EXPECT_EQ(store->get("late", INT64_MAX), "here");
  writer.join();
}

TEST(Store, IsTimeoutPastTheDeadline) {
  const auto store = make_local_store();
  const int64_t began = monotonic_ns();
  EXPECT_EQ(store->find("never", began + 30'000'000), std::nullopt);
  EXPECT_GE(monotonic_ns() - began, 30'000'000);
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_TIMEOUT, [&] { store->get("never", 0); }), "never"));
}

TEST(LocalStore, IsOneForAllRanksOfAName) {
  const auto zero = join_local_store("one", 0, 2);
  const auto one = join_local_store("one", 1, 2);
  EXPECT_EQ(zero, one);
  EXPECT_NE(join_local_store("other", 0, 2), zero);
}

TEST(LocalStore, NameIsFreeForASecondJobOnceTheFirstIsComplete) {
  const auto first0 = join_local_store("again", 0, 2);
  const auto first1 = join_local_store("again", 1, 2);
  first0->set("key", "of the first job");
  const auto second0 = join_local_store("again", 0, 3);
  EXPECT_NE(second0, first0);
  EXPECT_EQ(second0->find("key", 0), std::nullopt);
  EXPECT_EQ(join_local_store("again", 2, 3), second0);
}

TEST(LocalStore, NameIsFreeAgainWhenAllHaveGivenUp) {
  join_local_store("given up", 0, 2).reset();
  const auto zero = join_local_store("given up", 0, 4);  // another world, the same rank
  EXPECT_EQ(join_local_store("given up", 3, 4), zero);
}

TEST(LocalStore, RefusesARankTwice) {
  const auto held = join_local_store("twice", 1, 3);
  const std::string text = refusal(TPFSDP_ERR_STATE, [] { join_local_store("twice", 1, 3); });
  EXPECT_TRUE(contains(text, "rank 1 of 3")) << text;
  EXPECT_TRUE(contains(text, "local:twice")) << text;
}

TEST(LocalStore, RefusesUnequalWorlds) {
  const auto held = join_local_store("unequal", 0, 3);
  const std::string text = refusal(TPFSDP_ERR_STATE, [] { join_local_store("unequal", 1, 4); });
  EXPECT_TRUE(contains(text, "4") && contains(text, "3")) << text;
  // The refused rank took no seat.
  EXPECT_EQ(join_local_store("unequal", 1, 3), held);
}

}  // namespace
}  // namespace tpfsdp
