// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_connection.hpp"

#include "comm/recorder.hpp"
#include "comm/store.hpp"

#include <algorithm>

#include <poll.h>

namespace tpfsdp {
namespace {

constexpr int64_t kPollNs = 100'000'000;
constexpr int64_t kFirstRetryNs = 50'000'000, kLongestRetryNs = 1'000'000'000;
constexpr int64_t kAttemptNs = 10'000'000'000;  // then another address has its turn

bool may_succeed_later(Status status) { return status == TPFSDP_ERR_IO || status == TPFSDP_ERR_TIMEOUT; }

int64_t after(int64_t ns) { return monotonic_ns() + ns; }

}  // namespace

bool wait_for(int socket, short events, int64_t deadline_ns, const Poll &poll) {
  int64_t ask_ns = after(kPollNs);
  for (;;) {
    const int64_t began_ns = monotonic_ns();
    const int64_t left_ns = std::max(std::min(deadline_ns, ask_ns), began_ns) - began_ns;
    pollfd waited{socket, events, 0};
    if (::poll(&waited, 1, static_cast<int>((left_ns + 999'999) / 1'000'000)) > 0) return true;
    const int64_t now_ns = monotonic_ns();
    if (now_ns >= ask_ns) {
      if (poll) poll();
      ask_ns = after(kPollNs);
    }
    if (now_ns >= deadline_ns) return false;
  }
}

TcpConnection::TcpConnection(Descriptor socket)
    : socket_(std::move(socket)), in_(kMaxStoreKeyBytes, kMaxStoreValueBytes) {}

Transfer TcpConnection::exchange(const Frame &request, Frame &answer, int64_t deadline_ns, const Poll &poll) {
  out_.start(request);
  for (;;) {
    const Transfer sent = out_.send(socket_.get());
    if (sent == Transfer::kDone) break;
    if (sent != Transfer::kPending || !wait_for(socket_.get(), POLLOUT, deadline_ns, poll)) return sent;
  }
  for (;;) {
    const Transfer received = in_.receive(socket_.get());
    if (received == Transfer::kDone) break;
    if (received != Transfer::kPending || !wait_for(socket_.get(), POLLIN, deadline_ns, poll)) return received;
  }
  answer = in_.take();
  return Transfer::kDone;
}

std::string closed_text() { return errno == 0 ? "it closed the connection" : errno_text(errno); }

Attempt try_connect(const SocketAddress &address, const std::string &token, int64_t deadline_ns, const Poll &poll) {
  const auto failed = [](Status status, std::string why) { return Attempt{nullptr, status, std::move(why)}; };
  Descriptor socket = make_socket(address);
  if (!socket) return failed(status_of_errno(errno), errno_text(errno));
  tune_connection(socket);
  int code = connect(socket.get(), address.get(), address.size_bytes) == 0 ? 0 : errno;
  if (code == EINPROGRESS || code == EINTR) {
    if (!wait_for(socket.get(), POLLOUT, deadline_ns, poll)) return failed(TPFSDP_ERR_TIMEOUT, "it does not answer");
    socklen_t size = sizeof(code);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
  }
  if (code != 0) return failed(status_of_errno(code), errno_text(code));

  auto connection = std::make_unique<TcpConnection>(std::move(socket));
  Frame answer;
  switch (connection->exchange({FrameKind::kHello, kFrameVersion, {}, token}, answer, deadline_ns, poll)) {
    case Transfer::kPending: return failed(TPFSDP_ERR_TIMEOUT, "it does not answer the hello");
    case Transfer::kClosed: return failed(TPFSDP_ERR_IO, cat("no answer to the hello: ", closed_text()));
    case Transfer::kGarbage:
      return failed(TPFSDP_ERR_INVALID_ARGUMENT,
                    "what answers there is no store of tpfsdp; name the port that rank 0 listens at");
    case Transfer::kDone: break;
  }
  if (answer.kind == FrameKind::kWelcome) return {std::move(connection), TPFSDP_OK, {}};
  // Where nobody listens at a port that the system gives out, it may have connected the socket to itself.
  if (answer.kind == FrameKind::kHello) return failed(TPFSDP_ERR_IO, errno_text(ECONNREFUSED));
  if (const Status status = refusal_of(answer)) return failed(status, std::move(answer.value));
  return failed(TPFSDP_ERR_INTERNAL, "it answers a hello with what is no welcome; please report it");
}

std::unique_ptr<TcpConnection> connect_to(const Endpoint &endpoint, const std::string &token, int64_t deadline_ns,
                                          const Poll &poll, SocketAddress &peer) {
  for (int64_t retry_ns = kFirstRetryNs;; retry_ns = std::min(2 * retry_ns, kLongestRetryNs)) {
    Status status = TPFSDP_ERR_IO;
    std::string why;
    for (const SocketAddress &address : resolve(endpoint, why)) {
      Attempt attempt = try_connect(address, token, std::min(deadline_ns, after(kAttemptNs)), poll);
      if (attempt.connection) {
        peer = address;
        return std::move(attempt.connection);
      }
      if (!may_succeed_later(status)) continue;  // a refusal tells more than silence at another address
      status = attempt.status;
      why = std::move(attempt.why);
    }
    if (!may_succeed_later(status)) fail(status, "the store at ", endpoint.text(), ": ", why);
    wait_for(-1, 0, std::min(deadline_ns, after(retry_ns)), poll);
    if (monotonic_ns() >= deadline_ns)
      fail(TPFSDP_ERR_TIMEOUT, "no store at ", endpoint.text(), " in time: ", why,
           "; is rank 0 running there, and may this machine reach that port?");
  }
}

}  // namespace tpfsdp
