// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp_frame.hpp"

#include "comm/descriptor.hpp"

#include <sys/socket.h>

namespace tpfsdp {
namespace {

constexpr uint32_t kMagic = 0x53465054;  // "TPFS"

void put(std::string &out, uint64_t number, int bytes) {
  for (int byte = 0; byte < bytes; ++byte) out.push_back(static_cast<char>(number >> (8 * byte)));
}

uint64_t get(const unsigned char *from, int bytes) {
  uint64_t number = 0;
  for (int byte = 0; byte < bytes; ++byte) number |= uint64_t{from[byte]} << (8 * byte);
  return number;
}

// What a recv or a send that has moved nothing means.
Transfer outcome_of(ssize_t result) {
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Transfer::kPending;
  if (result == 0) errno = 0;
  return Transfer::kClosed;
}

}  // namespace

std::string encode_frame(const Frame &frame) {
  std::string bytes;
  bytes.reserve(kFrameHeadBytes + frame.key.size() + frame.value.size());
  put(bytes, kMagic, 4);
  put(bytes, static_cast<uint32_t>(frame.kind), 4);
  put(bytes, frame.key.size(), 4);
  put(bytes, frame.value.size(), 4);
  put(bytes, static_cast<uint64_t>(frame.number), 8);
  return bytes.append(frame.key).append(frame.value);
}

int32_t refusal_of(const Frame &frame) {
  const bool is_refusal = frame.kind == FrameKind::kError && frame.number < 0 && frame.number >= INT32_MIN;
  return is_refusal ? static_cast<int32_t>(frame.number) : 0;
}

void FrameReader::allow(size_t max_key_bytes, size_t max_value_bytes) {
  max_key_bytes_ = max_key_bytes;
  max_value_bytes_ = max_value_bytes;
}

// Once the head is there: judges it and makes room for the rest.
bool FrameReader::open_body() {
  key_bytes_ = get(&head_[8], 4);
  const uint64_t value_bytes = get(&head_[12], 4);
  if (get(&head_[0], 4) != kMagic || key_bytes_ > max_key_bytes_ || value_bytes > max_value_bytes_) return false;
  body_.resize(key_bytes_ + value_bytes);
  return true;
}

Transfer FrameReader::receive(int socket) {
  for (;;) {
    const bool is_head = received_ < kFrameHeadBytes;
    if (!is_head && received_ == kFrameHeadBytes + body_.size()) return Transfer::kDone;
    void *const to = is_head ? static_cast<void *>(&head_[received_]) : &body_[received_ - kFrameHeadBytes];
    const size_t missing = (is_head ? 0 : body_.size()) + kFrameHeadBytes - received_;
    const ssize_t got = uninterrupted([&] { return recv(socket, to, missing, 0); });
    if (got <= 0) return outcome_of(got);
    received_ += static_cast<size_t>(got);
    if (received_ == kFrameHeadBytes && !open_body()) return Transfer::kGarbage;
  }
}

Frame FrameReader::take() {
  Frame frame{static_cast<FrameKind>(get(&head_[4], 4)), static_cast<int64_t>(get(&head_[16], 8)),
              body_.substr(0, key_bytes_), body_.substr(key_bytes_)};
  received_ = 0;
  std::string().swap(body_);  // a connection at rest holds no megabyte
  return frame;
}

void FrameWriter::start(const Frame &frame) {
  bytes_ = encode_frame(frame);
  sent_ = 0;
}

Transfer FrameWriter::send(int socket) {
  while (is_pending()) {
    const ssize_t sent =
        uninterrupted([&] { return ::send(socket, bytes_.data() + sent_, bytes_.size() - sent_, MSG_NOSIGNAL); });
    if (sent <= 0) return outcome_of(sent);
    sent_ += static_cast<size_t>(sent);
  }
  std::string().swap(bytes_);
  sent_ = 0;
  return Transfer::kDone;
}

}  // namespace tpfsdp
