// SPDX-License-Identifier: Apache-2.0
// Words for people: an error names the operation, its sequence, the comm, the unit and the ranks; never an address.
#ifndef TPFSDP_BACKENDS_HOST_TEXT_HPP
#define TPFSDP_BACKENDS_HOST_TEXT_HPP

#include <cstdint>
#include <string>
#include <vector>

#include <tpfsdp/backend.h>

#include "layout.hpp"
#include "wait.hpp"

namespace tpfsdp::host {

const char *name_of(Life life);
const char *name_of_kind(tpfsdp_backend_kind kind);
const char *name_of_dtype(tpfsdp_dtype dtype);
const char *name_of_status(tpfsdp_status status);
/// "all-gather", "reset", "shutdown": what a record posts.
const char *name_of(const Record::Body &body);
const char *name_of(const Comm &comm, const Awaiting &awaiting);
int32_t unit_of(const Comm &comm, const Awaiting &awaiting);

/// " of unit 'layers.0'", or nothing.
std::string unit_text(const Comm &comm, tpfsdp_backend_call *call, int32_t unit);
/// "all-gather at sequence 12 of unit 'layers.0' on comm 'world'", for a sequence of this rank.
std::string describe(const Comm &comm, tpfsdp_backend_call *call, uint64_t sequence);
std::string describe(const Comm &comm, const Awaiting &awaiting);
/// "rank 3", "ranks 0-2, 5".
std::string ranks_text(const std::vector<int32_t> &ranks);

}  // namespace tpfsdp::host

#endif
