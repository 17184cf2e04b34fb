// SPDX-License-Identifier: Apache-2.0
#include "making.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "common.hpp"
#include "complete.hpp"
#include "failure.hpp"
#include "post_op.hpp"
#include "progress.hpp"
#include "record.hpp"
#include "region.hpp"
#include "submit.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

constexpr int32_t MAKER = 0;

Outcome check(Comm &comm, tpfsdp_backend_call *call, int64_t size_bytes) {
  if (size_bytes < 0)
    return Outcome::error(TPFSDP_ERR_INVALID_ARGUMENT, "a common region of " + std::to_string(size_bytes) + " bytes");
  const Making &making = comm.making;
  if (making.common && making.size_bytes != size_bytes)
    return Outcome::error(TPFSDP_ERR_STATE, comm.rank, making.offered,
                          "a common region of " + std::to_string(making.size_bytes) +
                              " bytes is half made; ask for it again, or give it up");
  Outcome end = sticky(comm, Look::ACQUIRE);
  return end.ok() ? refuse_unended(comm, call, KIND_COMMON_REGION) : std::move(end);
}

/// part: 1 shows the memory, 2 says that it is mapped.
Posting posting_of(const Comm &comm, uint8_t part) {
  const Making &making = comm.making;
  Posting posting{};
  posting.op.struct_size = sizeof posting.op;
  posting.op.kind = KIND_COMMON_REGION;
  posting.op.dtype = posting.op.output_dtype = TPFSDP_DTYPE_U8;
  posting.op.source = -1;
  posting.op.unit = -1;
  posting.op.element_count = posting.elements = making.size_bytes;
  posting.phase = part;
  if (part == 1 && comm.rank == MAKER) {
    posting.staged = &making.common->mapping.memory;
    posting.source = posting.staged->data;
    posting.elements = static_cast<int64_t>(posting.staged->bytes);
  }
  return posting;
}

/// What failed makings and destroyed regions have left, as far as all peers have passed it.
void sweep(Comm &comm) { comm.segment->sweep(comm.rank, done_by_all(comm.layout, comm.rank, comm.world_size)); }

/// All that this rank can fail in before peers hear of it, then the first sequence.
Outcome offer(Comm &comm, int64_t size_bytes) {
  sweep(comm);
  std::erase_if(comm.commons, [](const auto &common) { return common->has_left; });
  comm.commons.reserve(comm.commons.size() + 1);
  Making making;
  making.size_bytes = size_bytes;
  making.common = std::make_shared<Common>(comm.segment, comm.alarm);
  making.common->bytes = static_cast<size_t>(size_bytes);
  making.region.reset(new Region{comm.segment, comm.alarm, comm.rank, comm.world_size, {}, making.common});
  if (comm.rank == MAKER) {
    Memory memory{};
    Outcome end = comm.segment->allocate(Common::head_bytes(comm.world_size) + making.common->bytes, &memory);
    if (!end.ok()) return end;
    memory.owner = MAKER;
    format_common(memory, comm.world_size);
    try {
      making.common->mapping = comm.segment->map_own(memory);
    } catch (...) {
      comm.segment->free(memory);
      throw;
    }
  }
  comm.making = std::move(making);
  comm.making.offered = comm.making.common->number = post_op(comm, posting_of(comm, 1));
  return {};
}

/// An error of a sequence before it leaves the making as it is.
Outcome complete_part(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence, bool may_wait) {
  Outcome end = complete(comm, call, sequence, may_wait);
  if (!end.ok() && comm.done >= sequence) abandon_making(comm);
  return end;
}

}  // namespace

void Making::DeleteRegion::operator()(Region *region) const noexcept { delete region; }

Outcome make_common(Comm &comm, tpfsdp_backend_call *call, int64_t size_bytes, bool may_wait, Region **out_region) {
  Outcome end = check(comm, call, size_bytes);
  if (!end.ok()) return end;
  if (!comm.making.common) {
    end = make_room(comm, call, may_wait);
    if (end.ok()) end = offer(comm, size_bytes);
    if (!end.ok()) return end;
  }
  if (comm.making.mapped == 0) {
    end = complete_part(comm, call, comm.making.offered, may_wait);
    if (end.ok()) end = make_room(comm, call, may_wait);
    if (!end.ok()) return end;
#if !defined(TPFSDP_MUTANT_COMMON_REGION_OF_SOME)
    comm.making.mapped = post_op(comm, posting_of(comm, 2));
#endif
  }
  end = complete_part(comm, call, comm.making.mapped, may_wait);
  if (!end.ok()) return end;

  if (comm.rank == MAKER) comm.segment->share();
  comm.commons.push_back(std::move(comm.making.common));
  *out_region = comm.making.region.release();
  comm.making = {};
  sweep(comm);
  return end;
}

Outcome map_offered(Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  if (comm.rank == MAKER) return {};
  const Record &record = comm.layout.record(MAKER, sequence);
  Common &common = *comm.making.common;
  Outcome end;
  try {
    end = comm.segment->map_peers(MAKER, {record.body.region, record.body.place},
                                  Common::head_bytes(comm.world_size) + common.bytes, &common.mapping);
  } catch (const std::bad_alloc &) {
    end = Outcome::error(TPFSDP_ERR_OUT_OF_MEMORY, "no room in the addresses of this process");
  }
  if (end.ok()) return end;
  return Outcome::error(end.status, comm.rank, sequence,
                        "rank " + std::to_string(comm.rank) + " cannot map " + std::to_string(common.bytes) +
                            " bytes in " + describe(comm, call, sequence) + ": " + end.text);
}

void abandon_making(Comm &comm) noexcept {
  const Making making = std::exchange(comm.making, {});
  if (!making.common || making.common->mapping.memory.data == nullptr) return;
  Common &common = *making.common;
  // This rank has said that it has the region, and does not know what the others have said.
  const bool may_be_made = making.mapped > comm.done;
  if (comm.rank != MAKER) return may_be_made ? leave(common) : comm.segment->unmap(common.mapping, false);
  comm.segment->unmap_readable(common.mapping);
  Memory memory = common.mapping.memory;
  memory.exposed = making.offered + 1;
  if (may_be_made) {
    common.alarm->words.publish(common.released_by(MAKER), RELEASED_FOR_GOOD, Point::RELEASE);
    memory.exposed = RELEASED_FOR_GOOD;  // kept as long as any of the comm is left
  }
  if (memory.exposed <= done_by_all(comm.layout, comm.rank, comm.world_size))
    comm.segment->free(memory);
  else
    comm.segment->keep(memory);
}

}  // namespace tpfsdp::host
