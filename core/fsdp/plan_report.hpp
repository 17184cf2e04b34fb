// SPDX-License-Identifier: Apache-2.0
// The plan of a prepared tree for people and programs: what each unit gathers and reduces in a step, who owns which
// rows, where full values lie, and what all of it costs.
#pragma once

#include "fsdp/root.hpp"

#include <string>

namespace tpfsdp {

struct PlanReport {
  struct Parameter {
    std::string name;
    std::string dtype;
    std::string full_dtype;
    std::string reduce_dtype;
    Shape shape;
    bool trainable = true;
    bool in_elements = false;
    std::vector<RowRange> owned;  // rows of dimension 0, or elements, by rank of the unit's group
  };
  struct Unit {
    std::string name;
    std::string group;
    int32_t ranks = 1;
    std::string reshard;       // "always", "never", "to size 2", and for the root "automatic: never"
    std::string unshard_mode;  // "private", "shared", "mapped"
    std::string unshard_reason;
    int32_t slot = -1;  // -1: nothing to hold, or the host's memory
    int32_t grad_slot = -1;
    bool is_host_memory = false;
    int64_t shard_bytes = 0;    // of this rank
    int64_t full_bytes = 0;     // with alignment
    int64_t padding_bytes = 0;  // of them
    int64_t grad_bytes = 0;
    // Of a step of one forward and one backward with sync.
    int32_t gathers = 0;
    int32_t reductions = 0;
    int64_t gathered_bytes = 0;  // received by this rank
    int64_t reduced_bytes = 0;
    std::vector<Parameter> parameters;
  };
  int32_t rank = 0;
  std::vector<Unit> units;
  std::vector<int64_t> slot_bytes;
  std::vector<int64_t> grad_slot_bytes;
  int64_t shard_bytes = 0;
  int64_t cast_bytes = 0;  // of shards in the dtype of full values
  int64_t grad_shard_bytes = 0;
  int64_t part_bytes = 0;
  int64_t peak_bytes = 0;  // planned

  int64_t gathers() const;
  int64_t reductions() const;
  int64_t received_bytes() const;
};

PlanReport report_plan(const Root &root);

std::string plan_as_json(const PlanReport &report);
std::string plan_as_text(const PlanReport &report);
std::string plan_as_html(const PlanReport &report);

}  // namespace tpfsdp
