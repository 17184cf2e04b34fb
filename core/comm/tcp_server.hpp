// SPDX-License-Identifier: Apache-2.0
// The server of the TCP store: one thread that serves all clients, and holds the keys. Who does not say hello with the
// token in time, or sends what is no frame, is dropped; so is a client for whose frame the memory is not enough.
#pragma once

#include "comm/tcp_frame.hpp"
#include "comm/tcp_socket.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <poll.h>

namespace tpfsdp {

inline constexpr size_t kMinTokenBytes = 16, kMaxTokenBytes = 256;

struct TcpServerOptions {
  Endpoint endpoint;  // see listen_at
  std::string token;
  size_t max_connections = 4096;
  int64_t frame_timeout_ns = 10'000'000'000;  // from a frame's first byte to its last, or from the connect to the hello
};

class TcpServer {
 public:
  explicit TcpServer(TcpServerOptions options);  // listens
  ~TcpServer();                                  // ends the thread at once
  TcpServer(const TcpServer &) = delete;
  TcpServer &operator=(const TcpServer &) = delete;

  const Endpoint &endpoint() const { return endpoint_; }  // as bound, numeric
  void start();                                           // a thread that runs it
  void run() noexcept;                                    // serves until stop
  void stop() noexcept;

 private:
  struct Connection {
    Descriptor socket;  // none: dropped
    FrameReader in{0, kMaxTokenBytes};
    FrameWriter out;
    bool is_greeted = false;
    std::optional<std::string> awaited;  // the key of a find that waits
    int64_t deadline_ns = INT64_MAX;     // of what is awaited, or of the frame or hello that has begun
  };

  int watch(int64_t now_ns) noexcept;
  void visit(Connection &connection, short events, int64_t now_ns) noexcept;
  void serve(Connection &connection, int64_t now_ns);
  void greet(Connection &connection, const Frame &hello);
  void answer(Connection &connection, Frame request, int64_t now_ns);
  void find(Connection &connection, Frame request, int64_t now_ns);
  void add(Connection &connection, const Frame &request);
  void wake(const std::string &key) noexcept;
  void accept_new(int64_t now_ns) noexcept;
  bool drop_stranger() noexcept;
  void admit(Descriptor socket, int64_t now_ns);

  const TcpServerOptions options_;
  const Descriptor listener_;
  const Endpoint endpoint_;
  const Descriptor wake_up_;  // readable once the server stops
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;

  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<pollfd> polled_;   // wake_up_, listener_, then each connection
  int64_t accept_again_ns_ = 0;  // no descriptor was free before
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> sums_;
};

}  // namespace tpfsdp
