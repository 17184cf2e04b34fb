// SPDX-License-Identifier: Apache-2.0
// One rank's membership of a comm: the shared pages, and the numbers that only this rank knows.
#ifndef TPFSDP_BACKENDS_HOST_COMM_HPP
#define TPFSDP_BACKENDS_HOST_COMM_HPP

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tpfsdp/backend.h>

#include "alarm.hpp"
#include "layout.hpp"
#include "making.hpp"
#include "outcome.hpp"
#include "provider.hpp"
#include "staging.hpp"
#include "wait.hpp"
#include "words.hpp"

namespace tpfsdp::host {

/// What this rank posted under one sequence.
struct Operation {
  Post post = Post::NONE;
  uint8_t phase = 0;  ///< of an all-reduce of two sequences
  tpfsdp_backend_op op{};
  int64_t elements = 0;            ///< that move, of the kinds without pieces
  uint64_t exposed_upto = 0;       ///< last sequence up to this one that shows peers memory outside the record
  std::shared_ptr<Common> common;  ///< in whose memory it gathers, if it does
  uint64_t ended = 0;              ///< the sequence whose failure `outcome` is, 0: none
  Outcome outcome{};
};

struct Comm {
  Comm(const tpfsdp_backend_services &services, const Provider &provider, std::shared_ptr<Segment> segment,
       const tpfsdp_backend_comm_options &options, Scheduler *scheduler);

  const tpfsdp_backend_services services;
  const Provider &provider;
  const std::shared_ptr<Segment> segment;
  const Layout layout;
  const int32_t rank;
  const int32_t world_size;
  const int32_t arrival_timeout_ms;
  const int32_t progress_timeout_ms;
  const int32_t join_timeout_ms;
  const bool more_ranks_than_cores;
  const std::string name;
  Words words;

  uint64_t posted = 0;   ///< last sequence of this rank
  uint64_t done = 0;     ///< equals the lane's word
  uint64_t read = 0;     ///< last sequence of which all records were seen; bounds what may be posted
  uint64_t step = 0;     ///< equals the lane's word
  uint64_t decided = 0;  ///< sequence whose verdict the running call has found to be OK, 0: none
  uint32_t epoch = 0;
  uint64_t half_reduced = 0;  ///< first sequence of an all-reduce whose second is not posted yet, 0: none
  Staging staging;
  Making making;
  std::vector<std::shared_ptr<Common>> commons;  ///< also such as this rank has left
  uint64_t caller_exposed = 0;                   ///< last sequence that shows peers the caller's own memory
  uint64_t withdrawn = 0;                        ///< equals the lane's word
  uint64_t failed_at = 0;                        ///< sequence of this rank's last ERR
  Outcome failure{};                             ///< what it said
  bool closed = false;
  std::array<Operation, RECORDS> operations{};
  std::vector<const void *> inputs;          ///< of a reduction, one a rank
  std::array<Patience, TARGETS> patience{};  ///< of each target: two waits may be asked for in turn

  const std::shared_ptr<Alarm> alarm;
  std::atomic<bool> lost{false};  ///< this rank itself was declared lost

  Operation &operation(uint64_t sequence) { return operations[sequence % RECORDS]; }
  const Operation &operation(uint64_t sequence) const { return operations[sequence % RECORDS]; }
  Lane &lane() const { return layout.lane(rank); }
};

/// Collective: the ranks meet, and none returns before all have.
Outcome create(const tpfsdp_backend_services &services, const Provider &provider, tpfsdp_backend_call *call,
               const tpfsdp_backend_comm_options &options, Scheduler *scheduler, Comm **out_comm);
/// Leaves, if it is not closed; waits only for peers that are in the middle of reading the caller's own memory.
void destroy(Comm *comm) noexcept;

}  // namespace tpfsdp::host

#endif
