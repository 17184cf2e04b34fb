// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_server.hpp"

#include "base/signals_blocked.hpp"
#include "comm/recorder.hpp"
#include "comm/store.hpp"

#include <algorithm>
#include <ctime>
#include <new>

#include <sys/eventfd.h>

namespace tpfsdp {
namespace {

constexpr size_t kFirstConnection = 2;  // in polled_
constexpr int kAcceptsAtOnce = 64;      // then the clients that are there are served
constexpr int64_t kPauseNs = 100'000'000;

// Its time does not tell how many bytes are right.
bool is_same_token(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

Descriptor make_wake_up() {
  Descriptor wake_up(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_up) fail(status_of_errno(errno), "the store has no descriptor for its thread: ", errno_text(errno));
  return wake_up;
}

// Sends what fits now; the rest when the socket takes more.
template <class Connection>
void flush(Connection &connection) {
  if (connection.out.send(connection.socket.get()) == Transfer::kClosed) connection.socket = {};
}

template <class Connection>
void reply(Connection &connection, const Frame &frame) {
  connection.awaited.reset();
  connection.deadline_ns = INT64_MAX;
  connection.out.start(frame);
  flush(connection);
}

Frame error_frame(Status status, std::string text) { return {FrameKind::kError, status, {}, std::move(text)}; }

}  // namespace

TcpServer::TcpServer(TcpServerOptions options)
    : options_(std::move(options)),
      listener_(listen_at(options_.endpoint)),
      endpoint_(endpoint_of(bound_address(listener_))),
      wake_up_(make_wake_up()) {
  polled_.reserve(kFirstConnection);
}

TcpServer::~TcpServer() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void TcpServer::start() {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "tpfsdp-store");
      run();
    });
  } catch (const std::system_error &error) {
    fail(TPFSDP_ERR_OUT_OF_MEMORY, "no thread for the store: ", error.what());
  }
}

void TcpServer::stop() noexcept {
  is_stopping_ = true;
  uninterrupted([this] { return eventfd_write(wake_up_.get(), 1); });
}

void TcpServer::run() noexcept {
  while (!is_stopping_) {
    const int wait_ms = watch(monotonic_ns());
    if (poll(polled_.data(), polled_.size(), wait_ms) < 0 && errno != EINTR) {
      // The kernel has no memory for it, or the host has lowered its limit on descriptors below what is open.
      const timespec pause{0, kPauseNs};
      nanosleep(&pause, nullptr);
    }
    const int64_t now_ns = monotonic_ns();
    for (size_t i = 0; i < connections_.size(); ++i)
      visit(*connections_[i], polled_[kFirstConnection + i].revents, now_ns);
    std::erase_if(connections_, [](const auto &connection) { return !connection->socket; });
    if (polled_[1].revents) accept_new(now_ns);
  }
}

// Lists what to wait for; the ms until something has waited long enough, -1: nothing will.
int TcpServer::watch(int64_t now_ns) noexcept {
  polled_.clear();  // has room for all: see admit
  polled_.push_back({wake_up_.get(), POLLIN, 0});
  const bool accepts = now_ns >= accept_again_ns_;
  polled_.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  int64_t first_ns = accepts ? INT64_MAX : accept_again_ns_;
  for (const auto &connection : connections_) {
    polled_.push_back({connection->socket.get(), connection->out.is_pending() ? short{POLLOUT} : short{POLLIN}, 0});
    first_ns = std::min(first_ns, connection->deadline_ns);
  }
  if (first_ns == INT64_MAX) return -1;
  constexpr int64_t kLongestNs = 3'600'000'000'000;
  return static_cast<int>((std::clamp<int64_t>(first_ns - now_ns, 0, kLongestNs) + 999'999) / 1'000'000);
}

void TcpServer::visit(Connection &connection, short events, int64_t now_ns) noexcept {
  try {
    if (connection.socket && events) serve(connection, now_ns);
    if (!connection.socket || now_ns < connection.deadline_ns) return;
    if (connection.awaited) {
      reply(connection, {FrameKind::kAbsent});
    } else {
      connection.socket = {};
    }
  } catch (const std::bad_alloc &) {
    connection.socket = {};
  }
}

void TcpServer::serve(Connection &connection, int64_t now_ns) {
  if (connection.out.is_pending()) return flush(connection);
  // A client sends nothing while it waits: it is gone, or no client.
  if (connection.awaited) {
    connection.socket = {};
    return;
  }
  switch (connection.in.receive(connection.socket.get())) {
    case Transfer::kPending:
      if (connection.in.has_begun() && connection.deadline_ns == INT64_MAX)
        connection.deadline_ns = now_ns + options_.frame_timeout_ns;
      return;
    case Transfer::kDone:
      if (connection.is_greeted) return answer(connection, connection.in.take(), now_ns);
      return greet(connection, connection.in.take());
    case Transfer::kClosed:
    case Transfer::kGarbage: connection.socket = {};
  }
}

void TcpServer::greet(Connection &connection, const Frame &hello) {
  if (hello.kind != FrameKind::kHello) {
    connection.socket = {};
  } else if (hello.number != kFrameVersion) {
    reply(connection, error_frame(TPFSDP_ERR_ABI,
                                  cat("it speaks version ", kFrameVersion, " of the format and this process version ",
                                      hello.number, "; use one version of the library on all ranks")));
    connection.socket = {};
  } else if (!is_same_token(hello.value, options_.token)) {
    reply(connection, error_frame(TPFSDP_ERR_INVALID_ARGUMENT,
                                  "the token of this process is not the one of the store's job; give all ranks of a "
                                  "job the same token, and each job a port of its own"));
    connection.socket = {};
  } else {
    connection.is_greeted = true;
    connection.in.allow(kMaxStoreKeyBytes, kMaxStoreValueBytes);
    reply(connection, {FrameKind::kWelcome, kFrameVersion});
  }
}

void TcpServer::answer(Connection &connection, Frame request, int64_t now_ns) {
  switch (request.kind) {
    case FrameKind::kSet:
      values_[request.key] = std::move(request.value);
      wake(request.key);  // before what can fail
      return reply(connection, {FrameKind::kDone});
    case FrameKind::kFind: return find(connection, std::move(request), now_ns);
    case FrameKind::kAdd: return add(connection, request);
    default: connection.socket = {};
  }
}

void TcpServer::find(Connection &connection, Frame request, int64_t now_ns) {
  if (const auto found = values_.find(request.key); found != values_.end())
    return reply(connection, {FrameKind::kFound, 0, {}, found->second});
  if (request.number <= 0) return reply(connection, {FrameKind::kAbsent});
  connection.deadline_ns = request.number < INT64_MAX - now_ns ? now_ns + request.number : INT64_MAX;
  connection.awaited = std::move(request.key);
}

void TcpServer::add(Connection &connection, const Frame &request) {
  int64_t &sum = sums_[request.key];
  int64_t after = 0;
  if (__builtin_add_overflow(sum, request.number, &after))
    return reply(connection, error_frame(TPFSDP_ERR_INVALID_ARGUMENT,
                                         cat("adding ", request.number, " to a sum leaves the range of int64")));
  sum = after;
  reply(connection, {FrameKind::kDone, sum});
}

// Answers all that wait for the key.
void TcpServer::wake(const std::string &key) noexcept {
  for (const auto &connection : connections_) {
    if (!connection->socket || connection->awaited != key) continue;
    try {
      reply(*connection, {FrameKind::kFound, 0, {}, values_.at(key)});
    } catch (const std::bad_alloc &) {
      connection->socket = {};
    }
  }
}

void TcpServer::accept_new(int64_t now_ns) noexcept {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (status_of_errno(errno) != TPFSDP_ERR_OUT_OF_MEMORY) return;
      if (drop_stranger()) continue;
      // Else poll would return at once, again and again, until somebody closes a descriptor.
      accept_again_ns_ = now_ns + kPauseNs;
      return;
    }
    try {
      admit(std::move(socket), now_ns);
    } catch (const std::bad_alloc &) {
      // The client that came is dropped.
    }
  }
}

// Who has not said hello yet makes room, the oldest first: strangers cannot keep clients out.
bool TcpServer::drop_stranger() noexcept {
  const auto stranger = std::find_if(connections_.begin(), connections_.end(),
                                     [](const auto &connection) { return !connection->is_greeted; });
  if (stranger == connections_.end()) return false;
  connections_.erase(stranger);
  return true;
}

void TcpServer::admit(Descriptor socket, int64_t now_ns) {
  if (connections_.size() >= options_.max_connections && !drop_stranger()) return;
  tune_connection(socket);
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->deadline_ns = now_ns + options_.frame_timeout_ns;
  polled_.reserve(kFirstConnection + connections_.size() + 1);
  connections_.push_back(std::move(connection));
}

}  // namespace tpfsdp
