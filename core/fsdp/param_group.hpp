// SPDX-License-Identifier: Apache-2.0
// What one fully_shard call gathers and reduces together (tpfsdp_unit in the ABI): its parameters, this rank's shards,
// and where in a step it is. What happens to it stands in gather, reduce and state_machine.
#pragma once

#include "comm/mesh.hpp"
#include "comm/region.hpp"
#include "fsdp/full_memory.hpp"
#include "fsdp/gather_route.hpp"
#include "fsdp/unshard_mode.hpp"
#include "module/module.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace tpfsdp {

struct ShardOptions;
class State;
class Root;
class ParamGroup;

// The numbers of unit.h, and of fully_shard.h.
enum class ShardedState : int32_t { kSharded = 1, kShardedPostForward = 2, kUnsharded = 3 };
enum class TrainingState : int32_t { kIdle = 1, kForward = 2, kPreBackward = 3, kPostBackward = 4 };
enum class ReshardKind : int32_t { kAuto = 0, kAlways = 1, kNever = 2, kSize = 3 };
enum class InitMode : int32_t { kVerify = 1, kTrust = 2, kBroadcast = 3 };

// A place for full gradients, which peers read: shared by units of a plan, or where one unit's add up without sync.
struct GradSlot {
  Region memory;
  ParamGroup *holder = nullptr;
  int64_t last_reduce = 0;  // sequence of the last reduction that exposed it
};

// This rank's slice of the full values between forward and backward, see post_forward.hpp.
struct PostForwardPart {
  GatherRoute route;
  std::vector<PartPiece> pieces;  // of this rank
  Region memory;
  int64_t version = -1;  // of the values in it
  bool is_held = false;
};

struct ShardedParam {
  Ref<Param> param;
  Shape local_shape;         // of one dimension where ranks own elements
  Shape offsets;             // of the local part; an empty one starts at the end of dimension 0
  int64_t flat_offset = -1;  // of a run of elements; then without offsets
  std::byte *shard = nullptr;
  std::byte *grad_shard = nullptr;       // null: frozen at the last plan
  std::byte *full = nullptr;             // while there is a destination
  uint64_t value_hash = 0;               // of the whole, at fully_shard; 0: not compared
  bool buffer_given = false;             // get_grad_buffer, not yet committed
  bool second_given = false;             // the same, beside a gradient that is committed already
  bool committed = false;                // in the slot; takes part in the next reduction
  bool accumulated = false;              // in the accumulator; takes part in the next reduction
  bool is_reducing = false;              // took part in the last one
  bool is_unwritten = false;             // its values were on META and nothing has replaced them yet
  std::function<Status()> grad_reduced;  // of the host; empty: none

  int64_t local_elements() const { return element_count(local_shape); }
};

class ParamGroup final : public Object {
 public:
  static constexpr Kind kKind = Kind::kUnit;

  // Cuts this rank's rows out of the full values. With kBroadcast those of rank 0 of the mesh, collectively.
  ParamGroup(State &owner, Ref<Mesh> shard_mesh, const std::vector<Ref<Param>> &managed, ShardOptions options);
  ~ParamGroup() override;

  Kind kind() const override { return kKind; }
  Gate *gate() const override;
  std::string describe_rank() const override { return group->describe_rank(); }
  // A handle of a unit keeps its module alive, of which the unit is a part.
  void outside_ref() noexcept override;
  void outside_unref() noexcept override;
  void run_deferred() noexcept override;

  Root &root() const;
  bool is_full() const { return sharded_state == ShardedState::kUnsharded; }
  bool keeps() const;            // stays full after forward
  bool has_accumulated() const;  // gradients that wait for a backward with sync

  // Layout of full values and gradients anew, after trainability changed.
  void lay_out();
  // Full parameters from now on lie at `base` (LIBRARY), or at each parameter's own acquired memory (HOST).
  void set_destination(std::byte *base);
  bool has_mapped_shards() const { return mapped && !layout.is_cast; }
  int64_t shard_bytes() const { return has_mapped_shards() ? mapped.part_bytes() : shards.size_bytes(); }
  int64_t mapped_cast_bytes() const { return layout.is_cast ? mapped.part_bytes() : 0; }
  int64_t cast_bytes() const { return cast_shards.size_bytes() + mapped_cast_bytes(); }
  int64_t gather_wire_bytes() const { return mode.is_common() ? 0 : shards_route.wire_bytes; }
  // For every gather, and not for one into a spare slot only.
  bool needs_cast_shards() const { return layout.is_cast && group->size() > 1 && !mode.is_common(); }
  void make_cast_shards();
  void protect_shards(bool read_only);
  // Where this rank's part of a parameter lies in a full buffer.
  std::byte *own_part(std::byte *full_buffer, size_t index) const;

  State &state;
  Ref<Mesh> mesh;
  Ref<Group> group;
  std::vector<ShardedParam> params;
  ShardLayout layout;
  InitMode init_mode;
  HostMemory host_memory;  // empty: storage LIBRARY
  ModeChoice mode;
  Region shards;
  CommonRegion mapped;             // in mode mapped: the full values, in which shards lie unless they are cast for it
  Region cast_shards;              // of this rank, in the dtype of full values, where they are cast and peers read them
  ShardPlaces cast_places;         // in it
  int64_t cast_version = -1;       // of the values in the copies that are cast
  int64_t last_shards_gather = 0;  // sequence of the last one that exposed shards, or cast_shards in their place
  // Shared with tensors of gradients, which may outlive a plan.
  std::shared_ptr<Buffer> grad_shards = std::make_shared<Buffer>();
  ShardPlaces shard_places;

  // ---- Set when the root is settled ----
  std::string name;                // dotted, joined by ", " for several modules; there from the start
  const char *event_name = "";     // interned
  const char *reduce_detail = "";  // names of all trainable parameters
  int32_t number = -1;             // for messages of the transport

  // ---- Memory of the plan ----
  Slot *slot = nullptr;       // null: nothing to gather, or storage HOST
  Slot *spare = nullptr;      // for an unshard outside the plan; made once
  Slot *held_slot = nullptr;  // holding its full parameters now
  GradSlot *grad_slot = nullptr;
  GradSlot *held_grad_slot = nullptr;
  GradSlot accumulator;    // made at the first backward without sync
  Buffer second_gradient;  // for a second commit in one backward; made at the first

  // ---- Where it is ----
  ShardedState sharded_state = ShardedState::kSharded;
  TrainingState training_state = TrainingState::kIdle;
  bool is_posting = false;    // its submit has to come again
  bool is_filled = false;     // this rank's part of common memory, for that submit
  bool is_gathering = false;  // posted, not waited for
  bool is_prefetch = false;   // that gather, or these full values, were asked for by nobody yet
  bool has_destination = false;
  bool did_prefetch = false;  // in this pre-backward
  bool did_pre_backward = false;
  bool did_post_backward = false;  // in this backward
  bool owes_gradients = false;     // did_post_backward, but what follows for its gradients is PENDING
  bool is_posting_reduction = false;
  bool is_reducing = false;
  bool has_deferred_reshard = false;
  int32_t scopes = 0;                         // open on it
  bool is_full_beside_scopes = false;         // wanted full by something else, too
  const GatherRoute *gather_route = nullptr;  // of the gather that was submitted last
  int64_t gather_sequence = 0;
  int64_t gather_generation = 0;  // of its group when it was submitted
  int64_t reduce_sequence = 0;
  int64_t reduce_generation = 0;
  int64_t gathered_version = 0;
  int64_t version = 0;  // write windows that were closed
  int64_t unshards = 0;
  int64_t deferred_reshards = 0;
  std::vector<int64_t> post_forward_positions;  // in the root's order, newest last
  std::atomic<int32_t> pins{0};
  std::atomic<int32_t> owed_unpins{0};  // by finalizers

  // ---- The static part of its collectives ----
  GatherRoute shards_route;
  std::unique_ptr<PostForwardPart> part;  // null unless it reshards to fewer ranks
  std::vector<tpfsdp_backend_piece> reduce_pieces;
  std::vector<uint64_t> reduce_counts;

 private:
  void cut(ShardedParam &sharded, size_t index);
};

}  // namespace tpfsdp
