// SPDX-License-Identifier: Apache-2.0
// The server of the TCP store against clients without manners: each is dropped, and no other notices.
#include "unit/comm/tcp_server_fixture.hpp"

namespace tpfsdp {
namespace {

TEST_F(TcpStoreServer, DropsWhoDoesNotBeginWithAHello) {
  start(options_with());
  for (const Frame &first : {set("a", "b"), find("good"), Frame{FrameKind::kAdd, 1, "n"}, Frame{FrameKind::kWelcome},
                             Frame{static_cast<FrameKind>(0)}, Frame{static_cast<FrameKind>(77)}}) {
    RawConnection stranger = connect_raw(endpoint());
    stranger.send(first);
    EXPECT_TRUE(stranger.is_dropped());
  }
  for (const char *garbage : {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9.2p1 Debian\r\n"}) {
    RawConnection stranger = connect_raw(endpoint());
    stranger.send(garbage);
    EXPECT_TRUE(stranger.is_dropped());
  }
  check_good();
  good_->send(find("a"));
  EXPECT_EQ(good_->receive()->kind, FrameKind::kAbsent);
}

TEST_F(TcpStoreServer, DropsAnAnswerOrASecondHello) {
  start(options_with());
  for (const FrameKind kind : {FrameKind::kHello, FrameKind::kWelcome, FrameKind::kDone, FrameKind::kFound,
                               FrameKind::kAbsent, FrameKind::kError}) {
    RawConnection client = greet_raw(endpoint());
    client.send(Frame{kind, kFrameVersion, {}, kToken});
    EXPECT_TRUE(client.is_dropped());
  }
  check_good();
}

TEST_F(TcpStoreServer, TellsAWrongTokenAndAnotherVersionWhyTheyAreDropped) {
  start(options_with());
  RawConnection stranger = connect_raw(endpoint());
  stranger.send(hello(std::string(kToken.size(), 'x')));
  EXPECT_EQ(refusal_of(stranger.receive().value_or(Frame{})), TPFSDP_ERR_INVALID_ARGUMENT);
  EXPECT_TRUE(stranger.is_dropped());
  RawConnection newer = connect_raw(endpoint());
  newer.send(hello(kToken, 2));
  const Frame answer = newer.receive().value_or(Frame{});
  EXPECT_EQ(refusal_of(answer), TPFSDP_ERR_ABI);
  EXPECT_EQ(answer.value,
            "it speaks version 1 of the format and this process version 2; use one version of the "
            "library on all ranks");
  EXPECT_TRUE(newer.is_dropped());
  check_good();
}

TEST_F(TcpStoreServer, DropsLengthsBeyondTheBoundsByTheirHead) {
  start(options_with());
  const auto head_with = [](FrameKind kind, uint32_t key_bytes, uint32_t value_bytes) {
    std::string head = encode_frame({kind, kFrameVersion});
    for (int byte = 0; byte < 4; ++byte) {
      head[static_cast<size_t>(8 + byte)] = static_cast<char>(key_bytes >> (8 * byte));
      head[static_cast<size_t>(12 + byte)] = static_cast<char>(value_bytes >> (8 * byte));
    }
    return head;
  };
  for (const auto &[key_bytes, value_bytes] : {std::pair{1u, 16u}, {0u, 257u}, {0u, 0xffffffffu}, {0xffffffffu, 1u}}) {
    RawConnection stranger = connect_raw(endpoint());
    stranger.send(head_with(FrameKind::kHello, key_bytes, value_bytes));
    EXPECT_TRUE(stranger.is_dropped());
  }
  for (const auto &[key_bytes, value_bytes] :
       {std::pair{4097u, 0u}, {0u, 1048577u}, {0u, 0xffffffffu}, {0xffffffffu, 0xffffffffu}}) {
    RawConnection client = greet_raw(endpoint());
    client.send(head_with(FrameKind::kSet, key_bytes, value_bytes));
    EXPECT_TRUE(client.is_dropped());
  }
  check_good();
}

TEST_F(TcpStoreServer, DropsWhoIsTooSlow) {
  start(options_with(1'000'000'000));
  RawConnection mute = connect_raw(endpoint());
  EXPECT_TRUE(mute.is_dropped());
  // A byte now and then does not help, neither before the hello nor within a frame.
  for (const bool is_greeted : {false, true}) {
    RawConnection slow = is_greeted ? greet_raw(endpoint()) : connect_raw(endpoint());
    const std::string bytes = encode_frame(is_greeted ? set("slow", std::string(1000, 's')) : hello());
    size_t sent = 0;
    while (sent < bytes.size() && slow.send(bytes.substr(sent, 1))) {
      ++sent;
      usleep(100'000);
    }
    EXPECT_LT(sent, bytes.size());
  }
  check_good();  // which has said nothing for longer than that
  good_->send(find("slow"));
  EXPECT_EQ(good_->receive()->kind, FrameKind::kAbsent);
}

TEST_F(TcpStoreServer, DropsWhoGoesOrTalksWhileItWaits) {
  start(options_with());
  RawConnection gone = greet_raw(endpoint());
  gone.send(find("never", INT64_MAX));
  gone.end_sending();
  EXPECT_TRUE(gone.is_dropped());
  RawConnection hasty = greet_raw(endpoint());
  hasty.send(encode_frame(find("never", INT64_MAX)) + encode_frame(find("good")));
  EXPECT_TRUE(hasty.is_dropped());
  RawConnection half = greet_raw(endpoint());
  half.send(encode_frame(set("half", "value")).substr(0, 26));
  half.end_sending();
  EXPECT_TRUE(half.is_dropped());
  check_good();
}

TEST_F(TcpStoreServer, AnswersFramesThatComeAtOnceOrInPieces) {
  start(options_with());
  RawConnection client = greet_raw(endpoint());
  client.send(encode_frame(set("a", "b")) + encode_frame(find("a")) + encode_frame(find("c")));
  EXPECT_EQ(client.receive()->kind, FrameKind::kDone);
  EXPECT_EQ(client.receive()->value, "b");
  EXPECT_EQ(client.receive()->kind, FrameKind::kAbsent);
  for (const char byte : encode_frame(find("a"))) client.send(std::string_view(&byte, 1));
  EXPECT_EQ(client.receive()->value, "b");
}

TEST_F(TcpStoreServer, AClientThatDoesNotReadHoldsUpNoOther) {
  start(options_with());
  const std::string largest(kMaxStoreValueBytes, 'v');
  RawConnection client = greet_raw(endpoint());
  client.send(set("largest", largest));
  EXPECT_EQ(client.receive()->kind, FrameKind::kDone);
  constexpr int kFinds = 16;  // more than the system holds for a socket
  for (int i = 0; i < kFinds; ++i) client.send(find("largest"));
  check_good();
  for (int i = 0; i < kFinds; ++i) EXPECT_EQ(client.receive()->value, largest);
}

TEST_F(TcpStoreServer, StrangersMakeRoomWhereItIsFull) {
  TcpServerOptions options = options_with();
  options.max_connections = 3;
  start(options);
  RawConnection oldest = connect_raw(endpoint());
  oldest.send("x");
  RawConnection stranger = connect_raw(endpoint());
  RawConnection client = greet_raw(endpoint());
  EXPECT_TRUE(oldest.is_dropped());
  RawConnection another = greet_raw(endpoint());
  EXPECT_TRUE(stranger.is_dropped());
  RawConnection late = connect_raw(endpoint());  // three clients are there
  EXPECT_TRUE(late.is_dropped());
  for (RawConnection *served : {&client, &another}) {
    served->send(find("good"));
    EXPECT_EQ(served->receive()->kind, FrameKind::kFound);
  }
  check_good();
}

TEST_F(TcpStoreServer, AcceptsAgainOnceADescriptorIsFree) {
  start(options_with());
  std::optional<RawConnection> late;
  {
    const int next = dup(0);
    close(next);
    const Limit limit(RLIMIT_NOFILE, static_cast<rlim_t>(next) + 1);
    late.emplace(connect_raw(endpoint()));  // takes the last one; the system connects without the server
    late->send(hello());
    for (int i = 0; i < 3; ++i) check_good();
    EXPECT_EQ(dup(0), -1);
  }
  EXPECT_EQ(late->receive().value_or(Frame{}).kind, FrameKind::kWelcome);
}

}  // namespace
}  // namespace tpfsdp
