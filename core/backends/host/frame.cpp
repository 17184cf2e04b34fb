// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

namespace tpfsdp::host {

namespace {

constexpr int64_t MS = 1'000'000;
constexpr int64_t SLICE_MS = 100;
constexpr int64_t MOMENT_MS = 20;

void draw(void *target, size_t bytes) {
  while (getrandom(target, bytes, 0) != static_cast<ssize_t>(bytes))
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
}

/// In the namespace that is not of files: it goes with its socket.
socklen_t name_of(const Address &address, sockaddr_un *out) {
  *out = {};
  out->sun_family = AF_UNIX;
  int length = std::snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "tpfsdp-");
  for (const uint8_t byte : address.socket)
    length += std::snprintf(out->sun_path + 1 + length, sizeof out->sun_path - 1 - static_cast<size_t>(length), "%02x",
                            static_cast<unsigned>(byte));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

Outcome no_socket(const char *what) {
  return Outcome::error(errno == EMFILE || errno == ENFILE ? TPFSDP_ERR_OUT_OF_MEMORY : TPFSDP_ERR_BACKEND,
                        std::string("no socket to meet the other ranks (") + what + "): " + std::strerror(errno));
}

Outcome wait(const Meeting &meeting, std::vector<pollfd> &polled, int64_t most_ms) {
  const int64_t now = meeting.services.clock_ns();
  const int64_t left = meeting.deadline_ns - now;
  if (left <= 0) return Outcome::error(TPFSDP_ERR_TIMEOUT, "");
  const int64_t slice = std::min(most_ms, std::max<int64_t>(1, left / MS));
  poll(polled.data(), polled.size(), static_cast<int>(slice));
  if (meeting.services.poll_interrupt(meeting.call, "join", -1, now - meeting.began_ns) < 0)
    return interrupted(meeting);
  return {};
}

}  // namespace

Address draw_address() {
  Address address{};
  address.magic = FRAME_MAGIC;
  address.version = FRAME_VERSION;
  address.user = geteuid();
  draw(address.socket, sizeof address.socket);
  draw(address.secret, sizeof address.secret);
  if (FILE *file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fscanf(file, "%39s", address.machine) != 1) address.machine[0] = '\0';
    std::fclose(file);
  }
  return address;
}

Outcome listen_at(const Address &address, Descriptor *out) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return no_socket("socket");
  sockaddr_un name;
  const socklen_t length = name_of(address, &name);
  if (bind(socket.get(), reinterpret_cast<sockaddr *>(&name), length) != 0) return no_socket("bind");
  if (listen(socket.get(), SOMAXCONN) != 0) return no_socket("listen");
  *out = std::move(socket);
  return {};
}

Outcome connect_to(const Address &address, Descriptor *out) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return no_socket("socket");
  sockaddr_un name;
  const socklen_t length = name_of(address, &name);
  if (connect(socket.get(), reinterpret_cast<sockaddr *>(&name), length) != 0) {
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return Outcome::pending();
    return no_socket("connect");
  }
  *out = std::move(socket);
  return {};
}

int send_frame(const Descriptor &socket, const void *frame, size_t bytes, const std::vector<int> &files) {
  iovec part{const_cast<void *>(frame), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FRAME_FILES)]{};
  if (!files.empty()) {
    const size_t size = sizeof(int) * files.size();
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), files.data(), size);
  }
  for (;;) {
    if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes)) return 1;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM ? 0 : -1;
  }
}

int receive_frame(const Descriptor &socket, void *frame, size_t bytes, std::vector<Descriptor> *files) {
  iovec part{frame, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FRAME_FILES)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  files->reserve(files->size() + FRAME_FILES);
  ssize_t length;
  do length = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (length < 0 && errno == EINTR);
  if (length < 0 && errno == EAGAIN) return 0;
  if (length <= 0) return -1;
  for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      files->emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) return -2;
  return length == static_cast<ssize_t>(bytes) && (message.msg_flags & MSG_TRUNC) == 0 ? 1 : -1;
}

Outcome interrupted(const Meeting &meeting) {
  return Outcome::error(TPFSDP_ERR_CANCELLED, std::string("interrupted while rank ") +
                                                  std::to_string(meeting.options.rank) + " joined comm '" +
                                                  meeting.options.name + "'");
}

Outcome wait_readable(const Meeting &meeting, const std::vector<int> &descriptors) {
  std::vector<pollfd> polled;
  for (const int fd : descriptors) polled.push_back({fd, POLLIN, 0});
  return wait(meeting, polled, SLICE_MS);
}

Outcome wait_a_moment(const Meeting &meeting) {
  std::vector<pollfd> none;
  return wait(meeting, none, MOMENT_MS);
}

}  // namespace tpfsdp::host
