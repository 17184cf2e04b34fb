// SPDX-License-Identifier: Apache-2.0
#include "base/handle_table.hpp"

#include "base/error.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <new>

namespace tpfsdp {
namespace {

// value = kind:6 | instance:14 | generation:20 | slot:24. Kind is never 0, so no value is null.
constexpr int kSlotBits = 24, kGenerationBits = 20, kInstanceBits = 14;
constexpr uint64_t kSlotMask = (1u << kSlotBits) - 1;
constexpr uint64_t kGenerationMask = (1u << kGenerationBits) - 1;
constexpr uint64_t kInstanceMask = (1u << kInstanceBits) - 1;
constexpr int kChunkBits = 10;
constexpr uint64_t kChunkSlots = 1u << kChunkBits;
constexpr uint64_t kChunks = 1u << (kSlotBits - kChunkBits);

uint64_t slot_of(uint64_t handle) { return handle & kSlotMask; }
uint64_t instance_of(uint64_t handle) { return (handle >> (kSlotBits + kGenerationBits)) & kInstanceMask; }
Kind kind_of(uint64_t handle) { return static_cast<Kind>(handle >> (kSlotBits + kGenerationBits + kInstanceBits)); }

struct Slot {
  std::atomic<uint64_t> handle{0};  // 0: free
  std::atomic<Object *> object{nullptr};
  std::atomic<Gate *> gate{nullptr};
  std::atomic<int32_t> owners{0};   // outside the library
  std::atomic<int32_t> holders{0};  // threads inside find_and_hold, release or retain
  uint64_t generation = 0;
  uint64_t next_free = 0;
};
using Chunk = std::array<Slot, kChunkSlots>;

// A word that fork wipes: 1 in the process that made it, 0 in its children.
class AliveWord {
 public:
  AliveWord() {
    page_ = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page_ == MAP_FAILED) throw std::bad_alloc();
    madvise(page_, page_bytes(), MADV_WIPEONFORK);
    new (page_) std::atomic<uint32_t>(1);
  }
  AliveWord(const AliveWord &) = delete;
  AliveWord &operator=(const AliveWord &) = delete;
  ~AliveWord() { munmap(page_, page_bytes()); }

  bool is_set() const noexcept {
    return static_cast<const std::atomic<uint32_t> *>(page_)->load(std::memory_order_relaxed) != 0;
  }

 private:
  static size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  void *page_;
};

// One per process: a child of fork starts a new one, since its threads and locks are gone. Never freed.
struct Instance {
  uint64_t number = 0;
  const Instance *parent = nullptr;
  AliveWord alive;
  std::mutex mutex;  // of the free list; held for a few instructions
  uint64_t used = 1, first_free = 0, last_free = 0;
  std::array<std::atomic<Chunk *>, kChunks> chunks{};
  std::atomic<int64_t> live{0};

  Slot *slot(uint64_t index) noexcept {
    Chunk *chunk = chunks[index >> kChunkBits].load(std::memory_order_acquire);
    return chunk ? &(*chunk)[index & (kChunkSlots - 1)] : nullptr;
  }
};

std::atomic<Instance *> current{nullptr};

std::unique_ptr<Instance> make_instance(const Instance *parent) {
  auto made = std::make_unique<Instance>();
  uint16_t random = 0;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) random = static_cast<uint16_t>(getpid());
  made->number = random & kInstanceMask;
  made->parent = parent;
  if (parent && parent->number == made->number) made->number ^= 1;
  return made;
}

// The instance of this process; null before its first handle.
Instance *instance_or_null() noexcept {
  Instance *known = current.load(std::memory_order_acquire);
  return known && known->alive.is_set() ? known : nullptr;
}

// The same, made at need. Of several threads one makes it.
Instance *instance() {
  Instance *known = current.load(std::memory_order_acquire);
  if (known && known->alive.is_set()) return known;
  std::unique_ptr<Instance> made = make_instance(known);
  if (current.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return made.release();
  return known;
}

uint64_t value_of(const void *handle) { return reinterpret_cast<uint64_t>(handle); }

uint64_t take_slot(Instance *in) {
  const std::lock_guard lock(in->mutex);
  if (in->first_free) {
    const uint64_t index = in->first_free;
    in->first_free = in->slot(index)->next_free;
    if (!in->first_free) in->last_free = 0;
    return index;
  }
  const uint64_t index = in->used;
  if (index > kSlotMask) fail(TPFSDP_ERR_OUT_OF_MEMORY, "16,777,215 handles are alive: release some");
  auto &chunk = in->chunks[index >> kChunkBits];
  if (!chunk.load(std::memory_order_relaxed)) chunk.store(new Chunk, std::memory_order_release);
  in->used = index + 1;
  return index;
}

// From here the value is refused, and nobody is looking at the object any more.
void clear_slot(Slot *slot) noexcept {
  slot->handle.store(0, std::memory_order_seq_cst);
  while (slot->holders.load(std::memory_order_seq_cst) != 0) {
  }
  slot->object.store(nullptr, std::memory_order_relaxed);
}

// Oldest first, so that a stale value is refused for as long as possible; a slot whose generations are used up is not
// used again.
void free_slot(Instance *in, uint64_t index) noexcept {
  Slot *slot = in->slot(index);
  if (++slot->generation > kGenerationMask) return;
  const std::lock_guard lock(in->mutex);
  slot->next_free = 0;
  if (in->last_free) {
    in->slot(in->last_free)->next_free = index;
  } else {
    in->first_free = index;
  }
  in->last_free = index;
}

// release, retain and find_and_hold touch the object behind a slot without any other protection: they say so in
// `holders`, and retire waits for them. They never block while they hold.
class SlotHold {
 public:
  SlotHold(Instance *in, uint64_t handle) noexcept {
    if (!in) return;
    slot_ = in->slot(slot_of(handle));
    if (!slot_) return;
    slot_->holders.fetch_add(1, std::memory_order_seq_cst);
    if (slot_->handle.load(std::memory_order_seq_cst) == handle)
      object_ = slot_->object.load(std::memory_order_relaxed);
  }
  SlotHold(const SlotHold &) = delete;
  SlotHold &operator=(const SlotHold &) = delete;
  ~SlotHold() {
    if (slot_) slot_->holders.fetch_sub(1, std::memory_order_release);
  }
  Object *object() const noexcept { return object_; }
  Slot *slot() const noexcept { return slot_; }

 private:
  Slot *slot_ = nullptr;
  Object *object_ = nullptr;
};

}  // namespace

void *HandleTable::expose(Object *object, bool owned) {
  Instance *in = instance();
  uint64_t handle = object->handle_.load(std::memory_order_acquire);
  if (handle && instance_of(handle) != in->number)
    fail(TPFSDP_ERR_FORKED, "an object made before fork() has no handle in the child: make a context of its own");
  if (!handle) {
    const uint64_t index = take_slot(in);
    Slot *slot = in->slot(index);
    const uint64_t made = static_cast<uint64_t>(object->kind()) << (kSlotBits + kGenerationBits + kInstanceBits) |
                          in->number << (kSlotBits + kGenerationBits) | slot->generation << kSlotBits | index;
    slot->object.store(object, std::memory_order_relaxed);
    slot->gate.store(object->gate(), std::memory_order_relaxed);
    slot->owners.store(0, std::memory_order_relaxed);
    // Good before anybody can know it, so that a second thread that asks at the same time gets a handle that works.
    slot->handle.store(made, std::memory_order_release);
    if (object->handle_.compare_exchange_strong(handle, made, std::memory_order_acq_rel)) {
      in->live.fetch_add(1, std::memory_order_relaxed);
      handle = made;
    } else {
      clear_slot(slot);  // another thread was first; `handle` is its
      free_slot(in, index);
    }
  }
  if (owned && in->slot(slot_of(handle))->owners.fetch_add(1, std::memory_order_acq_rel) == 0) object->outside_ref();
  return reinterpret_cast<void *>(handle);
}

Object *HandleTable::find(const void *handle, Kind kind) noexcept {
  const uint64_t value = value_of(handle);
  Instance *in = instance_or_null();
  if (!in || kind_of(value) != kind) return nullptr;
  Slot *slot = in->slot(slot_of(value));
  if (!slot || slot->handle.load(std::memory_order_acquire) != value) return nullptr;
  return slot->object.load(std::memory_order_relaxed);
}

Gate *HandleTable::find_gate(const void *handle, Kind kind) noexcept {
  const uint64_t value = value_of(handle);
  Instance *in = instance_or_null();
  if (!in || kind_of(value) != kind) return nullptr;
  Slot *slot = in->slot(slot_of(value));
  if (!slot || slot->handle.load(std::memory_order_acquire) != value) return nullptr;
  return slot->gate.load(std::memory_order_relaxed);
}

Ref<Object> HandleTable::find_and_hold(const void *handle, Kind kind) noexcept {
  const uint64_t value = value_of(handle);
  if (kind_of(value) != kind) return nullptr;
  const SlotHold hold(instance_or_null(), value);
  Object *object = hold.object();
  if (!object || !object->try_ref()) return nullptr;
  Ref<Object> held(object);
  object->unref();
  return held;
}

bool HandleTable::is_from_before_fork(const void *handle) noexcept {
  const uint64_t value = value_of(handle);
  if (kind_of(value) == Kind::kNone || kind_of(value) > Kind::kHook) return false;
  const Instance *in = current.load(std::memory_order_acquire);
  if (in && in->alive.is_set())
    in = in->parent;  // else a child that has not begun anew: all that is known is from before
  for (; in; in = in->parent) {
    if (in->number == instance_of(value)) return true;
  }
  return false;
}

void *HandleTable::retain(void *handle) noexcept {
  const SlotHold hold(instance_or_null(), value_of(handle));
  Object *object = hold.object();
  if (!object) return nullptr;
  // With an owner left its reference is there; without one the object may be going right now.
  if (hold.slot()->owners.fetch_add(1, std::memory_order_acq_rel) == 0) {
    if (!object->try_ref()) {
      hold.slot()->owners.fetch_sub(1, std::memory_order_acq_rel);
      return nullptr;
    }
    object->outside_ref();
    object->unref();
  }
  return handle;
}

void HandleTable::release(void *handle) noexcept {
  Gate *gate = nullptr;
  Object *object = nullptr;
  {
    const SlotHold hold(instance_or_null(), value_of(handle));
    object = hold.object();
    if (!object) return;
    int32_t owners = hold.slot()->owners.load(std::memory_order_relaxed);
    do {
      if (owners == 0) return;  // released more often than owned: borrowed handles stay
    } while (!hold.slot()->owners.compare_exchange_weak(owners, owners - 1, std::memory_order_acq_rel));
    if (owners > 1) return;
    gate = object->gate();
  }
  // The reference of all outside owners is still held here, so the object lives until unref or run_deferred.
  if (!gate) {
    object->outside_unref();
    return;
  }
  gate->defer(object);
}

void HandleTable::retire(uint64_t handle) noexcept {
  Instance *in = instance_or_null();
  if (!in || in->number != instance_of(handle)) return;  // from before a fork: its table is not ours to change
  clear_slot(in->slot(slot_of(handle)));
  in->live.fetch_sub(1, std::memory_order_relaxed);
  free_slot(in, slot_of(handle));
}

void HandleTable::set_gate(Object *object) noexcept {
  const uint64_t handle = object->handle_.load(std::memory_order_acquire);
  Instance *in = instance_or_null();
  if (!handle || !in || in->number != instance_of(handle)) return;
  in->slot(slot_of(handle))->gate.store(object->gate(), std::memory_order_release);
}

int64_t HandleTable::live_count() noexcept {
  Instance *in = instance_or_null();
  return in ? in->live.load(std::memory_order_relaxed) : 0;
}

}  // namespace tpfsdp
