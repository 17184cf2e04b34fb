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

std::string line_of(const ParamGroup &unit, const ShardedParam &p) {
  constexpr const char *kReshard[] = {"auto", "always", "never", "to size "};
  std::string line =
      cat("parameter ", p.param->full_name(), " of unit ", unit.name, ": ", dtype_name(p.param->dtype()), " ",
          shape_text(p.param->shape()), p.param->requires_grad() ? ", trainable" : ", frozen", ", registered ",
          p.param->place_count(), " time(s), reshard ", kReshard[static_cast<int>(unit.state.reshard_kind)]);
  if (unit.state.reshard_size > 0) append_text(line, unit.state.reshard_size);
  if (unit.init_mode == InitMode::kVerify) append_text(line, cat(", values ", p.value_hash));
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

DigestExchange::DigestExchange(const Root &root) {
  for (const Ref<Group> &group : root.groups) {
    auto entry = std::make_unique<Entry>();
    entry->group = group;
    std::string text;
    for (const ParamGroup *unit : root.units) {
      if (!(unit->group == group)) continue;
      for (const ShardedParam &p : unit->params) {
        entry->lines.push_back(line_of(*unit, p));
        append_text(text, entry->lines.back());
      }
    }
    entry->mine = {hash_text(text), entry->lines.size()};
    entry->all.resize(static_cast<size_t>(2 * group->size()));
    entries_.push_back(std::move(entry));
  }
  for (const auto &entry : entries_) start(*entry);
}

void DigestExchange::start(Entry &entry) {
  const int64_t mine = 2, all = 2 * entry.group->size();
  entry.work = all_gather(entry.group, view_of(entry.mine.data(), &mine, TPFSDP_DTYPE_U64),
                          view_of(entry.all.data(), &all, TPFSDP_DTYPE_U64), {}, true);
}

Status DigestExchange::wait(bool may_wait) {
  for (const auto &entry : entries_) {
    if (entry->work && entry->work->wait(may_wait) == TPFSDP_PENDING) return TPFSDP_PENDING;
    entry->work = nullptr;
    for (size_t i = 2; i < entry->all.size(); ++i) {
      if (entry->all[i] != entry->all[i % 2]) explain(*entry);
    }
  }
  return TPFSDP_OK;
}

// Every rank has seen the same unequal digests, so every rank comes here: the whole texts are gathered and compared.
void DigestExchange::explain(const Entry &entry) const {
  std::string mine;
  for (const std::string &line : entry.lines) append_text(mine, cat(line, "\n"));
  const int64_t one = 1, world = entry.group->size();
  int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(world));
  all_gather(entry.group, view_of(&length, &one, TPFSDP_DTYPE_I64), view_of(lengths.data(), &world, TPFSDP_DTYPE_I64),
             {}, false);
  int64_t total = 0;
  for (const int64_t part : lengths) total += part;
  std::string all(static_cast<size_t>(total), '\0');
  all_gather(entry.group, view_of(mine.data(), &length, TPFSDP_DTYPE_U8), view_of(all.data(), &total, TPFSDP_DTYPE_U8),
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
    std::string text = cat("ranks of group ", entry.group->name(), " start with different models");
    for (size_t rank = 0; rank < ranks.size(); ++rank) append_text(text, cat("; rank ", rank, " has ", of(rank)));
    ErrorDetail detail;
    detail.status = TPFSDP_ERR_MISMATCH;
    detail.group = entry.group->name();
    detail.origin = entry.group.get();
    detail.message = cat(text, "; build the same model with the same values on every rank, or use init BROADCAST");
    throw Failure(std::move(detail));
  }
  fail(TPFSDP_ERR_INTERNAL, "digests of group ", entry.group->name(),
       " differ, but no parameter does; please report it");
}

}  // namespace tpfsdp
