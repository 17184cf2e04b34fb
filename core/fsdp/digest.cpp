// SPDX-License-Identifier: Apache-2.0
#include "fsdp/digest.hpp"

#include "base/hash.hpp"
#include "comm/collectives.hpp"
#include "fsdp/root.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

tpfsdp_view view_of(void *data, const int64_t *count, tpfsdp_dtype dtype) {
  tpfsdp_view view{};
  view.data = *count > 0 ? data : nullptr;
  view.size_bytes = dtype_bytes(dtype, *count);
  view.shape = count;
  view.ndim = 1;
  view.dtype = dtype;
  view.device_type = TPFSDP_DEVICE_CPU;
  return view;
}

std::string line_of(const ParamGroup &unit, size_t index) {
  const ShardedParam &p = unit.params[index];
  const ParamLayout &at = unit.layout.params[index];
  constexpr const char *kReshard[] = {"auto", "always", "never", "to size "};
  std::string line =
      cat("parameter ", p.param->full_name(), " of unit ", unit.name, ": ", dtype_name(p.param->dtype()), " ",
          shape_text(p.param->shape()), p.param->requires_grad() ? ", trainable" : ", frozen", ", registered ",
          p.param->place_count(), " time(s), reshard ", kReshard[static_cast<int>(unit.state.reshard_kind)]);
  if (unit.state.reshard_size > 0) append_text(line, unit.state.reshard_size);
  append_text(line, cat(", unshard mode ", mode_name(unit.mode.mode)));
  const Ownership &who = unit.layout.ownership;
  if (who.is_contiguous) append_text(line, cat(", contiguous, granules of ", who.granule_rows, " rows"));
  if (at.full_dtype != at.dtype || at.reduce_dtype != at.dtype)
    append_text(line, cat(", computed in ", dtype_name(at.full_dtype), ", reduced in ", dtype_name(at.reduce_dtype)));
  const bool has_values = unit.state.unit.get() != nullptr;  // else it is being made
  if (unit.init_mode == InitMode::kVerify && has_values) append_text(line, cat(", values ", p.value_hash));
  return line;
}

std::vector<std::string> split_lines(const std::string &text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

Digest::Digest(Ref<Group> group, const std::vector<const ParamGroup *> &units, UnshardMode wanted)
    : group_(std::move(group)), all_(static_cast<size_t>(group_->size())) {
  std::string text;
  for (const ParamGroup *unit : units) {
    for (size_t i = 0; i < unit->params.size(); ++i) {
      lines_.push_back(line_of(*unit, i));
      append_text(text, lines_.back());
    }
  }
  mine_ = {hash_text(text), lines_.size(), static_cast<uint64_t>(wanted)};
  constexpr int64_t kWords = sizeof(Offer) / sizeof(uint64_t);
  const int64_t mine = kWords, all = kWords * group_->size();
  work_ = all_gather(group_, view_of(&mine_, &mine, TPFSDP_DTYPE_U64), view_of(all_.data(), &all, TPFSDP_DTYPE_U64), {},
                     true);
}

Status Digest::wait(bool may_wait) {
  if (work_ && work_->wait(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  work_ = nullptr;
  for (const Offer &offer : all_) {
    if (offer.hash != mine_.hash || offer.line_count != mine_.line_count) explain();
  }
  return TPFSDP_OK;
}

UnshardMode Digest::agreed_mode() const {
  uint64_t most = 0;
  for (const Offer &offer : all_) most = std::max(most, offer.wanted);
  return static_cast<UnshardMode>(most);
}

DigestExchange::DigestExchange(const Root &root, UnshardMode wanted) {
  for (const Ref<Group> &group : root.groups) {
    std::vector<const ParamGroup *> units;
    for (const ParamGroup *unit : root.units) {
      if (unit->group == group) units.push_back(unit);
    }
    digests_.push_back(std::make_unique<Digest>(group, units, wanted));
  }
}

Status DigestExchange::wait(bool may_wait) {
  for (const auto &digest : digests_) {
    if (digest->wait(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
  }
  return TPFSDP_OK;
}

UnshardMode DigestExchange::agreed_mode(const Group &group) const {
  for (const auto &digest : digests_) {
    if (&digest->group() == &group) return digest->agreed_mode();
  }
  return UnshardMode::kPrivate;
}

// Every rank has seen the same unequal digests, so every rank comes here: the whole texts are gathered and compared.
void Digest::explain() const {
  std::string mine;
  for (const std::string &line : lines_) append_text(mine, cat(line, "\n"));
  const int64_t one = 1, world = group_->size();
  int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(world));
  all_gather(group_, view_of(&length, &one, TPFSDP_DTYPE_I64), view_of(lengths.data(), &world, TPFSDP_DTYPE_I64), {},
             false);
  int64_t total = 0;
  for (const int64_t part : lengths) total += part;
  std::string all(static_cast<size_t>(total), '\0');
  all_gather(group_, view_of(mine.data(), &length, TPFSDP_DTYPE_U8), view_of(all.data(), &total, TPFSDP_DTYPE_U8),
             lengths, false);

  std::vector<std::vector<std::string>> ranks;
  size_t longest = 0;
  for (size_t at = 0, rank = 0; rank < lengths.size(); at += static_cast<size_t>(lengths[rank++])) {
    ranks.push_back(split_lines(all.substr(at, static_cast<size_t>(lengths[rank]))));
    longest = std::max(longest, ranks.back().size());
  }
  for (size_t i = 0; i < longest; ++i) {
    const auto of = [&](size_t rank) {
      return i < ranks[rank].size() ? ranks[rank][i] : std::string("no such parameter");
    };
    bool differs = false;
    for (size_t rank = 1; rank < ranks.size(); ++rank) differs = differs || of(rank) != of(0);
    if (!differs) continue;
    std::string text = cat("ranks of group ", group_->name(), " start with different models");
    for (size_t rank = 0; rank < ranks.size(); ++rank) append_text(text, cat("; rank ", rank, " has ", of(rank)));
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_MISMATCH;
    detail.group = group_->name();
    detail.origin = group_.get();
    detail.message = cat(text, "; build the same model with the same values on every rank, or use init BROADCAST");
    throw Failure(std::move(detail));
  }
  fail(TPFSDP_ERR_INTERNAL, "digests of group ", group_->name(), " differ, but no parameter does; please report it");
}

}  // namespace tpfsdp
