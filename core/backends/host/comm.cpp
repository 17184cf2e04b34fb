// SPDX-License-Identifier: Apache-2.0
#include "comm.hpp"

#include <sched.h>

#include <cstring>
#include <limits>
#include <utility>

#include "withdrawal.hpp"

namespace tpfsdp::host {

namespace {

int32_t cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Outcome check(const tpfsdp_backend_comm_options &options) {
  if (options.world_size < 1 || options.world_size > MAX_RANKS || options.rank < 0 ||
      options.rank >= options.world_size)
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "rank " + std::to_string(options.rank) + " of " +
                                                           std::to_string(options.world_size) + " is no rank");
  if (options.name == nullptr) return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "a comm needs a name");
  return {};
}

/// The pages must be those of this comm.
Outcome check(const Segment &segment, const tpfsdp_backend_comm_options &options) {
  const Layout layout(segment.pages(), options.world_size);
  const FrontPage &front = layout.front();
  if (front.magic != LAYOUT_MAGIC || front.version != LAYOUT_VERSION || front.records != RECORDS)
    return Outcome::error(
        TPFSDP_ERR_ABI, std::string("the ranks of comm '") + options.name + "' run different versions of this library");
  if (front.world_size != static_cast<uint32_t>(options.world_size))
    return Outcome::error(TPFSDP_ERR_MISMATCH, std::string("comm '") + options.name + "': rank 0 says world size " +
                                                   std::to_string(front.world_size) + ", rank " +
                                                   std::to_string(options.rank) + " says " +
                                                   std::to_string(options.world_size));
  return {};
}

}  // namespace

Comm::Comm(const tpfsdp_backend_services &lent, const Provider &how, std::shared_ptr<Segment> shared,
           const tpfsdp_backend_comm_options &options, Scheduler *scheduler)
    : services(lent),
      provider(how),
      segment(std::move(shared)),
      layout(segment->pages(), options.world_size),
      rank(options.rank),
      world_size(options.world_size),
      arrival_timeout_ms(options.arrival_timeout_ms),
      progress_timeout_ms(options.progress_timeout_ms),
      join_timeout_ms(options.join_timeout_ms),
      more_ranks_than_cores(options.world_size > cores()),
      name(options.name),
      words(&layout.front().bell, &layout.front().sleepers, how.private_futex(), options.rank, scheduler),
      inputs(static_cast<size_t>(options.world_size)),
      alarm(new Alarm{layout, rank, world_size, name, words}) {}

Outcome create(const tpfsdp_backend_services &services, const Provider &provider, tpfsdp_backend_call *call,
               const tpfsdp_backend_comm_options &options, Scheduler *scheduler, Comm **out_comm) {
  Outcome end = check(options);
  if (!end.ok()) return end;
  const int64_t now = services.clock_ns();
  const int64_t deadline = options.join_timeout_ms < 0 ? std::numeric_limits<int64_t>::max()
                                                       : now + int64_t{options.join_timeout_ms} * 1'000'000;
  const Meeting meeting{services, call, options, now, deadline};
  std::shared_ptr<Segment> segment;
  end = provider.meet(meeting, &segment);
  if (end.ok()) end = check(*segment, options);
  if (!end.ok()) {
    if (segment) provider.met(meeting, *segment);
    return end;
  }

  auto comm = std::make_unique<Comm>(services, provider, segment, options, scheduler);
  // Two threads that say they are the same rank: the second finds the place taken, and leaves it as it is.
  if (!comm->words.claim(comm->lane().life, static_cast<uint32_t>(Life::ALIVE), Point::LIFE)) {
    provider.met(meeting, *segment);
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "two ranks of comm '" + comm->name +
                                                           "' say that they are rank " + std::to_string(comm->rank) +
                                                           "; give each its own rank");
  }
  end = await(*comm, {Target::JOINED, 1, false, call, true});
  provider.met(meeting, *segment);
  if (!end.ok()) {
    destroy(comm.release());
    return end;
  }
  *out_comm = comm.release();
  return {};
}

void destroy(Comm *comm) noexcept {
  const std::unique_ptr<Comm> owned(comm);
  withdraw(*comm);
  abandon_making(*comm);
  const Life life = comm->closed ? Life::CLOSED : comm->lost.load() ? Life::GONE : Life::LEFT;
  comm->words.publish(comm->lane().life, static_cast<uint32_t>(life), Point::LIFE);
}

}  // namespace tpfsdp::host
