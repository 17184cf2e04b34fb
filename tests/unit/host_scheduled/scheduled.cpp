// SPDX-License-Identifier: Apache-2.0
#include "scheduled.hpp"

#include <gtest/gtest.h>

#include <string>

#include "backends/host/comm.hpp"

namespace host_test {

namespace host = tpfsdp::host;

namespace {

host::Comm &of(const Rank &rank) { return *reinterpret_cast<host::Comm *>(rank.comm); }

}  // namespace

Scheduled::Scheduled(int world, int comms) : fibers(world), world_(world) {
  hooks().clock_ns = [this] { return fibers.now_ns(); };
  for (int c = 0; c < comms; ++c) {
    ranks_.emplace_back();
    for (int r = 0; r < world; ++r) ranks_.back().push_back(std::make_unique<Rank>(r, world, &store_));
  }
  InTurn in_turn;
  run(
      [&](Rank &first) {
        for (int c = 0; c < comms; ++c) {
          Rank &each = rank(first.rank, c);
          each.call.yield = [this] { fibers.yield(); };
          const std::string name = c == 0 ? "world" : "comm" + std::to_string(c);
          const tpfsdp_backend_comm_options options{sizeof options, each.rank, each.world,  2000,
                                                    2000,           2000,      name.c_str()};
          host::Comm *comm = nullptr;
          const host::Outcome end =
              host::create(services(), host::threads_provider(), each.call.handle(), options, &fibers, &comm);
          EXPECT_TRUE(end.ok()) << end.text;
          each.comm = reinterpret_cast<tpfsdp_backend_comm *>(comm);
        }
      },
      in_turn);
}

Scheduled::~Scheduled() {
  ranks_.clear();
  hooks() = {};
}

void Scheduled::run(const std::function<void(Rank &)> &body, Strategy &strategy) {
  std::vector<std::function<void()>> bodies;
  for (int r = 0; r < world_; ++r) bodies.push_back([&body, this, r] { body(rank(r)); });
  fibers.run(bodies, strategy);
}

void Scheduled::kill_at(int r, int64_t n) {
  fibers.stop_at(r, n, [this, r] {
    for (const auto &comm : ranks_) {
      host::Comm &dead = of(*comm[static_cast<size_t>(r)]);
      dead.words.publish(dead.lane().life, static_cast<uint32_t>(host::Life::GONE), Point::LIFE);
    }
  });
}

uint32_t Scheduled::sleepers() const { return of(*ranks_[0][0]).layout.front().sleepers.load(); }

uint64_t Scheduled::violations() const {
  uint64_t sum = 0;
  for (const auto &comm : ranks_)
    for (const auto &rank : comm) sum += of(*rank).alarm->violations;
  return sum;
}

}  // namespace host_test
