// SPDX-License-Identifier: Apache-2.0
#include "goldens/event_log.hpp"

#include <functional>
#include <numeric>
#include <stdexcept>

namespace goldens {
namespace {

std::string training_name(tpfsdp_training_state state) {
  constexpr const char *kNames[] = {"?", "IDLE", "FORWARD", "PRE_BACKWARD", "POST_BACKWARD"};
  return kNames[state];
}

std::string sharded_name(tpfsdp_sharded_state state) {
  if (state == TPFSDP_SHARDED_SHARDED) return "SHARDED";
  return state == TPFSDP_SHARDED_POST_FORWARD ? "SHARDED_POST_FORWARD" : "state " + std::to_string(state);
}

}  // namespace

void EventLog::begin(const std::string &phase) {
  end_phase();
  API(tpfsdp_trace_clear, context_);
  lines_.push_back("-- " + phase);
}

json EventLog::take() {
  end_phase();
  API(tpfsdp_trace_clear, context_);
  return std::exchange(lines_, json::array());
}

void EventLog::end_phase() {
  if (lines_.empty()) return;
  const tpfsdp_counters counters = api::counters(context_);
  if (counters.events_lost) throw std::runtime_error("the ring of events was too small");
  for (int64_t i = 0; i < counters.event_count; ++i) {
    tpfsdp_trace_event event = TPFSDP_INIT(tpfsdp_trace_event);
    API(tpfsdp_trace_get_event, context_, i, &event);
    append(event);
  }
}

void EventLog::append(const tpfsdp_trace_event &event) {
  const std::string unit = event.unit, state = training_name(event.training_state);
  switch (event.kind) {
    case TPFSDP_EVENT_UNSHARD: lines_.push_back("U " + unit + " " + state); break;
    case TPFSDP_EVENT_WAIT_UNSHARD: lines_.push_back("W " + unit + " " + state); break;
    case TPFSDP_EVENT_RESHARD:
      lines_.push_back("R " + unit + " " + state + " -> " + sharded_name(event.sharded_state));
      break;
    case TPFSDP_EVENT_POST_BACKWARD: lines_.push_back("P " + unit + " " + state); break;
    case TPFSDP_EVENT_REDUCE:
      reducing_ = event.detail;
      lines_.push_back("RED " + reducing_);
      break;
    case TPFSDP_EVENT_COLLECTIVE:
      if (!unit.empty()) append_collective(event);  // those without a unit are of the start, before the first step
      break;
    default: break;
  }
}

void EventLog::append_collective(const tpfsdp_trace_event &event) {
  const std::string operation = event.operation, dtype = dtype_name(event.dtype);
  const int64_t world = event.world_size;
  const auto line = [&](const char *name, int64_t in, int64_t out) {
    return name + dtype + " in=" + std::to_string(in) + " out=" + std::to_string(out) + " ws=" + std::to_string(world);
  };
  if (operation == "all_gather") {
    const int64_t out = gathered_elements(event.unit, event.dtype == TPFSDP_DTYPE_U8);
    lines_.push_back(line("AG ", out / world, out));
  } else if (operation == "reduce_scatter") {
    const int64_t in = reduced_elements();
    // PyTorch averages f32 and bf16 in one operation and scales apart for other dtypes; ours always averages.
    const bool in_one =
        event.op == TPFSDP_REDUCE_AVG && (event.dtype == TPFSDP_DTYPE_F32 || event.dtype == TPFSDP_DTYPE_BF16);
    lines_.push_back(line("RS ", in, in / world) + " op=" + (in_one ? "AVG" : "SUM"));
  } else {
    lines_.push_back(operation + " of " + event.unit);  // none that a golden has
  }
}

// Rows padded to a multiple of the world.
int64_t EventLog::padded_elements(const json &param) const {
  const std::vector<int64_t> shape = param.at("shape");
  const int64_t world = golden_.data.at("world"), rows = (shape.at(0) + world - 1) / world * world;
  return std::accumulate(shape.begin() + 1, shape.end(), rows, std::multiplies<>());
}

int64_t EventLog::gathered_elements(const std::string &unit, bool as_bytes) const {
  int64_t count = 0;
  for (const json &described : golden_.data.at("params")) {
    tpfsdp_param *handle = model_.param(described.at("name")).handle;
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, handle, &info);
    if (!info.unit) continue;
    tpfsdp_unit_info of = TPFSDP_INIT(tpfsdp_unit_info);
    API(tpfsdp_unit_get_info, info.unit, &of);
    const int64_t element = !as_bytes ? 1 : described.at("dtype") == "f32" ? 4 : 8;
    if (of.name == unit) count += padded_elements(described) * element;
  }
  return count;
}

int64_t EventLog::reduced_elements() const {
  int64_t count = 0;
  for (const json &described : golden_.data.at("params")) {
    const std::string name = described.at("name");
    if (("," + reducing_ + ",").find("," + name + ",") != std::string::npos) count += padded_elements(described);
  }
  return count;
}

}  // namespace goldens
