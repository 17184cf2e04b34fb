// SPDX-License-Identifier: Apache-2.0
// A child of fork: old handles are told apart and releasing them does nothing; new ones work.
#include "base/handle_table.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace tpfsdp {
namespace {

class Plain final : public Object {
 public:
  explicit Plain(int *gone = nullptr) : gone_(gone) {}
  ~Plain() override {
    if (gone_) ++*gone_;
  }
  Kind kind() const override { return Kind::kContext; }

 private:
  int *gone_;
};

// Runs `check` in a child; it returns the number of the step that was wrong, 0 if none.
template <class Check>
int in_child(Check &&check) {
  const pid_t child = fork();
  if (child == 0) _exit(check());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(Fork, OldHandlesAreRefusedAndNewOnesWork) {
  int gone = 0;
  const Ref<Plain> kept = make<Plain>(&gone);
  void *old = HandleTable::expose(kept.get(), true);
  EXPECT_FALSE(HandleTable::is_from_before_fork(old));
  const int wrong = in_child([&] {
    if (HandleTable::find(old, Kind::kContext)) return 1;
    if (!HandleTable::is_from_before_fork(old)) return 2;
    HandleTable::release(old);
    if (gone != 0 || HandleTable::retain(old)) return 3;
    int new_gone = 0;
    void *fresh = HandleTable::expose(make<Plain>(&new_gone).get(), true);
    if (!HandleTable::find(fresh, Kind::kContext) || fresh == old) return 4;
    if (HandleTable::is_from_before_fork(fresh) || !HandleTable::is_from_before_fork(old)) return 5;
    if (HandleTable::find(old, Kind::kContext)) return 6;
    if (HandleTable::live_count() != 1) return 7;
    HandleTable::release(old);
    HandleTable::release(fresh);
    if (new_gone != 1 || gone != 0 || HandleTable::live_count() != 0) return 8;
    try {
      HandleTable::expose(kept.get(), false);
      return 9;
    } catch (const Failure &failure) {
      if (failure.status() != TPFSDP_ERR_FORKED) return 10;
    }
    // A grandchild tells both generations apart.
    fresh = HandleTable::expose(make<Plain>().get(), true);
    return in_child([&] {
      if (HandleTable::find(fresh, Kind::kContext) || !HandleTable::is_from_before_fork(fresh)) return 11;
      return HandleTable::is_from_before_fork(old) ? 0 : 12;
    });
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(HandleTable::find(old, Kind::kContext), kept.get()) << "the parent is as before";
  HandleTable::release(old);
}

TEST(Fork, AnObjectFromBeforeMayEndInTheChild) {
  Ref<Plain> kept = make<Plain>();
  void *old = HandleTable::expose(kept.get(), false);
  const int64_t living = HandleTable::live_count();
  const int wrong = in_child([&] {
    void *fresh = HandleTable::expose(make<Plain>().get(), true);
    kept = nullptr;
    return HandleTable::find(fresh, Kind::kContext) && HandleTable::live_count() == 1 ? 0 : 1;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(HandleTable::live_count(), living);
  EXPECT_EQ(HandleTable::find(old, Kind::kContext), kept.get());
}

TEST(Fork, GatesWorkInTheChild) {
  Gate::give_back(Gate::create());
  const int wrong = in_child([] {
    Gate *gate = Gate::create();
    if (!gate->try_enter()) return 1;
    gate->leave();
    Gate::give_back(gate);
    return 0;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tpfsdp
