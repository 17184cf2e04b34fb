// SPDX-License-Identifier: Apache-2.0
// The hand-shake with transports, good and bad, and the choice between them.
#include "comm/backends.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace tpfsdp {
namespace {

bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// The built-in table, spoiled.
template <auto Spoil>
tpfsdp_status spoiled(const tpfsdp_backend_services *, tpfsdp_backend_table *out) {
  *out = *choose_backend("threads", 0).table;
  return Spoil(out);
}

template <auto Spoil>
BackendCandidate load() {
  BackendCandidate candidate;
  load_backend(&spoiled<Spoil>, &candidate);
  return candidate;
}

TEST(Backends, BuiltInIsTaken) {
  const BackendChoice choice = choose_backend("", TPFSDP_BACKEND_CAN_USE_THREADS);
  EXPECT_STREQ(choice.table->name, "threads");
  EXPECT_TRUE(contains(choice.report, "threads (built in): taken, score")) << choice.report;
  EXPECT_EQ(choose_backend("threads", 0).table, choice.table);
}

TEST(Backends, GoodTablePasses) {
  const auto candidate = load<[](tpfsdp_backend_table *) { return TPFSDP_OK; }>();
  EXPECT_EQ(candidate.refusal, "");
  EXPECT_GT(candidate.score, 0);
}

TEST(Backends, BadTablesAreRefusedWithTheReason) {
  EXPECT_TRUE(contains(load<[](tpfsdp_backend_table *) { return TPFSDP_ERR_IO; }>().refusal, "status -202"));
  EXPECT_TRUE(contains(load<[](tpfsdp_backend_table *table) {
                         table->head.major = 2;
                         return TPFSDP_OK;
                       }>()
                           .refusal,
                       "major version 2"));
  EXPECT_TRUE(contains(load<[](tpfsdp_backend_table *table) {
                         table->head.struct_size = 8;
                         return TPFSDP_OK;
                       }>()
                           .refusal,
                       "8 bytes"));
  EXPECT_TRUE(contains(load<[](tpfsdp_backend_table *table) {
                         table->region_destroy = nullptr;
                         return TPFSDP_OK;
                       }>()
                           .refusal,
                       "empty slot"));
  const auto nameless = load<[](tpfsdp_backend_table *table) {
    table->name = nullptr;
    return TPFSDP_OK;
  }>();
  EXPECT_TRUE(contains(nameless.refusal, "empty slot"));
  EXPECT_STREQ(nameless.table.name, "(unnamed)");
  EXPECT_TRUE(contains(load<[](tpfsdp_backend_table *table) {
                         table->probe = [](char *reason, int64_t) -> int32_t {
                           std::snprintf(reason, 10, "no wire");
                           return 0;
                         };
                         return TPFSDP_OK;
                       }>()
                           .refusal,
                       "it cannot run here: no wire"));
}

TEST(Backends, RanksDecideWhichCanJoinThem) {
  EXPECT_STREQ(choose_backend("", TPFSDP_BACKEND_CAN_USE_THREADS).table->name, "threads");
  EXPECT_STREQ(choose_backend("", TPFSDP_BACKEND_CAN_USE_PROCESSES).table->name, "shm");
}

TEST(Backends, NoneIsUnavailableWithEveryReason) {
  try {
    choose_backend("", TPFSDP_BACKEND_CAN_USE_PROCESSES | TPFSDP_BACKEND_CAN_USE_THREADS);
    FAIL();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_BACKEND_UNAVAILABLE);
    EXPECT_TRUE(contains(failure.what(), "threads (built in): refused, it cannot join ranks that are processes"));
    EXPECT_TRUE(contains(failure.what(), "shm (built in): refused, it cannot join ranks that are threads"));
  }
}

}  // namespace
}  // namespace tpfsdp
