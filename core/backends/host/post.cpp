// SPDX-License-Identifier: Apache-2.0
#include "post.hpp"

#include <algorithm>
#include <cstring>

#include "invariant.hpp"

namespace tpfsdp::host {

namespace {

/// Copies at most TEXT_BYTES - 1 and cuts no character of UTF-8 in two.
void copy_text(char *target, const char *text) {
  size_t length = strnlen(text, TEXT_BYTES);
  if (length == TEXT_BYTES) {
    length = TEXT_BYTES - 1;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  }
  std::memcpy(target, text, length);
  target[length] = '\0';
}

Point point_of(Post post) { return post == Post::ERR ? Point::FAIL : post == Post::RESET ? Point::RESET : Point::POST; }

}  // namespace

uint64_t post(Comm &comm, const Record::Body &body, const std::byte *data, const char *text) {
#if defined(TPFSDP_MUTANT_ERROR_OVERWRITES_POST)
  const uint64_t sequence = body.post == Post::ERR && comm.posted > comm.done ? comm.posted : ++comm.posted;
#else
  const uint64_t sequence = ++comm.posted;
#endif
  Record &record = comm.layout.record(comm.rank, sequence);
  const uint64_t allowed = IN_FLIGHT + (body.post == Post::ERR ? 1 : body.post == Post::RESET ? 2 : 0);
  invariant(comm, sequence - comm.read <= allowed, "POST_BOUND");
  invariant(comm, record.seq.load(std::memory_order_relaxed) < sequence && sequence <= comm.read + RECORDS,
            "POST_DENSE");

  invariant(comm, body.post != Post::ERR || comm.failed_at == 0 || comm.failed_at <= comm.read, "NO_ERROR_TWICE");

  Operation &operation = comm.operation(sequence);
  operation.post = body.post;
  operation.phase = body.phase;
  if (body.post != Post::OP) {
    operation.op = tpfsdp_backend_op{};
    operation.common.reset();
  }
  operation.exposed_upto = sequence > 1 ? comm.operation(sequence - 1).exposed_upto : 0;
  operation.ended = 0;

  record.body = body;
  if (data != nullptr) std::memcpy(record.data, data, INLINE_BYTES);
  if (text != nullptr) copy_text(comm.layout.texts(comm.rank).of_record[sequence % RECORDS], text);
  comm.words.publish(record.seq, sequence, point_of(body.post));
  return sequence;
}

void catch_up(Comm &comm) {
  while (comm.read < comm.done) {
    for (int32_t peer = 0; peer < comm.world_size; ++peer)
      if (comm.words.see(comm.layout.record(peer, comm.read + 1).seq, Look::ACQUIRE, comm.read + 1) < comm.read + 1)
        return;
    ++comm.read;
  }
}

bool last_post_unread(Comm &comm, Post post) {
  if (comm.posted == 0 || comm.operation(comm.posted).post != post) return false;
  catch_up(comm);
  return comm.read < comm.posted;
}

uint64_t last_posted(const Comm &comm, int32_t rank) {
  uint64_t last = 0;
  for (const Record &record : comm.layout.lane(rank).records)
    last = std::max(last, comm.words.see(record.seq, Look::ACQUIRE));
  return last;
}

}  // namespace tpfsdp::host
