// SPDX-License-Identifier: Apache-2.0
// Texts for other programs: the Chrome trace of a rank and the dump of a group. No other file here knows JSON.
#include "comm/collective_log.hpp"
#include "comm/group.hpp"
#include "tensor/dtype.hpp"

#include <nlohmann/json.hpp>

namespace tpfsdp {
namespace {

using Json = nlohmann::ordered_json;

// Names are the host's: what is not UTF-8 is replaced, not refused.
std::string text_of(const Json &json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

const char *event_name(EventKind kind) {
  switch (kind) {
    case EventKind::kUnshard: return "unshard";
    case EventKind::kReshard: return "reshard";
    case EventKind::kPostBackward: return "post_backward";
    case EventKind::kReduce: return "reduce";
    case EventKind::kCollective: return "collective";
    case EventKind::kHook: return "hook";
    case EventKind::kWrite: return "write";
    case EventKind::kMark: return "mark";
    case EventKind::kWaitUnshard: return "wait_unshard";
  }
  return "event";
}

Json metadata(const char *what, int32_t rank, int32_t thread, const std::string &name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

// One row of the viewer per kind of thing that has a duration; the rest are marks on the first row.
constexpr int32_t kCollectiveRow = 2, kHookRow = 1;

Json trace_event(const Event &event, int32_t rank) {
  const bool has_duration = event.kind == EventKind::kCollective || event.kind == EventKind::kHook;
  const std::string name = *event.operation ? event.operation : event_name(event.kind);
  Json json = {{"name", *event.unit ? cat(name, " ", event.unit) : name},
               {"cat", event_name(event.kind)},
               {"ph", has_duration ? "X" : "i"},
               {"ts", static_cast<double>(event.start_ns) / 1000.0},
               {"pid", rank},
               {"tid", event.kind == EventKind::kCollective ? kCollectiveRow : kHookRow}};
  if (has_duration) {
    json["dur"] = static_cast<double>(event.duration_ns) / 1000.0;
  } else {
    json["s"] = "t";
  }
  Json &args = json["args"] = {{"index", event.index}};
  if (*event.unit) args["unit"] = event.unit;
  if (*event.detail) args["detail"] = event.detail;
  if (event.kind == EventKind::kCollective) {
    args["group"] = event.group;
    args["sequence"] = event.sequence;
    args["dtype"] = dtype_name(event.dtype);
    args["count"] = event.count;
    args["output_count"] = event.output_count;
    args["world_size"] = event.world_size;
  }
  return json;
}

Json entry_json(const CollectiveEntry &entry) {
  Json json = {{"sequence", entry.sequence},
               {"operation", collective_name(entry.kind)},
               {"state", collective_state_name(entry.state)},
               {"dtype", dtype_name(entry.dtype)},
               {"element_count", entry.element_count},
               {"unit", entry.unit},
               {"posted_ns", entry.posted_ns},
               {"ended_ns", entry.ended_ns}};
  if (entry.status != TPFSDP_OK) json["status"] = entry.status;
  return json;
}

}  // namespace

std::string Recorder::chrome_trace(int32_t rank) const {
  Json events = Json::array();
  events.push_back(metadata("process_name", rank, 0, cat("rank ", rank)));
  events.push_back(metadata("thread_name", rank, kHookRow, "hooks and units"));
  events.push_back(metadata("thread_name", rank, kCollectiveRow, "collectives"));
  for (int64_t i = 0; i < kept(); ++i) events.push_back(trace_event(event_at(i), rank));
  const Json trace = {{"displayTimeUnit", "ns"},
                      {"otherData", {{"rank", rank}, {"events_lost", lost_}}},
                      {"traceEvents", std::move(events)}};
  return text_of(trace, -1);
}

std::string Group::dump() const {
  Json json = {{"group", name_},
               {"rank", rank_},
               {"world_size", size()},
               {"global_ranks", global_ranks_},
               {"backend", backend().name},
               {"sequence", sequence()},
               {"is_shut_down", is_shut_down()},
               {"has_failed", has_failed()}};
  if (const auto first = failure()) json["failure"] = {{"status", first->status}, {"message", first->message}};
  Json &collectives = json["collectives"] = Json::array();
  for (const CollectiveEntry &entry : log_->entries()) collectives.push_back(entry_json(entry));

  Json &peers = json["peers"] = Json::array();
  Json &behind = json["behind"] = Json::array();
  int64_t furthest = 0;
  std::vector<tpfsdp_backend_peer> seen;
  for (int32_t rank = 0; comm_ && rank < size(); ++rank) {
    tpfsdp_backend_peer peer{};
    peer.struct_size = sizeof peer;
    if (backend().comm_get_peer(comm_, rank, &peer) != TPFSDP_OK) continue;
    furthest = std::max(furthest, peer.posted);
    seen.push_back(peer);
  }
  for (const tpfsdp_backend_peer &peer : seen) {
    // Sequences are the same on every rank, so this rank's log knows what a peer was last seen in.
    const auto last = log_->find(peer.posted);
    peers.push_back({{"rank", peer.rank},
                     {"life", peer.life},
                     {"posted", peer.posted},
                     {"done", peer.done},
                     {"step", peer.step},
                     {"moving", peer.moving},
                     {"operation", last ? collective_name(last->kind) : ""},
                     {"unit", last ? last->unit : ""}});
    if (peer.posted == furthest) continue;
    const auto missing = log_->find(peer.posted + 1);
    behind.push_back({{"rank", peer.rank},
                      {"posted", peer.posted},
                      {"furthest", furthest},
                      {"missing", missing ? collective_name(missing->kind) : ""},
                      {"unit", missing ? missing->unit : ""}});
  }
  return text_of(json, 2);
}

}  // namespace tpfsdp
