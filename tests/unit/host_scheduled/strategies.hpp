// SPDX-License-Identifier: Apache-2.0
// Who runs next: straight on, all ways within a bound on preemptions, by random priorities (PCT), or as a file says.
#ifndef TPFSDP_TESTS_UNIT_HOST_SCHEDULED_STRATEGIES_HPP
#define TPFSDP_TESTS_UNIT_HOST_SCHEDULED_STRATEGIES_HPP

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fibers.hpp"

namespace host_test {

/// The last one while it can, then the next in turn.
class Straight final : public Strategy {
 public:
  int next(const Fibers &fibers, const std::vector<int> &ready, int last) override;
};

/// Another one at every point.
class InTurn final : public Strategy {
 public:
  int next(const Fibers &fibers, const std::vector<int> &ready, int last) override;
};

/// Depth first over all choices with replay. Construct once, call `more` between runs.
class DepthFirst final : public Strategy {
 public:
  explicit DepthFirst(int preemptions) : bound_(preemptions) {}
  int next(const Fibers &fibers, const std::vector<int> &ready, int last) override;
  /// Ends a run. False when all ways are gone.
  bool more();
  std::string choices() const;

 private:
  struct Choice {
    std::vector<int> ways;  ///< the first is no preemption
    size_t taken;
  };
  int bound_;
  int preempted_ = 0;
  size_t depth_ = 0;
  std::vector<Choice> path_;
};

/// Random priorities with a few points at which the running rank falls behind all others.
class Pct final : public Strategy {
 public:
  Pct(uint64_t seed, int ranks, int changes, int64_t length);
  int next(const Fibers &fibers, const std::vector<int> &ready, int last) override;

 private:
  std::mt19937_64 random_;
  std::vector<int64_t> priority_;
  std::vector<int64_t> changes_;
  int64_t step_ = 0;
  int64_t lowest_ = 0;
};

/// `rank:POINT#k` a line: that rank runs until it has passed that point. Afterwards straight on.
class Schedule final : public Strategy {
 public:
  /// tests/unit/host/schedules/NAME.sched
  explicit Schedule(const std::string &name);
  int next(const Fibers &fibers, const std::vector<int> &ready, int last) override;
  /// The whole file was followed.
  bool followed() const { return !lines_.empty() && cursor_ == lines_.size() && !strayed_; }
  std::string where() const;

 private:
  struct Line {
    int rank;
    std::string point;
    uint64_t value;
  };
  std::vector<Line> lines_;
  size_t cursor_ = 0;
  bool passing_ = false;
  bool strayed_ = false;
  Straight straight_;
};

}  // namespace host_test

#endif
