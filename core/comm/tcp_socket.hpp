// SPDX-License-Identifier: Apache-2.0
// Addresses, and sockets that do not block.
#pragma once

#include "comm/descriptor.hpp"

#include <string>
#include <vector>

#include <sys/socket.h>

namespace tpfsdp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = sizeof(sockaddr_storage);

  const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&storage); }
  sockaddr *get() { return reinterpret_cast<sockaddr *>(&storage); }
};

struct Endpoint {
  std::string host;  // a name or a numeric address
  int32_t port = 0;

  std::string text() const;  // "HOST:PORT", an IPv6 address in brackets
};

Endpoint endpoint_of(const SocketAddress &address);  // numeric

// What a name stands for; nothing: `why` says it. Asks the system's resolver, which may take seconds.
std::vector<SocketAddress> resolve(const Endpoint &endpoint, std::string &why);

// A listening socket at the first address of the host that is this machine's; "" means all addresses of this machine,
// port 0 a free one. Throws IO, or OUT_OF_MEMORY.
Descriptor listen_at(const Endpoint &endpoint);
SocketAddress bound_address(const Descriptor &socket);

// A socket for a connection to the address; none: errno.
Descriptor make_socket(const SocketAddress &address) noexcept;
// No delay for small frames; a machine that vanished without a word is noticed within a minute.
void tune_connection(const Descriptor &socket) noexcept;

}  // namespace tpfsdp
