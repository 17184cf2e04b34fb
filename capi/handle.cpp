// SPDX-License-Identifier: Apache-2.0
#include "handle.hpp"

#include <array>
#include <cstdint>

namespace tpfsdp::capi {
namespace {

const char *kind_name(Kind kind) {
  static constexpr std::array<const char *, 14> kNames = {"none",   "error", "context", "list", "blob",
                                                          "tensor", "work",  "group",   "mesh", "param",
                                                          "module", "unit",  "scope",   "hook"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

void refuse_handle(const void *handle, Kind kind, const char *name) {
  if (!handle) fail(TPFSDP_ERR_INVALID_HANDLE, name, " is NULL; a tpfsdp_", kind_name(kind), " is needed");
  if (HandleTable::is_from_before_fork(handle))
    fail(TPFSDP_ERR_FORKED, name, " was made before fork(): a child process makes a context of its own");
  fail(TPFSDP_ERR_INVALID_HANDLE, name, " is not a living tpfsdp_", kind_name(kind),
       ": it was released, is of another kind, or of another copy of the library");
}

void refuse_busy(Kind kind, bool own_callback) {
  if (own_callback)
    fail(TPFSDP_ERR_BUSY, "a callback called back into the rank of its tpfsdp_", kind_name(kind),
         "; only infos can be asked there");
  fail(TPFSDP_ERR_BUSY, "another thread is inside the rank of this tpfsdp_", kind_name(kind),
       "; use one thread at a time for everything made from one context");
}

void refuse_other_rank(const Object &first, const Object &second) {
  fail(TPFSDP_ERR_INVALID_ARGUMENT, "the handles of this call belong to two ranks: ", first.describe_rank(), " and ",
       second.describe_rank());
}

void Entry::enter(const void *handle, Kind kind, const char *name) {
  Gate *gate = HandleTable::find_gate(handle, kind);
  if (!gate) {
    if (!HandleTable::find(handle, kind)) refuse_handle(handle, kind, name);
    return;  // belongs to no rank yet
  }
  if (gate_) return;
  if (gate->held_by_this_thread()) {
    if (mode_ != Mode::kAsk) refuse_busy(kind, true);
  } else {
    if (!gate->try_enter()) refuse_busy(kind, false);
    entered_ = gate;
  }
  gate_ = gate;
}

Object *Entry::find(const void *handle, Kind kind, const char *name) {
  Object *object = HandleTable::find(handle, kind);
  if (!object) refuse_handle(handle, kind, name);
  if (gate_ && object->gate() && object->gate() != gate_) refuse_other_rank(*first_, *object);
  return object;
}

}  // namespace tpfsdp::capi

extern "C" {

void *tpfsdp_handle_retain(void *handle) TPFSDP_NOEXCEPT { return tpfsdp::HandleTable::retain(handle); }

void tpfsdp_handle_release(void *handle) TPFSDP_NOEXCEPT { tpfsdp::HandleTable::release(handle); }

}  // extern "C"
