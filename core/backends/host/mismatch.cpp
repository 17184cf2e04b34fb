// SPDX-License-Identifier: Apache-2.0
#include "mismatch.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "record.hpp"
#include "text.hpp"

namespace tpfsdp::host {

namespace {

/// Ranks that say the same.
struct Party {
  uint64_t fingerprint;
  std::vector<int32_t> ranks;
};

}  // namespace

Outcome mismatch(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence) {
  std::vector<Party> parties;
  for (int32_t rank = 0; rank < comm.world_size; ++rank) {
    const uint64_t fingerprint = comm.layout.record(rank, sequence).body.fingerprint;
    const auto same = std::find_if(parties.begin(), parties.end(),
                                   [&](const Party &party) { return party.fingerprint == fingerprint; });
    if (same == parties.end())
      parties.push_back({fingerprint, {rank}});
    else
      same->ranks.push_back(rank);
  }

  std::string text = "ranks disagree at sequence " + std::to_string(sequence) + " on comm '" + comm.name + "': ";
  const Party *majority = nullptr;
  for (const Party &party : parties) {
    if (&party != &parties.front()) text += " | ";
    text += ranks_text(party.ranks) + ": " + fields_text(comm, call, comm.layout.record(party.ranks.front(), sequence));
    if (2 * party.ranks.size() > static_cast<size_t>(comm.world_size)) majority = &party;
  }
  int32_t odd = -1;
  if (majority != nullptr) {
    std::vector<int32_t> others;
    for (const Party &party : parties)
      if (&party != majority) others.insert(others.end(), party.ranks.begin(), party.ranks.end());
    std::sort(others.begin(), others.end());
    odd = others.front();
    text += "; odd one out: " + ranks_text(others);
  }
  return Outcome::error(TPFSDP_ERR_MISMATCH, odd, sequence,
                        text + "; nothing was read. Make the ranks call alike, reset on every rank, then go on");
}

}  // namespace tpfsdp::host
