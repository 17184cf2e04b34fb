// SPDX-License-Identifier: Apache-2.0
#include "comm/backends.hpp"

#include "comm/backend_call.hpp"

#include <array>
#include <memory>
#include <vector>

// The entries that are linked in. What is behind them is known by backend.h alone.
extern "C" tpfsdp_status tpfsdp_backend_threads_entry(const tpfsdp_backend_services *services,
                                                      tpfsdp_backend_table *out_table);
extern "C" tpfsdp_status tpfsdp_backend_shm_entry(const tpfsdp_backend_services *services,
                                                  tpfsdp_backend_table *out_table);

namespace tpfsdp {
namespace {

bool has_all_slots(const tpfsdp_backend_table &table) {
  return table.name && table.version && table.license && table.probe && table.comm_create && table.comm_shutdown &&
         table.comm_abort && table.comm_check && table.comm_destroy && table.comm_get_peer && table.submit &&
         table.complete && table.wait_read && table.post_failure && table.give_up && table.post_reset &&
         table.wait_reset && table.publish_step && table.wait_step && table.region_create && table.region_protect &&
         table.region_destroy && table.region_create_common && table.region_release && table.region_wait_released;
}

struct CapabilityName {
  uint64_t bit;
  const char *text;
};
constexpr std::array kCapabilityNames = {
    CapabilityName{TPFSDP_BACKEND_CAN_USE_THREADS, "ranks that are threads"},
    CapabilityName{TPFSDP_BACKEND_CAN_USE_PROCESSES, "ranks that are processes"},
};

std::string missing_text(uint64_t missing) {
  std::string text;
  for (const CapabilityName &capability : kCapabilityNames) {
    if (missing & capability.bit) text += cat(text.empty() ? "it cannot join " : " or ", capability.text);
  }
  return text.empty() ? "it lacks a capability that this job needs" : text;
}

// Made once a process and kept: tables are borrowed by every rank.
const std::vector<std::unique_ptr<BackendCandidate>> &candidates() {
  static const auto *all = [] {
    auto *list = new std::vector<std::unique_ptr<BackendCandidate>>;
    for (const tpfsdp_backend_entry entry : {&tpfsdp_backend_threads_entry, &tpfsdp_backend_shm_entry}) {
      list->push_back(std::make_unique<BackendCandidate>());
      list->back()->where = "built in";
      load_backend(entry, list->back().get());
    }
    return list;
  }();
  return *all;
}

}  // namespace

void load_backend(tpfsdp_backend_entry entry, BackendCandidate *candidate) {
  tpfsdp_backend_table &table = candidate->table;
  table.head = {sizeof(tpfsdp_backend_table), TPFSDP_BACKEND_ABI_MAJOR, TPFSDP_BACKEND_ABI_MINOR};
  const Status status = entry(&backend_services(), &table);
  if (status != TPFSDP_OK) {
    candidate->refusal = cat("its entry function gave status ", status);
  } else if (table.head.major != TPFSDP_BACKEND_ABI_MAJOR) {
    candidate->refusal =
        cat("its table is of major version ", table.head.major, "; this library speaks ", TPFSDP_BACKEND_ABI_MAJOR);
  } else if (table.head.struct_size < sizeof(tpfsdp_backend_table)) {
    candidate->refusal =
        cat("its table has ", table.head.struct_size, " bytes, ", sizeof(tpfsdp_backend_table), " are needed");
  } else if (!has_all_slots(table)) {
    candidate->refusal = "its table has an empty slot; all are required";
  } else {
    std::array<char, 256> reason{};
    candidate->score = table.probe(reason.data(), static_cast<int64_t>(reason.size()));
    reason.back() = '\0';
    candidate->reason = reason.data();
    if (candidate->score <= 0) candidate->refusal = cat("it cannot run here: ", candidate->reason);
  }
  if (!table.name) table.name = "(unnamed)";
}

BackendChoice choose_backend(const std::string &name, uint64_t needed) {
  const BackendCandidate *best = nullptr;
  std::string report;
  std::vector<std::string> refusals;
  for (const auto &candidate : candidates()) {
    std::string refusal = candidate->refusal;
    if (refusal.empty() && !name.empty() && name != candidate->table.name)
      refusal = cat("\"", name, "\" was asked for");
    if (const uint64_t missing = needed & ~candidate->table.capabilities; refusal.empty() && missing)
      refusal = missing_text(missing);
    if (refusal.empty() && (!best || candidate->score > best->score)) best = candidate.get();
    refusals.push_back(std::move(refusal));
  }
  for (size_t i = 0; i < refusals.size(); ++i) {
    const BackendCandidate &candidate = *candidates()[i];
    report += cat(i ? "; " : "", candidate.table.name, " (", candidate.where, "): ");
    if (&candidate == best) {
      report += cat("taken, score ", candidate.score);
    } else {
      report += refusals[i].empty() ? cat("not taken, score ", candidate.score) : cat("refused, ", refusals[i]);
    }
  }
  if (!best) {
    fail(TPFSDP_ERR_BACKEND_UNAVAILABLE, "no backend ", name.empty() ? "" : cat("\"", name, "\" "),
         "can be used here. Candidates: ", report);
  }
  return {&best->table, std::move(report)};
}

}  // namespace tpfsdp
