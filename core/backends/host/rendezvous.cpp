// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "frame.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

/// A store may still hold what an earlier job left; a rank 0 that is on its way will overwrite it.
constexpr int64_t STALE_NS = 2'000'000'000;
/// Rank 0 knows which rank is missing, and tells it at its own deadline: the others wait for that a little longer.
constexpr int64_t VERDICT_NS = 500'000'000;

std::string key_of(const Meeting &meeting) { return std::string(meeting.options.name) + "/shm"; }

/// "rank 1 of comm 'world'".
std::string who(const Meeting &meeting, int32_t rank) {
  return "rank " + std::to_string(rank) + " of comm '" + meeting.options.name + "'";
}

bool same_secret(const uint8_t (&a)[16], const uint8_t (&b)[16]) {
  uint8_t differs = 0;
  for (size_t i = 0; i < sizeof a; ++i) differs = static_cast<uint8_t>(differs | (a[i] ^ b[i]));
  return differs == 0;
}

Outcome no_descriptors(const Meeting &meeting) {
  return Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY,
                        who(meeting, meeting.options.rank) + " has no descriptors left to meet its " +
                            std::to_string(meeting.options.world_size) + " ranks; raise ulimit -n");
}

/// Only processes of this user are let in.
bool is_own_user(const Descriptor &socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/// Somebody who came to rank 0.
struct Guest {
  Descriptor socket;
  int32_t rank = -1;     ///< until its hello says which
  bool is_ours = false;  ///< it knows the secret, so that it is told what goes wrong
};

class Host {
 public:
  Host(const Meeting &meeting, const SharedFile &pages, const SharedFile &own, std::vector<Met> *met)
      : meeting_(meeting), world_size_(meeting.options.world_size), pages_(pages), own_(own), met_(*met) {
    met_.resize(static_cast<size_t>(world_size_));
  }

  Outcome run() {
    const Address address = draw_address();
    std::memcpy(secret_, address.secret, sizeof secret_);
    Outcome end = listen_at(address, &listener_);
    if (!end.ok()) return end;
    const tpfsdp_status status =
        meeting_.services.store_set(meeting_.call, key_of(meeting_).c_str(), &address, sizeof address);
    if (status < 0) return Outcome::error(status, "");  // the store has said why
    while (end.ok() && missing_ > 0) end = take_in();
    if (end.ok()) end = send_all();
    if (!end.ok()) refuse_all(end);
    return end;
  }

 private:
  Outcome take_in() {
    std::vector<int> descriptors{listener_.get()};
    for (const Guest &guest : guests_) descriptors.push_back(guest.socket.get());
    Outcome end = wait_readable(meeting_, descriptors);
    if (end.status == TPFSDP_ERR_TIMEOUT) return too_late();
    if (!end.ok()) return end;
    for (;;) {
      Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && (errno == EMFILE || errno == ENFILE)) return no_descriptors(meeting_);
      if (!socket) break;
      if (!is_own_user(socket)) continue;
      guests_.push_back({std::move(socket)});
    }
    for (size_t i = 0; end.ok() && i < guests_.size();) {
      bool stays = true;
      end = hear(guests_[i], &stays);
      if (stays)
        ++i;
      else
        guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return end;
  }

  /// A stranger is dropped without an answer; a rank that is in error ends the meeting.
  Outcome hear(Guest &guest, bool *out_stays) {
    Hello hello{};
    std::vector<Descriptor> files;
    const int heard = receive_frame(guest.socket, &hello, sizeof hello, &files);
    if (heard == 0) return {};
    if (guest.rank >= 0)
      return Outcome::error(TPFSDP_ERR_PEER_LOST, guest.rank, 0,
                            who(meeting_, guest.rank) + " ended while the ranks met, with " + ranks_text(missing()) +
                                " still missing; restart the group");
    if (heard == -2) return no_descriptors(meeting_);
    guest.is_ours = heard == 1 && files.size() == 1 && hello.magic == FRAME_MAGIC && same_secret(hello.secret, secret_);
    *out_stays = guest.is_ours;
    if (!guest.is_ours) return {};
    if (hello.version != FRAME_VERSION)
      return Outcome::error(TPFSDP_ERR_ABI, "the ranks of comm '" + std::string(meeting_.options.name) +
                                                "' run different versions of this library");
    if (hello.world_size != world_size_)
      return Outcome::error(TPFSDP_ERR_MISMATCH, hello.rank, 0,
                            "comm '" + std::string(meeting_.options.name) + "': rank 0 says world size " +
                                std::to_string(world_size_) + ", rank " + std::to_string(hello.rank) + " says " +
                                std::to_string(hello.world_size));
    if (hello.rank <= 0 || hello.rank >= world_size_ || met_[static_cast<size_t>(hello.rank)].file)
      return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, hello.rank, 0,
                            "two processes say that they are " + who(meeting_, hello.rank) + " (one is process " +
                                std::to_string(hello.pid) + "); give each its own rank");
    met_[static_cast<size_t>(hello.rank)] = {SharedFile(std::move(files.front())), hello.pid, hello.key};
    if (!met_[static_cast<size_t>(hello.rank)].file.is_sealed())
      return Outcome::error(TPFSDP_ERR_BACKEND, hello.rank, 0,
                            who(meeting_, hello.rank) + " came with a file that can shrink; restart the group");
    guest.rank = hello.rank;
    --missing_;
    return {};
  }

  std::vector<int32_t> missing() const {
    std::vector<int32_t> ranks;
    for (int32_t rank = 1; rank < world_size_; ++rank)
      if (!met_[static_cast<size_t>(rank)].file) ranks.push_back(rank);
    return ranks;
  }

  Outcome too_late() const {
    const std::vector<int32_t> ranks = missing();
    return Outcome::error(TPFSDP_ERR_TIMEOUT, ranks.empty() ? -1 : ranks.front(), 0,
                          "after " + std::to_string(meeting_.options.join_timeout_ms) + " ms in joining comm '" +
                              meeting_.options.name + "' still missing: " + ranks_text(ranks) +
                              "; start every rank, then restart the group");
  }

  /// To every guest the pages and everybody's file but its own.
  Outcome send_all() {
    for (const Guest &guest : guests_) {
      if (guest.rank < 0) continue;
      Outcome end = send_to(guest);
      if (!end.ok()) return end;
    }
    return {};
  }

  Outcome send_to(const Guest &guest) {
    Answer answer{};
    answer.magic = FRAME_MAGIC;
    std::vector<int> files;
    const auto flush = [&]() -> Outcome {
      for (;;) {
        const int sent = send_frame(guest.socket, &answer, sizeof answer, files);
        if (sent < 0)
          return Outcome::error(TPFSDP_ERR_PEER_LOST, guest.rank, 0,
                                who(meeting_, guest.rank) + " ended while the ranks met; restart the group");
        if (sent > 0) break;
        Outcome end = wait_a_moment(meeting_);
        if (end.status == TPFSDP_ERR_TIMEOUT) return too_late();
        if (!end.ok()) return end;
      }
      answer.count = 0;
      files.clear();
      return {};
    };
    for (int32_t rank = -1; rank < world_size_; ++rank) {
      if (rank == guest.rank) continue;
      Answer::Entry &entry = answer.entries[answer.count++];
      entry = {rank, static_cast<int32_t>(getpid()), own_process_key()};
      if (rank > 0) entry = {rank, met_[static_cast<size_t>(rank)].pid, met_[static_cast<size_t>(rank)].key};
      files.push_back(rank < 0 ? pages_.get() : rank == 0 ? own_.get() : met_[static_cast<size_t>(rank)].file.get());
      if (files.size() < FRAME_FILES && rank != world_size_ - 1) continue;
      Outcome end = flush();
      if (!end.ok()) return end;
    }
    return files.empty() ? Outcome{} : flush();
  }

  void refuse_all(const Outcome &end) {
    Answer answer{};
    answer.magic = FRAME_MAGIC;
    answer.status = end.status;
    answer.at_fault = end.rank;
    std::strncpy(answer.text, end.text.c_str(), sizeof answer.text - 1);
    for (const Guest &guest : guests_)
      if (guest.is_ours) send_frame(guest.socket, &answer, sizeof answer, {});
  }

  const Meeting &meeting_;
  const int32_t world_size_;
  const SharedFile &pages_;
  const SharedFile &own_;
  std::vector<Met> &met_;
  int32_t missing_ = world_size_ - 1;
  uint8_t secret_[16]{};
  Descriptor listener_;
  std::vector<Guest> guests_;
};

Outcome no_rank_0(const Meeting &meeting, tpfsdp_status status) {
  return Outcome::error(status, 0, 0,
                        who(meeting, meeting.options.rank) + " did not find rank 0 within " +
                            std::to_string(meeting.options.join_timeout_ms) +
                            " ms; start every rank on this machine, in one network namespace, or restart the group");
}

/// What parts the two for ever, if the address is of this job.
std::string apart(const Meeting &meeting, const Address &address, const Address &own) {
  const std::string mine = who(meeting, meeting.options.rank);
  if (std::strncmp(address.machine, own.machine, sizeof own.machine) != 0)
    return mine + " runs on another machine (boot " + own.machine + ") than rank 0 (boot " +
           std::string(address.machine, strnlen(address.machine, sizeof address.machine)) +
           "): shm joins processes of one machine, the mpi backend those of several";
  if (address.user != own.user)
    return mine + " runs as user " + std::to_string(own.user) + ", rank 0 as user " + std::to_string(address.user) +
           ": shm joins processes of one user, the mpi backend does without";
  return {};
}

/// Finds rank 0 and says hello to it.
Outcome reach(const Meeting &meeting, const SharedFile &own, Descriptor *out_socket) {
  const Address self = draw_address();
  const std::string key = key_of(meeting);
  for (;;) {
    Address address{};
    const tpfsdp_status status =
        meeting.services.store_get(meeting.call, key.c_str(), &address, sizeof address, meeting.deadline_ns);
    if (status == TPFSDP_ERR_TIMEOUT) return no_rank_0(meeting, status);
    if (status == TPFSDP_ERR_CANCELLED) return interrupted(meeting);
    if (status < 0) return Outcome::error(status, "");  // the store has said why
    const bool is_ours = address.magic == FRAME_MAGIC && address.version == FRAME_VERSION;
    const std::string why =
        is_ours ? apart(meeting, address, self) : "its ranks run different versions of this library";
    if (!why.empty() && meeting.services.clock_ns() - meeting.began_ns > STALE_NS)
      return Outcome::error(is_ours ? TPFSDP_ERR_UNSUPPORTED : TPFSDP_ERR_ABI, why);
    Outcome end = why.empty() ? connect_to(address, out_socket) : Outcome::pending();
    // The name of a rank 0 that has died is free for everybody.
    if (end.ok() && !is_own_user(*out_socket)) end = Outcome::pending();
    if (end.ok()) {
      Hello hello{
          FRAME_MAGIC, FRAME_VERSION, meeting.options.rank, meeting.options.world_size, getpid(), own_process_key(),
          {}};
      std::memcpy(hello.secret, address.secret, sizeof hello.secret);
      if (send_frame(*out_socket, &hello, sizeof hello, {own.get()}) == 1) return {};
      end = Outcome::pending();
    }
    if (end.failed()) return end;
    end = wait_a_moment(meeting);
    if (end.status == TPFSDP_ERR_TIMEOUT) return no_rank_0(meeting, TPFSDP_ERR_TIMEOUT);
    if (!end.ok()) return end;
  }
}

/// The files of one answer. False: it is not as rank 0 sends it.
bool take(const Answer &answer, std::vector<Descriptor> &files, SharedFile *pages, std::vector<Met> *met) {
  if (answer.magic != FRAME_MAGIC || answer.count < 0 || static_cast<size_t>(answer.count) != files.size())
    return false;
  for (size_t i = 0; i < files.size(); ++i) {
    const Answer::Entry &entry = answer.entries[i];
    if (entry.rank < -1 || entry.rank >= static_cast<int32_t>(met->size())) return false;
    if (entry.rank < 0)
      *pages = SharedFile(std::move(files[i]));
    else
      (*met)[static_cast<size_t>(entry.rank)] = {SharedFile(std::move(files[i])), entry.pid, entry.key};
    if (!(entry.rank < 0 ? *pages : (*met)[static_cast<size_t>(entry.rank)].file).is_sealed()) return false;
  }
  return true;
}

}  // namespace

Outcome gather_ranks(const Meeting &meeting, const SharedFile &pages, const SharedFile &own, std::vector<Met> *out) {
  return Host(meeting, pages, own, out).run();
}

Outcome join_ranks(const Meeting &meeting, const SharedFile &own, SharedFile *pages, std::vector<Met> *out) {
  out->resize(static_cast<size_t>(meeting.options.world_size));
  Descriptor socket;
  Outcome end = reach(meeting, own, &socket);
  if (!end.ok()) return end;
  Meeting patient = meeting;
  if (meeting.deadline_ns < std::numeric_limits<int64_t>::max() - VERDICT_NS) patient.deadline_ns += VERDICT_NS;
  for (int32_t awaited = meeting.options.world_size; awaited > 0;) {
    Answer answer{};
    std::vector<Descriptor> files;
    const int heard = receive_frame(socket, &answer, sizeof answer, &files);
    if (heard == -2) return no_descriptors(meeting);
    if (heard == 1 && answer.status < 0) {
      answer.text[sizeof answer.text - 1] = '\0';
      return Outcome::error(answer.status, answer.at_fault, 0, answer.text);
    }
    if (heard < 0 || (heard == 1 && !take(answer, files, pages, out)))
      return Outcome::error(TPFSDP_ERR_PEER_LOST, 0, 0,
                            "rank 0 of comm '" + std::string(meeting.options.name) +
                                "' ended, or let nobody in, while the ranks met; restart the group");
    if (heard == 1) {
      awaited -= answer.count;
      continue;
    }
    end = wait_readable(patient, {socket.get()});
    if (end.status == TPFSDP_ERR_TIMEOUT)
      return Outcome::error(TPFSDP_ERR_TIMEOUT, who(meeting, meeting.options.rank) + " met rank 0, but after " +
                                                    std::to_string(meeting.options.join_timeout_ms) +
                                                    " ms not all others; start every rank, then restart the group");
    if (!end.ok()) return end;
  }
  return {};
}

}  // namespace tpfsdp::host
