// SPDX-License-Identifier: Apache-2.0
// What the outermost sharded module of a tree owns for all below it: the states in order, the groups, the plan of
// memory, the write window, the order of the step, and the end of a failed one.
#pragma once

#include "fsdp/digest.hpp"
#include "fsdp/slot_plan.hpp"
#include "fsdp/state.hpp"

#include <deque>
#include <memory>
#include <new>
#include <vector>

namespace tpfsdp {

// What a tree holds on this rank now.
struct MemoryReport {
  int32_t spare_slots = 0;
  int64_t shard_bytes = 0;
  int64_t cast_bytes = 0;  // shards in the dtype of full values
  int64_t grad_shard_bytes = 0;
  int64_t slot_bytes = 0;
  int64_t grad_slot_bytes = 0;    // and memory for second commits
  int64_t accumulator_bytes = 0;  // full gradients that add up without sync
  int64_t part_bytes = 0;         // of full parameters between forward and backward
};

// A forward of a unit, for the order of backward.
struct PastForward {
  ParamGroup *unit = nullptr;
  int64_t pass = 0;      // of the root's forward it was part of
  bool is_over = false;  // its backward has begun
};

enum class Window { kOpen, kClosed, kExplicit };

class Root {
 public:
  explicit Root(Module &outermost) : module(&outermost), context(&outermost.context()) { out_of_memory(); }
  Root(const Root &) = delete;
  Root &operator=(const Root &) = delete;

  Module *module;  // null when it has ended before modules below it
  Ref<Context> context;
  std::vector<State *> states;      // pre-order
  std::vector<int32_t> depths;      // sharded modules above each
  std::vector<ParamGroup *> units;  // of those states
  std::vector<Ref<Group>> groups;   // of more than one rank, each once

  // ---- Lazy init ----

  // Settles the root and compares what the ranks start with; OK or PENDING. Cheap when it is done.
  Status prepare(bool may_wait);
  bool is_ready() const { return stage_ == Stage::kReady; }
  // Before the next step of this tree, or, where nothing depends on it yet, between two steps.
  void plan_again() { plan_is_old_ = true; }
  void plan_better() { plan_may_improve_ = true; }
  // Nothing of a step is under way, on this rank's part.
  bool is_between_steps() const;
  void forget(State &state) noexcept;

  // ---- Memory ----

  std::deque<Slot> slots;  // the plan's, then spares
  std::deque<GradSlot> grad_slots;
  int32_t planned_slots = 0;
  int32_t planned_grad_slots = 0;
  int64_t planned_bytes = 0;
  int64_t host_bytes = 0;
  MemoryAccount account;
  MemoryReport memory_report() const;

  // ---- The step ----

  const Module *forward_root = nullptr;  // whose forward is running: the outermost
  bool is_in_backward = false;
  bool is_last_backward = true;     // the end of a backward is the end of the step
  bool finalizes_manually = false;  // the end of the step is finalize_backward
  int32_t end_phase = 0;            // of end_backward, for its form that does not wait
  int64_t resets = 0;               // of the step, by reset_iter_state
  int64_t forward_passes = 0;
  std::vector<PastForward> post_forward_order;
  std::vector<ParamGroup *> reductions;  // posted, oldest first

  // ---- Write window ----

  Window window = Window::kOpen;  // nobody has read a shard yet
  int64_t windows_opened = 0;     // by end_backward

  // ---- Failure ----

  // Runs one collective step. A local failure is posted to the peers on every group of the tree, and no other step
  // runs before reset_iter_state.
  template <class Body>
  Status step(Body &&body) {
    refuse_if_failed();
    refuse_unfinished_end();
    try {
      return body();
    } catch (const Failure &failure) {
      const Failure told = with_rank(failure);
      failed(told);
      throw told;
    } catch (const std::bad_alloc &) {
      failed(out_of_memory());
      throw;
    }
  }
  void failed(const Failure &failure) noexcept;
  // The same failure, saying which rank it came from where nothing did.
  Failure with_rank(const Failure &failure) const;
  static const Failure &out_of_memory();  // made with the first root, before it is needed
  void refuse_if_failed() const;
  void refuse_unfinished_end() const;
  void refuse_without_module() const;
  void reset();

  Recorder &recorder() const { return context->rank().recorder(); }

 private:
  enum class Stage { kNew, kComparing, kReady };

  struct Plan {
    SlotPlan full;
    SlotPlan gradients;
  };

  void check_units() const;
  void name_units();
  void drop_step() noexcept;

  // ---- memory_plan.cpp ----

  Plan plan() const;
  int64_t bytes_of(const Plan &plan) const;  // with all else that the tree holds on this rank
  Group *group_of_pool(int32_t pool) const;  // null: slots of this rank alone
  UnshardMode wanted_mode();                 // by this rank, of units that leave it to the library
  void settle_modes();                       // of those units, when all ranks have said what they want
  void make_plan();
  void make_slots(const SlotPlan &plan);
  Status make_common_slots(bool may_wait);  // collective

  Stage stage_ = Stage::kNew;
  bool plan_is_old_ = true;
  bool plan_may_improve_ = false;
  bool misses_slots_ = false;   // of the plan, that all ranks make together
  bool loses_slots_ = false;    // at the next plan, whatever it is
  int64_t budgeted_bytes_ = 0;  // what this rank would hold with private copies, where a budget asks
  bool has_failed_ = false;
  bool has_posted_reset_ = false;
  std::vector<Ref<Group>> groups_to_reset_;  // of a reset that is under way
  std::string failure_text_;
  std::unique_ptr<DigestExchange> exchange_;
};

// The root that a module's state belongs to, settled now if it is not yet: by a forward on the module itself, by
// anything else on the outermost sharded module above it.
Root &settle_by_forward(Module &module);
Root &settle_outermost(Module &module);
// It is this module, settled now if it is not yet; throws STATE naming the root.
Root &root_of(Module &module, const char *call);
// The same, but it is not settled by asking: throws STATE before.
const Root &settled_root(Module &module, const char *call);

// Of the tree that a module belongs to, or of every tree below it, settled now if they are not yet.
std::vector<Root *> roots_around(Module &module);

// The host's own failure, on the tree of a module or on every tree below it.
void report_failure(Module &module, const std::string &why);

}  // namespace tpfsdp
