// SPDX-License-Identifier: Apache-2.0
// A store of processes that reach one another by TCP: rank 0 serves, all are clients.
#pragma once

#include "comm/store.hpp"

#include <functional>

namespace tpfsdp {

struct TcpStoreOptions {
  // Where rank 0 listens: a name, or an IPv4 or IPv6 address without brackets. Of the server "": all its addresses.
  std::string host = {};
  int32_t port = 0;  // of the server 0: a free one
  bool is_server = false;
  std::string token = {};              // what only processes of the job know: 16 to 256 bytes
  int64_t deadline_ns = INT64_MAX;     // monotonic; to reach the server. A name is looked up without it.
  int64_t answer_ns = 60'000'000'000;  // what a server that is not asked to wait has for its answer
  // Asked every 100 ms of any wait, on the thread that waits; what it throws ends the wait.
  std::function<void()> poll = {};
};

// Threads may use it at once. Once the server is gone every call throws PEER_LOST; one that stands still is TIMEOUT.
// The server goes with its store.
class TcpStore : public Store {
 public:
  virtual const std::string &address() const = 0;  // "HOST:PORT", of the server's own store as bound
  virtual int32_t port() const = 0;
};

// Throws INVALID_ARGUMENT (also for another job's token), ABI for a server of another version, IO where the server
// cannot listen, TIMEOUT past the deadline.
std::shared_ptr<TcpStore> open_tcp_store(TcpStoreOptions options);

}  // namespace tpfsdp
