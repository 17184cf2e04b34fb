// SPDX-License-Identifier: Apache-2.0
// The TCP store when its server or one of its clients stops, dies or is interrupted.
#include "comm/file_store.hpp"
#include "support/allocation.hpp"
#include "unit/comm/tcp_ranks.hpp"

#include <atomic>
#include <thread>

namespace tpfsdp {
namespace {

constexpr const char *kServer = "TPFSDP_TEST_TCP_SERVER", *kWaiter = "TPFSDP_TEST_TCP_WAITER";

struct Interrupted {};

TEST(TcpStore, PollEndsEveryWait) {
  bool is_interrupted = true;
  TcpStoreOptions options = client_options(cat("127.0.0.1:", unused_port()));
  options.poll = [&] {
    if (is_interrupted) throw Interrupted();
  };
  EXPECT_THROW(open_tcp_store(options), Interrupted);

  const auto server = open_server();
  options.port = port_of(server->address());
  const auto client = open_tcp_store(options);
  EXPECT_THROW(client->find("never", INT64_MAX), Interrupted);
  is_interrupted = false;
  client->set("a", "b");  // of use as before
  EXPECT_EQ(server->find("a", 0), "b");
}

TEST(TcpStoreChild, Serves) {
  const char *directory = task(kServer);
  if (!directory) return;
  const auto server = open_server();
  open_file_store(directory)->set("address", server->address());
  for (;;) pause();
}

TEST(TcpStore, IsLostWithTheProcessOfItsServer) {
  const TemporaryDirectory temporary;
  Child serving("TcpStoreChild.Serves", {{kServer, temporary / "meet"}});
  const std::string address = open_file_store(temporary / "meet")->get("address", in_seconds(60));
  std::atomic<bool> waits{false};
  TcpStoreOptions options = client_options(address);
  options.poll = [&] { waits = true; };
  const auto client = open_tcp_store(options);
  std::string text;
  std::thread waiter([&] {
    try {
      client->find("never", INT64_MAX);
    } catch (const Failure &failure) {
      EXPECT_EQ(failure.status(), TPFSDP_ERR_PEER_LOST);
      EXPECT_EQ(failure.detail()->rank, 0);
      text = failure.what();
    }
  });
  EXPECT_TRUE(becomes_true([&] { return waits.load(); }));
  serving.kill();
  waiter.join();
  EXPECT_TRUE(text.starts_with(cat("the store at ", address, " is lost: "))) << text;
  EXPECT_TRUE(contains(text, "restart the job"));
  // For ever, also where another server has taken the port.
  const auto another = open_server("127.0.0.1", port_of(address));
  EXPECT_EQ(refusal(TPFSDP_ERR_PEER_LOST, [&] { client->set("a", "b"); }), text);
  EXPECT_EQ(refusal(TPFSDP_ERR_PEER_LOST, [&] { client->find("a", 0); }), text);
  EXPECT_EQ(refusal(TPFSDP_ERR_PEER_LOST, [&] { client->add("a", 1); }), text);
}

TEST(TcpStore, AServerThatStandsStillDoesNotHoldAFindForLong) {
  const TemporaryDirectory temporary;
  Child serving("TcpStoreChild.Serves", {{kServer, temporary / "meet"}});
  bool is_interrupted = false;
  TcpStoreOptions options = client_options(open_file_store(temporary / "meet")->get("address", in_seconds(60)));
  options.poll = [&] {
    if (is_interrupted) throw Interrupted();
  };
  const auto client = open_tcp_store(options);
  client->set("a", "b");
  serving.stop();
  EXPECT_EQ(client->find("a", 0), std::nullopt);
  is_interrupted = true;
  EXPECT_THROW(client->set("a", "c"), Interrupted);
  is_interrupted = false;
  serving.signal(SIGCONT);
  EXPECT_EQ(client->find("a", in_seconds(60)), "b");
}

TEST(TcpStore, AServerThatStandsStillIsATimeoutOfWhatNeedsNoWait) {
  const TemporaryDirectory temporary;
  Child serving("TcpStoreChild.Serves", {{kServer, temporary / "meet"}});
  TcpStoreOptions options = client_options(open_file_store(temporary / "meet")->get("address", in_seconds(60)));
  options.answer_ns = 200'000'000;
  const auto client = open_tcp_store(options);
  serving.stop();
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_TIMEOUT, [&] { client->set("a", "b"); }), "has not answered for 200 ms"));
  EXPECT_TRUE(contains(refusal(TPFSDP_ERR_TIMEOUT, [&] { client->add("a", 1); }), "rank 0"));
  serving.signal(SIGCONT);
  // A client that gave up is no reason to lose the store.
  TcpStoreOptions patient = client_options(client->address());
  EXPECT_EQ(open_tcp_store(patient)->add("another", 2), 2);
}

TEST(TcpStore, EndsAtOnceUnderItsClients) {
  auto server = open_server();
  const auto client = open_client(server->address());
  const std::string address = server->address();
  std::thread waiter([&] {
    const std::string text = refusal(TPFSDP_ERR_PEER_LOST, [&] { client->find("never", INT64_MAX); });
    EXPECT_TRUE(contains(text, address)) << text;
  });
  const int64_t began = monotonic_ns();
  server.reset();
  EXPECT_LT(monotonic_ns() - began, 5'000'000'000);
  waiter.join();
}

TEST(TcpStoreChild, Waits) {
  const char *address = task(kWaiter);
  if (!address) return;
  const auto other = open_client(address);
  TcpStoreOptions options = client_options(address);
  options.poll = [&] { other->set("waits", ""); };
  open_tcp_store(options)->find("never", INT64_MAX);
}

TEST(TcpStore, ForgetsAClientThatDiesWhileItWaits) {
  const auto server = open_server();
  const size_t before = open_descriptors();
  Child waiting("TcpStoreChild.Waits", {{kWaiter, server->address()}});
  server->get("waits", in_seconds(60));
  EXPECT_EQ(open_descriptors(), before + 2);
  waiting.kill();
  EXPECT_TRUE(becomes_true([&] { return open_descriptors() == before; }));
  server->set("never", "now");
  EXPECT_EQ(server->find("never", 0), "now");
}

TEST(TcpStore, EveryAllocationOfItsThreadMayFail) {
  const std::string key(100, 'k'), value(100, 'v');
  const size_t before = open_descriptors();
  int64_t failures = 0;
  for (bool is_done = false; !is_done; ++failures) {
    try {
      allocation::fail_after(failures);
      const auto store = open_server();
      store->set(key, value);
      EXPECT_EQ(store->find(key, 0), value);
      EXPECT_EQ(store->add(key, 1), 1);
      allocation::never_fail();
      is_done = true;
    } catch (const std::bad_alloc &) {
      EXPECT_TRUE(allocation::has_failed());
    }
    EXPECT_EQ(open_descriptors(), before);
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_FALSE(sigismember(&blocked, SIGINT));
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace tpfsdp
