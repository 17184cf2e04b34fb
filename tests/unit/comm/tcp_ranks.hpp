// SPDX-License-Identifier: Apache-2.0
// TCP stores as rank 0 and the other ranks of a test open them.
#pragma once

#include "comm/tcp_store.hpp"
#include "unit/comm/tcp_raw.hpp"

namespace tpfsdp {

inline std::shared_ptr<TcpStore> open_server(const std::string &host = "127.0.0.1", int32_t port = 0) {
  return open_tcp_store({.host = host, .port = port, .is_server = true, .token = kToken});
}

inline int32_t port_of(const std::string &address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

inline TcpStoreOptions client_options(const std::string &address) {
  return {.host = "127.0.0.1", .port = port_of(address), .token = kToken, .deadline_ns = in_seconds(60)};
}
inline std::shared_ptr<TcpStore> open_client(const std::string &address) {
  return open_tcp_store(client_options(address));
}

// A port that was free a moment ago.
inline int32_t unused_port() { return port_of(open_server()->address()); }

}  // namespace tpfsdp
