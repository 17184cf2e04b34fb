// SPDX-License-Identifier: Apache-2.0
// Handles and gates from many threads at once; run under the thread sanitizer too.
#include "base/handle_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace tpfsdp {
namespace {

constexpr int kThreads = 4;

class Counted final : public Object {
 public:
  explicit Counted(std::atomic<int> *gone, Gate *gate = nullptr) : gone_(gone), gate_(gate) {}
  ~Counted() override { gone_->fetch_add(1); }
  Kind kind() const override { return Kind::kUnit; }
  Gate *gate() const override { return gate_; }

 private:
  std::atomic<int> *gone_;
  Gate *gate_;
};

template <class Body>
void on_threads(Body &&body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ready.fetch_add(1);
      while (ready.load() < kThreads) std::this_thread::yield();
      body(i);
    });
  }
  for (auto &thread : threads) thread.join();
}

TEST(HandleThreads, OneObjectHasOneHandleWhoeverAsksFirst) {
  std::atomic<int> gone{0};
  for (int round = 0; round < 200; ++round) {
    const Ref<Counted> object = make<Counted>(&gone);
    void *handles[kThreads] = {};
    std::atomic<int> found{0};
    on_threads([&](int i) {
      handles[i] = HandleTable::expose(object.get(), true);
      found += HandleTable::find_and_hold(handles[i], Kind::kUnit).get() == object.get();
    });
    for (void *handle : handles) EXPECT_EQ(handle, handles[0]);
    EXPECT_EQ(found, kThreads) << "a handle is good as soon as somebody has it";
    for (void *handle : handles) HandleTable::release(handle);
  }
  EXPECT_EQ(gone, 200);
}

TEST(HandleThreads, ManyReleasesInAnyOrderEndEachObjectOnce) {
  constexpr int kObjects = 400;
  std::atomic<int> gone{0};
  const int64_t living = HandleTable::live_count();
  std::vector<void *> handles;
  for (int i = 0; i < kObjects; ++i) {
    handles.push_back(HandleTable::expose(make<Counted>(&gone).get(), true));
    for (int owner = 1; owner < kThreads; ++owner) HandleTable::retain(handles.back());
  }
  on_threads([&](int i) {
    std::vector<void *> mine = handles;
    std::mt19937 random(static_cast<unsigned>(i));
    std::shuffle(mine.begin(), mine.end(), random);
    for (void *handle : mine) HandleTable::release(handle);
  });
  EXPECT_EQ(gone, kObjects);
  EXPECT_EQ(HandleTable::live_count(), living);
}

TEST(HandleThreads, LookUpsRaceWithTheLastRelease) {
  std::atomic<int> gone{0};
  std::atomic<int> held{0};
  for (int round = 0; round < 500; ++round) {
    void *handle = HandleTable::expose(make<Counted>(&gone).get(), true);
    on_threads([&](int i) {
      if (i == 0) {
        HandleTable::release(handle);
      } else if (i == 1) {
        if (HandleTable::retain(handle)) HandleTable::release(handle);
      } else if (const Ref<Object> object = HandleTable::find_and_hold(handle, Kind::kUnit)) {
        held += object->kind() == Kind::kUnit;
      }
    });
    EXPECT_FALSE(HandleTable::find_and_hold(handle, Kind::kUnit));
  }
  EXPECT_EQ(gone, 500);
}

// Finalizers of other threads against a thread that is in and out of the rank all the time.
TEST(HandleThreads, DeferredReleasesAreDoneExactlyOnce) {
  constexpr int kObjects = 3000;
  std::atomic<int> gone{0};
  Gate *gate = Gate::create();
  std::vector<void *> handles;
  for (int i = 0; i < kObjects; ++i) handles.push_back(HandleTable::expose(make<Counted>(&gone, gate).get(), true));
  std::atomic<int> left{kThreads - 1};
  std::atomic<int> inside{0}, entered{0};
  on_threads([&](int i) {
    if (i == 0) {
      while (left.load() > 0) {
        const GateHold hold(gate);
        if (!hold.is_held()) continue;
        EXPECT_EQ(inside.fetch_add(1), 0);
        entered.fetch_add(1);
        inside.fetch_sub(1);
      }
      return;
    }
    for (size_t k = static_cast<size_t>(i) - 1; k < handles.size(); k += kThreads - 1) HandleTable::release(handles[k]);
    left.fetch_sub(1);
  });
  EXPECT_EQ(gone, kObjects) << "none is forgotten between the last drain and the gate's opening";
  Gate::give_back(gate);
}

// One object, owned and given back again and again by all threads: it must end once, after the last of them.
TEST(HandleThreads, OneObjectDeferredByManyThreads) {
  std::atomic<int> gone{0};
  for (int round = 0; round < 100; ++round) {
    Gate *gate = Gate::create();
    Ref<Counted> object = make<Counted>(&gone, gate);
    on_threads([&](int i) {
      for (int k = 0; k < 50; ++k) {
        void *handle = HandleTable::expose(object.get(), true);
        if (i == 0) {
          const GateHold hold(gate);
          HandleTable::release(handle);
        } else {
          HandleTable::release(handle);
        }
      }
    });
    EXPECT_EQ(gone, round);
    object = nullptr;
    EXPECT_EQ(gone, round + 1);
    Gate::give_back(gate);
  }
}

TEST(Gate, LetsOneThreadIn) {
  Gate *gate = Gate::create();
  EXPECT_TRUE(gate->try_enter());
  EXPECT_TRUE(gate->held_by_this_thread());
  EXPECT_FALSE(gate->try_enter()) << "not even the same thread twice";
  bool other_entered = true, other_holds = true;
  std::thread([&] {
    other_entered = gate->try_enter();
    other_holds = gate->held_by_this_thread();
  }).join();
  EXPECT_FALSE(other_entered);
  EXPECT_FALSE(other_holds);
  gate->leave();
  EXPECT_FALSE(gate->held_by_this_thread());
  EXPECT_TRUE(gate->try_enter());
  gate->leave();
  Gate::give_back(gate);
}

TEST(Gate, IsUsedAgainAndNeverGivenOutTwice) {
  std::vector<Gate *> gates;
  for (int i = 0; i < 10; ++i) gates.push_back(Gate::create());
  for (Gate *gate : gates) Gate::give_back(gate);
  std::vector<Gate *> taken[kThreads];
  on_threads([&](int i) {
    for (int k = 0; k < 20; ++k) taken[i].push_back(Gate::create());
  });
  std::vector<Gate *> all;
  for (const auto &part : taken) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  for (Gate *gate : gates) EXPECT_TRUE(std::binary_search(all.begin(), all.end(), gate)) << "given back, so used again";
  for (Gate *gate : all) Gate::give_back(gate);
}

}  // namespace
}  // namespace tpfsdp
