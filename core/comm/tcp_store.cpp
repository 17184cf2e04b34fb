// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_store.hpp"

#include "comm/recorder.hpp"
#include "comm/tcp_connection.hpp"
#include "comm/tcp_server.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

namespace tpfsdp {
namespace {

// The server keeps the time of a find; a server that stands still is given this much more.
constexpr int64_t kGraceNs = 2'000'000'000;

void check_options(const TcpStoreOptions &options) {
  if (options.port < 0 || options.port > 65535 || (options.port == 0 && !options.is_server))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the port of the store is ", options.port, "; it is 1 to 65535",
         options.is_server ? ", or 0 for a free one" : "");
  if ((options.host.empty() && !options.is_server) || options.host.find('\0') != std::string::npos)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the host of the store ",
         options.host.empty() ? "is not given" : "has a zero byte in its name", "; name the machine of rank 0");
  if (options.token.size() < kMinTokenBytes || options.token.size() > kMaxTokenBytes)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "the token of the store has ", options.token.size(), " bytes; it needs ",
         kMinTokenBytes, " to ", kMaxTokenBytes, " that nobody can guess");
}

class TcpClient final : public TcpStore {
 public:
  explicit TcpClient(TcpStoreOptions options) : options_(std::move(options)) {
    Endpoint endpoint{options_.host, options_.port};
    if (options_.is_server) {
      TcpServerOptions served;
      served.endpoint = endpoint;
      served.token = options_.token;
      server_ = std::make_unique<TcpServer>(std::move(served));
      server_->start();
      endpoint = server_->endpoint();
    }
    address_ = endpoint.text();
    port_ = endpoint.port;
    idle_.push_back(connect_to(endpoint, options_.token, options_.deadline_ns, options_.poll, peer_));
  }

  const std::string &address() const override { return address_; }
  int32_t port() const override { return port_; }

  void set(const std::string &key, const std::string &value) override {
    check_store_entry(key.size(), value.size());
    expect(ask_now({FrameKind::kSet, 0, key, value}), FrameKind::kDone);
  }

  std::optional<std::string> find(const std::string &key, int64_t deadline_ns) override {
    check_store_entry(key.size(), 0);
    const int64_t now_ns = monotonic_ns();
    const int64_t end_ns = std::max(deadline_ns, now_ns);
    std::optional<Frame> answer =
        ask({FrameKind::kFind, end_ns - now_ns, key}, end_ns > INT64_MAX - kGraceNs ? INT64_MAX : end_ns + kGraceNs);
    if (!answer || answer->kind == FrameKind::kAbsent) return std::nullopt;
    return expect(std::move(answer), FrameKind::kFound).value;
  }

  int64_t add(const std::string &key, int64_t amount) override {
    check_store_entry(key.size(), 0);
    return expect(ask_now({FrameKind::kAdd, amount, key}), FrameKind::kDone).number;
  }

 private:
  std::optional<Frame> ask_now(const Frame &request) {
    std::optional<Frame> answer = ask(request, monotonic_ns() + options_.answer_ns);
    if (answer) return answer;
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_TIMEOUT;
    detail.rank = 0;
    detail.message = cat("the store at ", address_, " has not answered for ", options_.answer_ns / 1'000'000,
                         " ms: rank 0, whose process serves it, stands still; continue it, or restart the job");
    throw Failure(std::move(detail));
  }

  // The answer; nothing past the deadline.
  std::optional<Frame> ask(const Frame &request, int64_t deadline_ns) {
    std::unique_ptr<TcpConnection> connection = take_connection(deadline_ns);
    Frame answer;
    const Transfer end =
        connection ? connection->exchange(request, answer, deadline_ns, options_.poll) : Transfer::kPending;
    if (end == Transfer::kPending) return std::nullopt;
    if (end == Transfer::kClosed) lose(closed_text());
    if (end == Transfer::kGarbage) lose("it sent what is no answer");
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(connection));
    }
    if (const Status status = refusal_of(answer)) fail(status, "the store at ", address_, ": ", answer.value);
    return answer;
  }

  Frame expect(std::optional<Frame> answer, FrameKind kind) {
    if (!answer || answer->kind != kind) lose("it answered what was not asked");
    return *std::move(answer);
  }

  // One request at a time on each: a thread that waits holds up no other. None past the deadline.
  std::unique_ptr<TcpConnection> take_connection(int64_t deadline_ns) {
    {
      const std::lock_guard lock(mutex_);
      if (!lost_.empty()) fail_lost();
      if (!idle_.empty()) {
        auto connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    Attempt attempt = try_connect(peer_, options_.token, deadline_ns, options_.poll);
    if (attempt.status == TPFSDP_ERR_IO) lose(attempt.why);
    if (!attempt.connection && attempt.status != TPFSDP_ERR_TIMEOUT)
      fail(attempt.status, "the store at ", address_, ": ", attempt.why);
    return std::move(attempt.connection);
  }

  [[noreturn]] void lose(const std::string &why) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty())
      lost_ = cat("the store at ", address_, " is lost: ", why,
                  "; rank 0, whose process serves it, has ended or cannot be reached: restart the job");
    fail_lost();
  }

  [[noreturn]] void fail_lost() const {
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_PEER_LOST;
    detail.rank = 0;
    detail.message = lost_;
    throw Failure(std::move(detail));
  }

  const TcpStoreOptions options_;
  std::unique_ptr<TcpServer> server_;
  std::string address_;
  int32_t port_ = 0;
  SocketAddress peer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<TcpConnection>> idle_;
  std::string lost_;  // why every call fails from now on
};

}  // namespace

std::shared_ptr<TcpStore> open_tcp_store(TcpStoreOptions options) {
  check_options(options);
  return std::make_shared<TcpClient>(std::move(options));
}

}  // namespace tpfsdp
