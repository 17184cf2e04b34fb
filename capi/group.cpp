// SPDX-License-Identifier: Apache-2.0
#include "comm/group.hpp"

#include "comm/collectives.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "list.hpp"
#include "options.hpp"

#include <tpfsdp/group.h>

namespace tpfsdp::capi {
namespace {

// A collective: its arguments are looked at after the group is known, so that the peers hear what is wrong with them.
template <class Body>
void collective(tpfsdp_group *group, Body &&body) {
  Entry entry;
  const Ref<Group> on(&entry.get<Group>(group, "group"));
  try {
    body(on);
  } catch (const Failure &failure) {
    // What the core refused, it has told the peers already.
    if (!failure.detail()->group.empty()) throw;
    fail_collective(*on, failure);
  }
}

void check_stream(const tpfsdp_stream *stream) {
  if (stream && stream->device_type != TPFSDP_DEVICE_CPU)
    fail(TPFSDP_ERR_UNSUPPORTED, "the stream is of device type ", stream->device_type,
         "; this backend works on the CPU only: pass NULL");
}

void hand_out(const Ref<Work> &work, tpfsdp_work **out_work) {
  if (out_work) *out_work = owned<tpfsdp_work>(work.get());
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_group_split(tpfsdp_group *group, int32_t color, int32_t order, const char *name,
                                 tpfsdp_group **out_group, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    collective(group, [&](const Ref<Group> &on) {
      tpfsdp_group *&out = required(out_group, "out_group");
      const Ref<Group> part = Group::split(on, color, order, name ? name : "");
      out = part ? owned<tpfsdp_group>(part.get()) : nullptr;
    });
  });
}

tpfsdp_status tpfsdp_group_get_info(tpfsdp_group *group, tpfsdp_group_info *out_info,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Group>(group, "group");
    tpfsdp_group_info info{};
    info.rank = held->rank();
    info.world_size = held->size();
    info.local_rank = held->rank();  // all ranks are threads of this process
    info.local_world_size = held->size();
    info.has_failed = held->has_failed() ? 1 : 0;
    info.sequence = held->sequence();
    info.global_ranks = held->global_ranks().data();
    info.backend = held->owner().backend().name;
    info.name = held->name().c_str();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_group_check(tpfsdp_group *group, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] { hold<Group>(group, "group")->check(); });
}

tpfsdp_status tpfsdp_group_shutdown(tpfsdp_group *group, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<Group>(group, "group").shutdown();
  });
}

void tpfsdp_group_abort(tpfsdp_group *group, const char *reason) TPFSDP_NOEXCEPT {
  static_cast<void>(guard(nullptr, [&] { hold<Group>(group, "group")->abort(reason ? reason : "no reason given"); }));
}

tpfsdp_status tpfsdp_group_reset(tpfsdp_group *group, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    entry.get<Group>(group, "group").reset();
  });
}

tpfsdp_status tpfsdp_group_dump_recorder(tpfsdp_group *group, tpfsdp_blob **out_text,
                                         tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    const auto held = hold<Group>(group, "group");
    tpfsdp_blob *&out = required(out_text, "out_text");
    out = owned<tpfsdp_blob>(make<Blob>(held->dump()).get());
  });
}

tpfsdp_status tpfsdp_group_all_gather(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output,
                                      const int64_t *counts, int64_t count_count, const tpfsdp_stream *stream,
                                      tpfsdp_work **out_work, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    collective(group, [&](const Ref<Group> &on) {
      check_stream(stream);
      const int64_t count = as_count(count_count, counts, "count_count");
      const std::vector<int64_t> parts(counts, counts + count);
      const tpfsdp_view &from = required(input, "input"), &to = required(output, "output");
      hand_out(all_gather(on, from, to, parts, out_work != nullptr), out_work);
    });
  });
}

tpfsdp_status tpfsdp_group_reduce_scatter(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output,
                                          tpfsdp_reduce_op op, const tpfsdp_stream *stream, tpfsdp_work **out_work,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    collective(group, [&](const Ref<Group> &on) {
      check_stream(stream);
      const tpfsdp_view &from = required(input, "input"), &to = required(output, "output");
      hand_out(reduce_scatter(on, from, to, op, out_work != nullptr), out_work);
    });
  });
}

tpfsdp_status tpfsdp_group_all_reduce(tpfsdp_group *group, const tpfsdp_view *input, const tpfsdp_view *output,
                                      tpfsdp_reduce_op op, const tpfsdp_stream *stream, tpfsdp_work **out_work,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    collective(group, [&](const Ref<Group> &on) {
      check_stream(stream);
      const tpfsdp_view &from = required(input, "input"), &to = required(output, "output");
      hand_out(all_reduce(on, from, to, op, out_work != nullptr), out_work);
    });
  });
}

tpfsdp_status tpfsdp_group_broadcast(tpfsdp_group *group, const tpfsdp_view *data, int32_t source,
                                     const tpfsdp_stream *stream, tpfsdp_work **out_work,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    collective(group, [&](const Ref<Group> &on) {
      check_stream(stream);
      hand_out(broadcast(on, required(data, "data"), source, out_work != nullptr), out_work);
    });
  });
}

tpfsdp_status tpfsdp_group_barrier(tpfsdp_group *group, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] { collective(group, [&](const Ref<Group> &on) { barrier(on); }); });
}

}  // extern "C"
