// SPDX-License-Identifier: Apache-2.0
// The two ends of the TCP store without its manners: a client and a server that send whatever a test wants.
#pragma once

#include "comm/tcp_frame.hpp"
#include "comm/tcp_socket.hpp"
#include "unit/comm/stores.hpp"

#include <optional>

#include <poll.h>
#include <sys/time.h>

namespace tpfsdp {

inline const std::string kToken = "0123456789abcdef-of-a-test";

inline Frame hello(const std::string &token = kToken, int64_t version = kFrameVersion) {
  return {FrameKind::kHello, version, {}, token};
}

// A connection whose reads give up after a minute.
class RawConnection {
 public:
  explicit RawConnection(Descriptor socket) : socket_(std::move(socket)) {
    const timeval limit{60, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    // Closed by a reset: thousands of them leave no port behind that waits.
    const linger none{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  }

  bool send(std::string_view bytes) { return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0; }
  bool send(const Frame &frame) { return send(encode_frame(frame)); }
  void end_sending() { shutdown(socket_.get(), SHUT_WR); }

  // The next frame; nothing once the peer has dropped the connection.
  std::optional<Frame> receive() {
    const Transfer end = in_.receive(socket_.get());
    if (end == Transfer::kDone) return in_.take();
    EXPECT_EQ(end, Transfer::kClosed) << "no frame and no end within a minute, or garbage";
    return std::nullopt;
  }
  bool is_dropped() { return !receive(); }

 private:
  Descriptor socket_;
  FrameReader in_{kMaxStoreKeyBytes, kMaxStoreValueBytes};
};

inline RawConnection connect_raw(const Endpoint &endpoint) {
  std::string why;
  for (const SocketAddress &address : resolve(endpoint, why)) {
    Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), address.get(), address.size_bytes) == 0) return RawConnection(std::move(socket));
    why = errno_text(errno);
  }
  ADD_FAILURE() << "no connection to " << endpoint.text() << ": " << why;
  return RawConnection(Descriptor());
}

// One that the server has welcomed.
inline RawConnection greet_raw(const Endpoint &endpoint) {
  RawConnection connection = connect_raw(endpoint);
  connection.send(hello());
  const std::optional<Frame> answer = connection.receive();
  EXPECT_TRUE(answer && answer->kind == FrameKind::kWelcome);
  return connection;
}

// Listens at a free port, and does with each connection what the test says.
class RawServer {
 public:
  RawServer() : listener_(listen_at({"127.0.0.1", 0})) {}
  Endpoint endpoint() const { return endpoint_of(bound_address(listener_)); }
  RawConnection accept() {
    pollfd waited{listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waited, 1, 60'000), 1);
    return RawConnection(Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  Descriptor listener_;
};

}  // namespace tpfsdp
