// SPDX-License-Identifier: Apache-2.0
// The wire format of the TCP store. A frame is a head of 24 bytes, then a key and a value. The head, little-endian:
//   u32 magic, u32 kind, u32 bytes of the key, u32 bytes of the value, i64 number
// A client asks with one frame and gets one in answer; its first is a hello.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tpfsdp {

enum class FrameKind : uint32_t {
  kHello = 1,    // number: the version of the format; value: the token
  kSet = 2,      // key, value
  kFind = 3,     // key; number: ns to wait for it
  kAdd = 4,      // key; number: the amount
  kWelcome = 5,  // to a hello
  kDone = 6,     // to a set, or an add: number is the sum
  kFound = 7,    // value
  kAbsent = 8,   // the key did not come in time
  kError = 9,    // number: a status; value: its text
};

inline constexpr int64_t kFrameVersion = 1;
inline constexpr size_t kFrameHeadBytes = 24;

struct Frame {
  FrameKind kind = FrameKind::kDone;
  int64_t number = 0;
  std::string key = {};
  std::string value = {};
};

std::string encode_frame(const Frame &frame);
// The status that an error frame tells, which is negative; 0: it is none.
int32_t refusal_of(const Frame &frame);

enum class Transfer {
  kPending,  // the socket has or takes no more for now
  kDone,
  kClosed,  // the peer is gone; errno says why, 0: it has closed the connection
  kGarbage  // no frame, or one beyond the bounds
};

// Takes one frame after the other from a socket that does not block, never a byte of the next.
class FrameReader {
 public:
  FrameReader(size_t max_key_bytes, size_t max_value_bytes) { allow(max_key_bytes, max_value_bytes); }
  // The bounds of frames from now on: nothing is allocated for one beyond them.
  void allow(size_t max_key_bytes, size_t max_value_bytes);

  Transfer receive(int socket);
  Frame take();  // after kDone
  bool has_begun() const { return received_ > 0; }

 private:
  bool open_body();

  size_t max_key_bytes_ = 0, max_value_bytes_ = 0;
  size_t received_ = 0;
  std::array<unsigned char, kFrameHeadBytes> head_{};
  size_t key_bytes_ = 0;
  std::string body_;
};

class FrameWriter {
 public:
  void start(const Frame &frame);
  Transfer send(int socket);
  bool is_pending() const { return sent_ < bytes_.size(); }

 private:
  std::string bytes_;
  size_t sent_ = 0;
};

}  // namespace tpfsdp
