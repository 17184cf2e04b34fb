// SPDX-License-Identifier: Apache-2.0
// A server of the TCP store with a client that has manners, for tests of those without.
#pragma once

#include "comm/tcp_server.hpp"
#include "unit/comm/tcp_raw.hpp"

namespace tpfsdp {

inline Frame set(const std::string &key, const std::string &value) { return {FrameKind::kSet, 0, key, value}; }
inline Frame find(const std::string &key, int64_t wait_ns = 0) { return {FrameKind::kFind, wait_ns, key}; }

inline TcpServerOptions options_with(int64_t frame_timeout_ns = 60'000'000'000) {
  TcpServerOptions options;
  options.endpoint = {"127.0.0.1", 0};
  options.token = kToken;
  options.frame_timeout_ns = frame_timeout_ns;
  return options;
}

// The client with manners must not notice anything.
class TcpStoreServer : public testing::Test {
 protected:
  void start(TcpServerOptions options) {
    server_.emplace(std::move(options));
    server_->start();
    good_.emplace(greet_raw(endpoint()));
    check_good();
  }
  const Endpoint &endpoint() const { return server_->endpoint(); }
  void check_good() {
    const std::string value = std::to_string(++checks_);
    good_->send(set("good", value));
    EXPECT_EQ(good_->receive().value_or(Frame{}).kind, FrameKind::kDone);
    good_->send(find("good"));
    EXPECT_EQ(good_->receive().value_or(Frame{}).value, value);
  }

  std::optional<TcpServer> server_;
  std::optional<RawConnection> good_;
  int64_t checks_ = 0;
};

}  // namespace tpfsdp
