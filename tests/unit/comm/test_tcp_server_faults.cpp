// SPDX-License-Identifier: Apache-2.0
// The server of the TCP store without memory, and under random bytes.
#include "support/allocation.hpp"
#include "unit/comm/tcp_server_fixture.hpp"

#include <algorithm>
#include <random>

namespace tpfsdp {
namespace {

// Runs the server in a thread where one allocation fails; false once none was left to fail.
bool run_without_memory(int64_t successes) {
  TcpServer server(options_with());
  bool has_failed = false;
  std::thread serving([&] {
    allocation::fail_after(successes);
    server.run();
    allocation::never_fail();
    has_failed = allocation::has_failed();
  });
  int dropped = 0;
  // A client that comes back when it is dropped.
  const auto ask = [&](std::optional<RawConnection> &client, const Frame &request) {
    for (;;) {
      if (!client) {
        client.emplace(connect_raw(server.endpoint()));
        client->send(hello());
        if (client->receive()) {
          client->send(request);
        } else {
          ++dropped;
          client.reset();
          continue;
        }
      } else {
        client->send(request);
      }
      if (request.kind == FrameKind::kFind && request.number > 0) return Frame{};  // it waits
      if (std::optional<Frame> answer = client->receive()) return *std::move(answer);
      ++dropped;
      client.reset();
    }
  };
  std::optional<RawConnection> waiter, writer;
  const std::string key(100, 'k'), value(100, 'v');
  ask(waiter, find(key, INT64_MAX));
  EXPECT_EQ(ask(writer, set(key, value)).kind, FrameKind::kDone);
  EXPECT_EQ(ask(writer, find(key)).value, value);
  EXPECT_GE(ask(writer, Frame{FrameKind::kAdd, 2, key}).number, 2);
  if (const std::optional<Frame> found = waiter->receive()) {
    EXPECT_EQ(found->value, value);
  } else {
    ++dropped;
  }
  server.stop();
  serving.join();
  EXPECT_EQ(dropped, has_failed ? 1 : 0) << successes;
  return has_failed;
}

TEST(TcpStoreMemory, EveryAllocationOfTheServerMayFail) {
  const size_t before = open_descriptors();
  int64_t failures = 0;
  while (run_without_memory(failures)) ++failures;
  EXPECT_GT(failures, 15);
  EXPECT_EQ(open_descriptors(), before);
}

// Changes some bytes, cuts, repeats or adds.
std::string mutated(std::string bytes, std::mt19937 &random) {
  const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  for (size_t change = 1 + below(4); change > 0 && !bytes.empty(); --change) {
    const size_t at = below(bytes.size());
    switch (below(5)) {
      case 0: bytes[at] = static_cast<char>(random()); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, bytes.substr(below(bytes.size()), below(40))); break;
      default: bytes.insert(at, 1 + below(8), static_cast<char>(random()));
    }
  }
  return bytes;
}

TEST_F(TcpStoreServer, SurvivesGarbage) {
  start(options_with());
  const size_t before = open_descriptors();
  const char *scale = std::getenv("TPFSDP_TEST_SCALE");
  const int rounds = scale && std::string_view(scale) == "full" ? 200'000 : 2'000;
  std::mt19937 random(20240607);
  const std::vector<std::string> requests = {encode_frame(set("fuzz", "value")), encode_frame(find("fuzz")),
                                             encode_frame(find("never", INT64_MAX)),
                                             encode_frame({FrameKind::kAdd, INT64_MAX, "fuzz"})};
  int welcomes = 0, answers = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string greeting = encode_frame(hello());
    std::string bytes(1 + random() % 200, '\0');
    if (round % 4 == 0) {
      std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    } else {
      bytes = mutated(round % 4 == 1 ? greeting : requests[random() % requests.size()], random);
    }
    const bool is_welcome = round % 4 > 1 || bytes.starts_with(greeting);
    RawConnection stranger = connect_raw(endpoint());
    stranger.send(round % 4 > 1 ? greeting + bytes : bytes);
    stranger.end_sending();
    while (const std::optional<Frame> answer = stranger.receive()) {
      ++(answer->kind == FrameKind::kWelcome ? welcomes : answers);
      EXPECT_TRUE(is_welcome || answer->kind == FrameKind::kError) << "round " << round;
    }
    if (round % 100 == 0) check_good();
  }
  EXPECT_GE(welcomes, rounds / 3);
  EXPECT_GT(answers, rounds / 20);
  check_good();
  EXPECT_TRUE(becomes_true([&] { return open_descriptors() == before; }));
}

}  // namespace
}  // namespace tpfsdp
