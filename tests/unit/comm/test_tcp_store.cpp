// SPDX-License-Identifier: Apache-2.0
// The TCP store as ranks use it: what it does, where it is, and who may use it.
#include "unit/comm/tcp_ranks.hpp"

#include <atomic>
#include <fstream>
#include <thread>

namespace tpfsdp {
namespace {

constexpr const char *kAdder = "TPFSDP_TEST_TCP_ADDER";
constexpr int64_t kAdds = 50;

TEST(TcpStore, KeepsTheContract) {
  const size_t before = open_descriptors();
  {
    const auto server = open_server();
    check_contract(*server);
  }
  {
    const auto server = open_server();
    const auto client = open_client(server->address());
    check_contract(*client);
    EXPECT_EQ(server->find("a", 0), "");  // one store for all
    EXPECT_EQ(server->add("a", 0), 7);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(TcpStore, TellsTheAddressThatItIsBoundTo) {
  const auto one = open_server(), other = open_server();
  EXPECT_TRUE(one->address().starts_with("127.0.0.1:")) << one->address();
  EXPECT_NE(port_of(one->address()), port_of(other->address()));
  EXPECT_EQ(open_client(one->address())->address(), one->address());
  const std::string text = refusal(TPFSDP_ERR_IO, [&] { open_server("127.0.0.1", port_of(one->address())); });
  EXPECT_EQ(text, cat("no store can listen at ", one->address(),
                      ": Address already in use; name an address of the machine of rank 0 and a port that is free "
                      "there, or port 0"));
}

TEST(TcpStore, TakesNamesAndBothFamilies) {
  const auto named = open_server("localhost");
  TcpStoreOptions options = client_options(named->address());
  options.host = "localhost";
  open_tcp_store(options)->set("a", "b");
  EXPECT_EQ(named->find("a", 0), "b");

  const auto any = open_server("");
  open_client(any->address())->set("a", "b");
  std::string why;
  const SocketAddress loopback = resolve({"::1", 0}, why).at(0);
  const Descriptor probe = make_socket(loopback);
  if (!probe || bind(probe.get(), loopback.get(), loopback.size_bytes) != 0) {
    EXPECT_TRUE(contains(refusal(TPFSDP_ERR_IO, [] { open_server("::1"); }), "[::1]:0"));
    return;
  }
  options = client_options(any->address());
  options.host = "::1";
  EXPECT_EQ(open_tcp_store(options)->find("a", 0), "b");
  EXPECT_TRUE(open_server("::1")->address().starts_with("[::1]:"));
}

TEST(TcpStore, RefusesWrongOptions) {
  const auto text_for = [](TcpStoreOptions options) {
    return refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { open_tcp_store(options); });
  };
  for (const bool is_server : {false, true}) {
    TcpStoreOptions options{.host = "127.0.0.1", .port = 1, .is_server = is_server, .token = "fifteen bytes..."};
    options.token.resize(15);
    EXPECT_EQ(text_for(options), "the token of the store has 15 bytes; it needs 16 to 256 that nobody can guess");
    options.token.resize(257);
    EXPECT_EQ(text_for(options), "the token of the store has 257 bytes; it needs 16 to 256 that nobody can guess");
    options.token = kToken;
    options.port = 65536;
    EXPECT_TRUE(contains(text_for(options), "is 65536; it is 1 to 65535"));
    options.port = 1;
    options.host = std::string("127.0.0.1\0x", 11);
    EXPECT_TRUE(contains(text_for(options), "a zero byte"));
  }
  EXPECT_EQ(text_for({.host = "127.0.0.1", .token = kToken}), "the port of the store is 0; it is 1 to 65535");
  EXPECT_TRUE(contains(text_for({.port = 1, .token = kToken}), "is not given"));
}

TEST(TcpStore, AThreadThatWaitsHoldsUpNoOther) {
  const auto server = open_server();
  const auto client = open_client(server->address());
  for (const auto &store : {server, client}) {
    std::thread reader([&] { EXPECT_EQ(store->get("late", INT64_MAX), "here"); });
    EXPECT_EQ(store->add("n", 1), store == server ? 1 : 2);
    store->set("late", "here");
    reader.join();
  }
}

TEST(TcpStore, SixtyFourClientsAtOnce) {
  const auto server = open_server();
  std::vector<std::thread> threads;
  std::atomic<int64_t> met{0};
  for (int i = 0; i < 64; ++i)
    threads.emplace_back([&, i] {
      const auto client = open_client(server->address());
      client->set(cat("of ", i), std::to_string(i));
      for (int other = 0; other < 64; ++other)
        met += client->get(cat("of ", other), in_seconds(60)) == std::to_string(other);
      client->add("sum", i);
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(met, 64 * 64);
  EXPECT_EQ(server->add("sum", 0), 63 * 64 / 2);
}

TEST(TcpStoreChild, Adds) {
  const char *address = task(kAdder);
  if (!address) return;
  const auto store = open_client(address);
  store->get("go", INT64_MAX);
  for (int64_t i = 0; i < kAdds; ++i) store->set(cat("sum ", store->add("sum", 1)), "");
}

TEST(TcpStore, SumsOfProcessesAreExact) {
  const auto server = open_server();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(
        std::make_unique<Child>("TcpStoreChild.Adds", std::map<std::string, std::string>{{kAdder, server->address()}}));
  server->set("go", "");
  for (const auto &child : children) EXPECT_EQ(child->wait(), 0);
  for (int64_t sum = 1; sum <= 4 * kAdds; ++sum) EXPECT_EQ(server->find(cat("sum ", sum), 0), "") << sum;
  EXPECT_EQ(server->add("sum", 0), 4 * kAdds);
}

TEST(TcpStore, RefusesAnotherJobsToken) {
  const auto server = open_server();
  TcpStoreOptions options = client_options(server->address());
  for (const std::string &token : {kToken + "x", std::string(kToken.size(), 'x'), kToken.substr(1)}) {
    options.token = token;
    EXPECT_EQ(refusal(TPFSDP_ERR_INVALID_ARGUMENT, [&] { open_tcp_store(options); }),
              cat("the store at ", server->address(),
                  ": the token of this process is not the one of the store's job; give all ranks of a job the same "
                  "token, and each job a port of its own"));
  }
  open_client(server->address())->set("a", "b");
  EXPECT_EQ(server->find("a", 0), "b");
}

TEST(TcpStore, SaysThatTheServerIsOfAnotherVersionOrNoStore) {
  RawServer other;
  const auto text_for = [&](Status status, const std::string &bytes) {
    std::thread server([&] {
      RawConnection connection = other.accept();
      EXPECT_EQ(connection.receive()->kind, FrameKind::kHello);
      connection.send(bytes);
      connection.is_dropped();
    });
    const std::string text = refusal(status, [&] { open_tcp_store(client_options(other.endpoint().text())); });
    server.join();
    return text;
  };
  EXPECT_EQ(text_for(TPFSDP_ERR_ABI, encode_frame({FrameKind::kError, TPFSDP_ERR_ABI, {}, "too old"})),
            cat("the store at ", other.endpoint().text(), ": too old"));
  EXPECT_EQ(text_for(TPFSDP_ERR_INVALID_ARGUMENT, "HTTP/1.1 400 Bad Request\r\n\r\n"),
            cat("the store at ", other.endpoint().text(),
                ": what answers there is no store of tpfsdp; name the port that rank 0 listens at"));
  text_for(TPFSDP_ERR_INTERNAL, encode_frame({FrameKind::kDone}));
  text_for(TPFSDP_ERR_INTERNAL, encode_frame({FrameKind::kError, 5, {}, "no status"}));
}

TEST(TcpStore, IsTimeoutWhereNoStoreAnswersInTime) {
  TcpStoreOptions options{.host = "127.0.0.1", .port = unused_port(), .token = kToken};
  const auto text_now = [&] {
    options.deadline_ns = monotonic_ns() + 150'000'000;
    return refusal(TPFSDP_ERR_TIMEOUT, [&] { open_tcp_store(options); });
  };
  EXPECT_EQ(text_now(),
            cat("no store at 127.0.0.1:", options.port,
                " in time: Connection refused; is rank 0 running there, and may this machine reach that port?"));
  options.host = std::string(300, 'h');
  EXPECT_TRUE(contains(text_now(), "hh\" is no address: "));
  const RawServer mute;  // the system connects, nobody answers
  options.host = "127.0.0.1";
  options.port = mute.endpoint().port;
  EXPECT_TRUE(contains(text_now(), "it does not answer the hello"));
}

TEST(TcpStore, TriesAgainUntilTheServerIsThere) {
  const int32_t port = unused_port();
  std::atomic<bool> has_waited{false};
  TcpStoreOptions options = client_options(cat("127.0.0.1:", port));
  options.poll = [&] { has_waited = true; };
  std::thread client([&] { open_tcp_store(options)->set("a", "b"); });
  EXPECT_TRUE(becomes_true([&] { return has_waited.load(); }));
  const auto server = open_server("127.0.0.1", port);
  EXPECT_EQ(server->get("a", in_seconds(60)), "b");
  client.join();
}

TEST(TcpStore, TriesAgainWhereAHelloIsDroppedOrComesBack) {
  RawServer server;
  std::thread serving([&] {
    EXPECT_EQ(server.accept().receive()->kind, FrameKind::kHello);
    {
      RawConnection itself = server.accept();  // as a socket that the system has connected to itself
      itself.send(*itself.receive());
      EXPECT_TRUE(itself.is_dropped());
    }
    RawConnection third = server.accept();
    EXPECT_EQ(third.receive()->kind, FrameKind::kHello);
    third.send({FrameKind::kWelcome, kFrameVersion});
    EXPECT_TRUE(third.is_dropped());
  });
  open_client(server.endpoint().text());
  serving.join();
}

TEST(TcpStore, ServesFromANamedThreadWithAllSignalsBlocked) {
  const auto server = open_server();
  int found = 0;
  for (const auto &thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::getline(std::ifstream(thread.path() / "comm") >> std::ws, name);
    if (name != "tpfsdp-store") continue;
    ++found;
    std::ifstream status(thread.path() / "status");
    while (std::getline(status, line) && !line.starts_with("SigBlk:")) continue;
    // All but SIGKILL and SIGSTOP, and the two that the C library keeps for itself.
    EXPECT_EQ(std::stoull(line.substr(7), nullptr, 16), 0xffffffff'ffffffff & ~(1ull << 8 | 1ull << 18 | 3ull << 31))
        << line;
  }
  EXPECT_EQ(found, 1);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGINT));
}

}  // namespace
}  // namespace tpfsdp
