// SPDX-License-Identifier: Apache-2.0
// Records with struct_size across versions. In: shorter than ours, missing fields are zero; longer, the tail must be
// zero, else the caller asks for something that this library does not know. Out: never past the caller's size.
#pragma once

#include "base/error.hpp"

#include <tpfsdp/base.h>

#include <algorithm>
#include <cstring>

namespace tpfsdp::capi {

// The caller's record, completed with defaults. NULL: all defaults.
template <class Record>
Record read_options(const Record *given, const char *name) {
  Record record{};
  record.struct_size = sizeof(Record);
  if (!given) return record;
  const uint32_t size = given->struct_size;
  if (size < sizeof(uint32_t) * 2 || size % 8 != 0)
    fail(TPFSDP_ERR_ABI, name, ".struct_size is ", size, "; start the record from TPFSDP_INIT(", name,
         "), whose size is ", sizeof(Record), " here");
  const auto *bytes = reinterpret_cast<const unsigned char *>(given);
  for (size_t i = sizeof(Record); i < size; ++i) {
    if (bytes[i] != 0)
      fail(TPFSDP_ERR_ABI, name, " of ", size, " bytes sets something past the ", sizeof(Record),
           " bytes that this library knows: use a newer library");
  }
  std::memcpy(&record, given, std::min<size_t>(size, sizeof(Record)));
  record.struct_size = sizeof(Record);
  return record;
}

// Fills the caller's record from ours; what only the caller's knows is zeroed.
template <class Record>
void write_info(Record *out, Record &info, const char *name) {
  if (!out) fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is NULL");
  const uint32_t size = out->struct_size;
  if (size < sizeof(uint32_t) * 2 || size % 8 != 0)
    fail(TPFSDP_ERR_ABI, name, "->struct_size is ", size, "; start the record from TPFSDP_INIT, whose size is ",
         sizeof(Record), " here");
  info.struct_size = size;
  std::memcpy(out, &info, std::min<size_t>(size, sizeof(Record)));
  if (size > sizeof(Record)) std::memset(reinterpret_cast<char *>(out) + sizeof(Record), 0, size - sizeof(Record));
}

}  // namespace tpfsdp::capi
