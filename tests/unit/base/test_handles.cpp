// SPDX-License-Identifier: Apache-2.0
// What a handle answers when it is good, and that every other value is refused without harm.
#include "base/handle_table.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace tpfsdp {
namespace {

class Thing final : public Object {
 public:
  explicit Thing(int *gone = nullptr, Gate *gate = nullptr, Kind kind = Kind::kTensor)
      : gone_(gone), gate_(gate), kind_(kind) {}
  ~Thing() override {
    if (gone_) ++*gone_;
  }
  Kind kind() const override { return kind_; }
  Gate *gate() const override { return gate_; }

 private:
  int *gone_;
  Gate *gate_;
  Kind kind_;
};

void *value(uint64_t bits) { return reinterpret_cast<void *>(bits); }
uint64_t bits(const void *handle) { return reinterpret_cast<uint64_t>(handle); }

TEST(Handle, IsOnePerObjectAndFindsIt) {
  const Ref<Thing> thing = make<Thing>();
  void *handle = HandleTable::expose(thing.get(), false);
  EXPECT_NE(handle, nullptr);
  EXPECT_EQ(HandleTable::expose(thing.get(), false), handle) << "canonical";
  EXPECT_EQ(HandleTable::find(handle, Kind::kTensor), thing.get());
  EXPECT_EQ(HandleTable::find_and_hold(handle, Kind::kTensor).get(), thing.get());
}

TEST(Handle, ValuesThatAreNoHandleAreRefused) {
  const Ref<Thing> thing = make<Thing>();
  const uint64_t good = bits(HandleTable::expose(thing.get(), false));
  int on_stack = 0;
  std::set<uint64_t> bad{0,
                         1,
                         UINT64_MAX,
                         bits(&on_stack),
                         good ^ 1,
                         good ^ (1ull << 24),
                         good ^ (1ull << 44),
                         good ^ (1ull << 58),
                         good ^ (1ull << 23),
                         good & 0xffffffff};
  for (int bit = 0; bit < 64; ++bit) bad.insert(good ^ (1ull << bit));
  bad.erase(good);
  for (const uint64_t one : bad) {
    EXPECT_EQ(HandleTable::find(value(one), Kind::kTensor), nullptr) << std::hex << one;
    EXPECT_FALSE(HandleTable::find_and_hold(value(one), Kind::kTensor)) << std::hex << one;
    EXPECT_EQ(HandleTable::find_gate(value(one), Kind::kTensor), nullptr) << std::hex << one;
    EXPECT_EQ(HandleTable::retain(value(one)), nullptr) << std::hex << one;
    HandleTable::release(value(one));
  }
  EXPECT_EQ(HandleTable::find(value(good), Kind::kTensor), thing.get()) << "unharmed";
}

TEST(Handle, OfAnotherKindIsRefused) {
  const Ref<Thing> thing = make<Thing>(nullptr, nullptr, Kind::kMesh);
  void *handle = HandleTable::expose(thing.get(), false);
  EXPECT_EQ(HandleTable::find(handle, Kind::kGroup), nullptr);
  EXPECT_FALSE(HandleTable::find_and_hold(handle, Kind::kTensor));
  EXPECT_EQ(HandleTable::find(handle, Kind::kMesh), thing.get());
}

TEST(Handle, IsStaleAfterItsObject) {
  int gone = 0;
  void *handle = HandleTable::expose(make<Thing>(&gone).get(), true);
  EXPECT_EQ(gone, 0) << "the handle holds it";
  const int64_t living = HandleTable::live_count();
  HandleTable::release(handle);
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(HandleTable::live_count(), living - 1);
  EXPECT_EQ(HandleTable::find(handle, Kind::kTensor), nullptr);
  HandleTable::release(handle);  // once more: nothing
  EXPECT_EQ(HandleTable::retain(handle), nullptr);
  EXPECT_EQ(gone, 1);
}

TEST(Handle, ANewObjectInTheSameSlotHasAnotherValue) {
  std::set<uint64_t> seen;
  std::set<uint64_t> slots;
  for (int i = 0; i < 5000; ++i) {
    void *handle = HandleTable::expose(make<Thing>().get(), true);
    EXPECT_TRUE(seen.insert(bits(handle)).second) << "value used twice";
    slots.insert(bits(handle) & 0xffffff);
    HandleTable::release(handle);
  }
  EXPECT_LT(slots.size(), 5000u) << "slots are used again, generations tell";
  int found = 0;
  for (const uint64_t one : seen) found += HandleTable::find(value(one), Kind::kTensor) != nullptr;
  EXPECT_EQ(found, 0);
}

TEST(Handle, ReleasedMoreOftenThanOwnedTakesNothingFromTheLibrary) {
  int gone = 0;
  {
    const Ref<Thing> kept = make<Thing>(&gone);
    void *handle = HandleTable::expose(kept.get(), true);
    for (int i = 0; i < 5; ++i) HandleTable::release(handle);
    EXPECT_EQ(gone, 0);
    EXPECT_EQ(HandleTable::find(handle, Kind::kTensor), kept.get()) << "the library's own reference holds";
    HandleTable::release(HandleTable::expose(kept.get(), false));  // a borrowed one, released by mistake
    EXPECT_EQ(gone, 0);
  }
  EXPECT_EQ(gone, 1);
}

TEST(Handle, RetainAddsAnOwner) {
  int gone = 0;
  void *handle = HandleTable::expose(make<Thing>(&gone).get(), true);
  EXPECT_EQ(HandleTable::retain(handle), handle);
  HandleTable::release(handle);
  EXPECT_EQ(gone, 0);
  HandleTable::release(handle);
  EXPECT_EQ(gone, 1);
}

TEST(Handle, ABorrowedOneCanBeRetained) {
  int gone = 0;
  Ref<Thing> kept = make<Thing>(&gone);
  void *handle = HandleTable::expose(kept.get(), false);
  EXPECT_EQ(HandleTable::retain(handle), handle);
  kept = nullptr;
  EXPECT_EQ(gone, 0);
  HandleTable::release(handle);
  EXPECT_EQ(gone, 1);
}

TEST(Handle, MoreThanOneChunkOfThem) {
  std::vector<void *> handles;
  std::vector<Ref<Thing>> things;
  for (int i = 0; i < 3000; ++i) {
    things.push_back(make<Thing>());
    handles.push_back(HandleTable::expose(things.back().get(), false));
  }
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(HandleTable::find(handles[i], Kind::kTensor), things[i].get());
}

TEST(Handle, ReleaseDuringACallIsDoneAtItsEnd) {
  int gone = 0;
  Gate *gate = Gate::create();
  void *handle = HandleTable::expose(make<Thing>(&gone, gate).get(), true);
  {
    const GateHold hold(gate);
    ASSERT_TRUE(hold.is_held());
    std::thread([handle] { HandleTable::release(handle); }).join();
    EXPECT_EQ(gone, 0);
    EXPECT_NE(HandleTable::find(handle, Kind::kTensor), nullptr) << "the call may still use it";
  }
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(HandleTable::find(handle, Kind::kTensor), nullptr);
  Gate::give_back(gate);
}

TEST(Handle, ReleaseWithNobodyInsideIsDoneAtOnce) {
  int gone = 0;
  Gate *gate = Gate::create();
  HandleTable::release(HandleTable::expose(make<Thing>(&gone, gate).get(), true));
  EXPECT_EQ(gone, 1);
  Gate::give_back(gate);
}

TEST(Handle, SeveralOwnersGivenBackDuringOneCall) {
  int gone = 0;
  Gate *gate = Gate::create();
  void *handle = HandleTable::expose(make<Thing>(&gone, gate).get(), true);
  {
    const GateHold hold(gate);
    // Last owner, new owner, last owner: two references are owed to one queue entry.
    HandleTable::release(handle);
    EXPECT_EQ(HandleTable::retain(handle), handle);
    HandleTable::release(handle);
    EXPECT_EQ(gone, 0);
  }
  EXPECT_EQ(gone, 1);
  Gate::give_back(gate);
}

}  // namespace
}  // namespace tpfsdp
