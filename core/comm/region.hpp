// SPDX-License-Identifier: Apache-2.0
// Memory of this rank that the peers of a group may read in place.
#pragma once

#include "memory/buffer.hpp"

#include <tpfsdp/backend.h>

namespace tpfsdp {

class Group;

class Region {
 public:
  Region() = default;
  // Zero-filled. In a group of one it is private memory. Entered in the account for its life.
  Region(Group &group, int64_t size_bytes, MemoryAccount *account);
  Region(Region &&other) noexcept;
  Region &operator=(Region &&other) noexcept;
  ~Region();

  std::byte *data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  tpfsdp_backend_region *backend_region() const { return region_; }  // null in a group of one
  // Debug: this rank cannot write it while read_only.
  void protect(bool read_only);

 private:
  void free() noexcept;

  std::byte *data_ = nullptr;
  int64_t size_bytes_ = 0;
  tpfsdp_backend_region *region_ = nullptr;
  Group *group_ = nullptr;  // kept alive by the owner of the region
  Buffer private_;
  MemoryAccount *account_ = nullptr;
};

}  // namespace tpfsdp
