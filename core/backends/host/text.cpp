// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <iterator>

#include "comm.hpp"
#include "common.hpp"
#include "record.hpp"

namespace tpfsdp::host {

const char *name_of(Life life) {
  switch (life) {
    case Life::UNBORN: return "not joined";
    case Life::ALIVE: return "alive";
    case Life::CLOSED: return "closed";
    case Life::LEFT: return "left";
    case Life::GONE: return "gone";
  }
  return "unknown";
}

const char *name_of_kind(tpfsdp_backend_kind kind) {
  switch (kind) {
    case TPFSDP_BACKEND_KIND_ALL_GATHER: return "all-gather";
    case TPFSDP_BACKEND_KIND_REDUCE_SCATTER: return "reduce-scatter";
    case TPFSDP_BACKEND_KIND_ALL_REDUCE: return "all-reduce";
    case TPFSDP_BACKEND_KIND_BROADCAST: return "broadcast";
    case TPFSDP_BACKEND_KIND_BARRIER: return "barrier";
    case TPFSDP_BACKEND_KIND_SHARED_GATHER: return "shared all-gather";
    case TPFSDP_BACKEND_KIND_MAPPED_GATHER: return "mapped all-gather";
    case KIND_COMMON_REGION: return "common region";
    default: return "unknown collective";
  }
}

const char *name_of_dtype(tpfsdp_dtype dtype) {
  static const char *const names[] = {"none",
                                      "f32",
                                      "f64",
                                      "f16",
                                      "bf16",
                                      "i8",
                                      "i16",
                                      "i32",
                                      "i64",
                                      "u8",
                                      "u16",
                                      "u32",
                                      "u64",
                                      "bool",
                                      "c64",
                                      "c128",
                                      "f8_e3m4",
                                      "f8_e4m3",
                                      "f8_e4m3b11fnuz",
                                      "f8_e4m3fn",
                                      "f8_e4m3fnuz",
                                      "f8_e5m2",
                                      "f8_e5m2fnuz",
                                      "f8_e8m0fnu",
                                      "f6_e2m3fn",
                                      "f6_e3m2fn",
                                      "f4_e2m1fn"};
  return dtype >= 0 && dtype < static_cast<tpfsdp_dtype>(std::size(names)) ? names[dtype] : "unknown dtype";
}

const char *name_of_status(tpfsdp_status status) {
  switch (status) {
    case TPFSDP_ERR_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case TPFSDP_ERR_INVALID_HANDLE: return "INVALID_HANDLE";
    case TPFSDP_ERR_NOT_FOUND: return "NOT_FOUND";
    case TPFSDP_ERR_STATE: return "STATE";
    case TPFSDP_ERR_BUSY: return "BUSY";
    case TPFSDP_ERR_ABI: return "ABI";
    case TPFSDP_ERR_UNSUPPORTED: return "UNSUPPORTED";
    case TPFSDP_ERR_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case TPFSDP_ERR_IO: return "IO";
    case TPFSDP_ERR_CORRUPT: return "CORRUPT";
    case TPFSDP_ERR_NON_FINITE: return "NON_FINITE";
    case TPFSDP_ERR_CALLBACK: return "CALLBACK";
    case TPFSDP_ERR_REMOTE: return "REMOTE";
    case TPFSDP_ERR_MISMATCH: return "MISMATCH";
    case TPFSDP_ERR_CANCELLED: return "CANCELLED";
    case TPFSDP_ERR_TIMEOUT: return "TIMEOUT";
    case TPFSDP_ERR_PEER_LOST: return "PEER_LOST";
    case TPFSDP_ERR_ABORTED: return "ABORTED";
    case TPFSDP_ERR_BACKEND: return "BACKEND";
    case TPFSDP_ERR_INTERNAL: return "INTERNAL";
    default: return "an error";
  }
}

const char *name_of(const Record::Body &body) {
  switch (body.post) {
    case Post::NONE: return "nothing";
    case Post::OP: return name_of_kind(body.kind);
    case Post::ERR: return "failure";
    case Post::RESET: return "reset";
    case Post::CLOSE: return "shutdown";
  }
  return "unknown";
}

const char *name_of(const Comm &comm, const Awaiting &awaiting) {
  switch (awaiting.target) {
    case Target::NOTHING: return "nothing";
    case Target::JOINED: return "joining";
    case Target::RECORD: return name_of(comm.layout.record(comm.rank, awaiting.sequence).body);
    case Target::DONE: return "waiting for readers";
    case Target::STEP: return "end of backward";
    case Target::RELEASE: return "waiting for users";
  }
  return "unknown";
}

int32_t unit_of(const Comm &comm, const Awaiting &awaiting) {
  if (awaiting.target == Target::RELEASE) return awaiting.common->unit;
  const bool has_unit = awaiting.target == Target::RECORD || awaiting.target == Target::DONE;
  return has_unit ? comm.layout.record(comm.rank, awaiting.sequence).body.unit : -1;
}

std::string unit_text(const Comm &comm, tpfsdp_backend_call *call, int32_t unit) {
  if (unit < 0) return {};
  const char *name = call == nullptr ? nullptr : comm.services.unit_name(call, unit);
  if (name == nullptr || *name == '\0') return " of unit " + std::to_string(unit);
  return std::string(" of unit '") + name + "'";
}

std::string describe(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  const Record::Body &body = comm.layout.record(comm.rank, sequence).body;
  return std::string(name_of(body)) + " at sequence " + std::to_string(sequence) +
         unit_text(comm, call, body.post == Post::OP ? body.unit : -1) + " on comm '" + comm.name + "'";
}

std::string describe(const Comm &comm, const Awaiting &awaiting) {
  switch (awaiting.target) {
    case Target::JOINED: return "joining comm '" + comm.name + "'";
    case Target::DONE: return "waiting for the readers of " + describe(comm, awaiting.call, awaiting.sequence);
    case Target::STEP:
      return "end of backward at sequence " + std::to_string(awaiting.sequence) + " on comm '" + comm.name + "'";
    case Target::RELEASE:
      // Its record may be another's by now.
      return "waiting for the users of what was gathered at sequence " + std::to_string(awaiting.sequence) +
             unit_text(comm, awaiting.call, awaiting.common->unit) + " on comm '" + comm.name + "'";
    default: return describe(comm, awaiting.call, awaiting.sequence);
  }
}

std::string ranks_text(const std::vector<int32_t> &ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace tpfsdp::host
