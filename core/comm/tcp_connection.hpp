// SPDX-License-Identifier: Apache-2.0
// A client's connection to a TCP store, and how it is made.
#pragma once

#include "comm/tcp_frame.hpp"
#include "comm/tcp_socket.hpp"

#include <functional>
#include <memory>

namespace tpfsdp {

// Asked every 100 ms of a wait; what it throws ends the wait.
using Poll = std::function<void()>;

// Waits until the socket (-1: none) is ready for the events of poll(2); false past the deadline.
bool wait_for(int socket, short events, int64_t deadline_ns, const Poll &poll);

class TcpConnection {
 public:
  explicit TcpConnection(Descriptor socket);
  // Sends a frame and takes its answer. kPending: the deadline has passed. Of use again only after kDone.
  Transfer exchange(const Frame &request, Frame &answer, int64_t deadline_ns, const Poll &poll);

 private:
  Descriptor socket_;
  FrameReader in_;
  FrameWriter out_;
};

// A connection that has been greeted, or why there is none. IO and TIMEOUT: another try may succeed.
struct Attempt {
  std::unique_ptr<TcpConnection> connection;
  Status status = TPFSDP_OK;
  std::string why;
};

Attempt try_connect(const SocketAddress &address, const std::string &token, int64_t deadline_ns, const Poll &poll);

// Tries all addresses of the endpoint, again and again until the deadline. Throws TIMEOUT, or what no retry can mend.
// `peer` is where it succeeded.
std::unique_ptr<TcpConnection> connect_to(const Endpoint &endpoint, const std::string &token, int64_t deadline_ns,
                                          const Poll &poll, SocketAddress &peer);

// After Transfer::kClosed.
std::string closed_text();

}  // namespace tpfsdp
