// SPDX-License-Identifier: Apache-2.0
#include "strategies.hpp"

#include <algorithm>
#include <fstream>

namespace host_test {

namespace {

bool contains(const std::vector<int> &ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int after(const std::vector<int> &ready, int last) {
  const auto found = std::upper_bound(ready.begin(), ready.end(), last);
  return found == ready.end() ? ready.front() : *found;
}

}  // namespace

int Straight::next(const Fibers &, const std::vector<int> &ready, int last) {
  return contains(ready, last) ? last : after(ready, last);
}

int InTurn::next(const Fibers &, const std::vector<int> &ready, int last) { return after(ready, last); }

int DepthFirst::next(const Fibers &, const std::vector<int> &ready, int last) {
  const bool goes_on = contains(ready, last);
  if (depth_ == path_.size()) {
    Choice choice{{}, 0};
    choice.ways.push_back(goes_on ? last : ready.front());
    if (!goes_on || preempted_ < bound_)
      for (const int rank : ready)
        if (rank != choice.ways.front()) choice.ways.push_back(rank);
    path_.push_back(choice);
  }
  const Choice &choice = path_[depth_++];
  const int rank = choice.ways[choice.taken];
  if (goes_on && rank != last) ++preempted_;
  return rank;
}

bool DepthFirst::more() {
  depth_ = 0;
  preempted_ = 0;
  while (!path_.empty() && path_.back().taken + 1 == path_.back().ways.size()) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().taken;
  return true;
}

std::string DepthFirst::choices() const {
  std::string text;
  for (const Choice &choice : path_) text += std::to_string(choice.ways[choice.taken]);
  return text;
}

Pct::Pct(uint64_t seed, int ranks, int changes, int64_t length) : random_(seed) {
  for (int r = 0; r < ranks; ++r) priority_.push_back(r + 1);
  std::shuffle(priority_.begin(), priority_.end(), random_);
  for (int i = 0; i < changes; ++i) changes_.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(length)));
}

int Pct::next(const Fibers &, const std::vector<int> &ready, int last) {
  if (last >= 0 && std::find(changes_.begin(), changes_.end(), step_++) != changes_.end())
    priority_[static_cast<size_t>(last)] = --lowest_;
  return *std::max_element(ready.begin(), ready.end(), [&](int a, int b) {
    return priority_[static_cast<size_t>(a)] < priority_[static_cast<size_t>(b)];
  });
}

Schedule::Schedule(const std::string &name) {
  const std::string here = __FILE__;
  std::ifstream file(here.substr(0, here.rfind('/')) + "/../host/schedules/" + name + ".sched");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':'), hash = line.find('#');
    if (colon == std::string::npos || hash == std::string::npos || hash < colon) continue;
    lines_.push_back({std::stoi(line.substr(0, colon)), line.substr(colon + 1, hash - colon - 1),
                      std::stoull(line.substr(hash + 1))});
  }
}

int Schedule::next(const Fibers &fibers, const std::vector<int> &ready, int last) {
  while (cursor_ < lines_.size() && !strayed_) {
    const Line &line = lines_[cursor_];
    if (passing_) {
      passing_ = false;
      ++cursor_;
      continue;
    }
    if (!contains(ready, line.rank)) {
      strayed_ = true;
      break;
    }
    passing_ = fibers.points(line.rank) > 0 && name_of(fibers.point(line.rank)) == line.point &&
               fibers.value(line.rank) == line.value;
    return line.rank;
  }
  return straight_.next(fibers, ready, last);
}

std::string Schedule::where() const {
  if (lines_.empty()) return "the schedule is empty or was not found";
  if (cursor_ == lines_.size()) return "followed";
  return "stopped before line " + std::to_string(cursor_ + 1) + ": " + std::to_string(lines_[cursor_].rank) + ":" +
         lines_[cursor_].point + "#" + std::to_string(lines_[cursor_].value);
}

}  // namespace host_test
