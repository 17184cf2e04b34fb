// SPDX-License-Identifier: Apache-2.0
// Ranks of a test on fibers: joined straight, then run under a strategy.
#ifndef TPFSDP_TESTS_UNIT_HOST_SCHEDULED_SCHEDULED_HPP
#define TPFSDP_TESTS_UNIT_HOST_SCHEDULED_SCHEDULED_HPP

#include <functional>
#include <memory>
#include <vector>

#include "../host/ranks.hpp"
#include "fibers.hpp"
#include "strategies.hpp"

namespace host_test {

class Scheduled {
 public:
  /// Every rank gets `comms` comms. Arrival times out after 2 s of virtual time.
  explicit Scheduled(int world, int comms = 1);
  ~Scheduled();

  void run(const std::function<void(Rank &)> &body, Strategy &strategy);
  /// Stops the rank at its n-th point; its scope guard says that it is gone.
  void kill_at(int rank, int64_t n);
  Rank &rank(int r, int comm = 0) { return *ranks_[static_cast<size_t>(comm)][static_cast<size_t>(r)]; }
  /// Of invariants, on any rank.
  uint64_t violations() const;
  /// What the first comm's word says.
  uint32_t sleepers() const;

  Fibers fibers;

 private:
  int world_;
  Store store_;
  std::vector<std::vector<std::unique_ptr<Rank>>> ranks_;
};

}  // namespace host_test

#endif
