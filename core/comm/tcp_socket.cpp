// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_socket.hpp"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace tpfsdp {
namespace {

void set_option(const Descriptor &socket, int level, int option, int value) noexcept {
  setsockopt(socket.get(), level, option, &value, sizeof(value));
}

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

Endpoint endpoint_of(const SocketAddress &address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int code = getnameinfo(address.get(), address.size_bytes, host.data(), host.size(), port.data(), port.size(),
                               NI_NUMERICHOST | NI_NUMERICSERV);
  if (code != 0) fail(TPFSDP_ERR_IO, "an address of the network has no text: ", gai_strerror(code));
  return {host.data(), std::atoi(port.data())};
}

std::vector<SocketAddress> resolve(const Endpoint &endpoint, std::string &why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo *list = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (code != 0) {
    why = cat("\"", endpoint.host, "\" is no address: ", code == EAI_SYSTEM ? errno_text(errno) : gai_strerror(code));
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo *)> owner(list, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo *entry = list; entry; entry = entry->ai_next) {
    SocketAddress &address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size_bytes = entry->ai_addrlen;
  }
  return addresses;
}

Descriptor listen_at(const Endpoint &endpoint) {
  const bool is_any = endpoint.host.empty();
  std::string why;
  std::vector<SocketAddress> addresses = resolve(is_any ? Endpoint{"::", endpoint.port} : endpoint, why);
  if (is_any)  // where the machine has no IPv6
    for (const SocketAddress &address : resolve({"0.0.0.0", endpoint.port}, why)) addresses.push_back(address);
  Status status = TPFSDP_ERR_IO;
  for (const SocketAddress &address : addresses) {
    Descriptor socket = make_socket(address);
    if (socket) {
      // Connections of an earlier job that still linger do not hold the port; both families where the host is "".
      set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
      if (address.storage.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
      if (bind(socket.get(), address.get(), address.size_bytes) == 0 && listen(socket.get(), SOMAXCONN) == 0)
        return socket;
    }
    status = status_of_errno(errno);
    why = errno_text(errno);
  }
  fail(status, "no store can listen at ", endpoint.text(), ": ", why,
       "; name an address of the machine of rank 0 and a port that is free there, or port 0");
}

SocketAddress bound_address(const Descriptor &socket) {
  SocketAddress address;
  if (getsockname(socket.get(), address.get(), &address.size_bytes) != 0)
    fail(status_of_errno(errno), "the store does not know its address: ", errno_text(errno));
  return address;
}

Descriptor make_socket(const SocketAddress &address) noexcept {
  return Descriptor(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void tune_connection(const Descriptor &socket) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // The same where bytes of ours wait to be acknowledged, which holds the questions of keepalive back.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

}  // namespace tpfsdp
