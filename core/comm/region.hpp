// SPDX-License-Identifier: Apache-2.0
// Memory of this rank that the peers of a group may read in place, and memory that all ranks of a group have mapped.
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

// Of which a host has one copy: full parameters that all ranks of the group read, each rank writes its part of. The
// order of use is the caller's (backend.h): wait_released, write, submit a gather, complete it, read, release.
class CommonRegion {
 public:
  // The backend has such memory; a group of one always does.
  static bool is_possible(const Group &group);
  // The part of memory of all ranks that is entered in the account of one: those of all ranks add up to the whole.
  static int64_t part_bytes(int64_t size_bytes, int32_t rank, int32_t world_size);

  CommonRegion() = default;
  CommonRegion(CommonRegion &&other) noexcept;
  CommonRegion &operator=(CommonRegion &&other) noexcept;
  ~CommonRegion();

  // Collective: zero-filled memory into an empty region. OK or PENDING; called again it goes on. An error that did not
  // come from a peer is posted by the caller, and then no rank has the region. This rank's part is entered in the
  // account for the life of the region.
  Status create(Group &group, int64_t size_bytes, MemoryAccount *account, bool may_wait);

  explicit operator bool() const { return data_ != nullptr; }
  std::byte *data() const { return data_; }                // to write this rank's part
  const std::byte *readable() const { return readable_; }  // the same memory; of processes it cannot be written here
  int64_t size_bytes() const { return size_bytes_; }
  int64_t part_bytes() const { return part_bytes_; }
  tpfsdp_backend_region *backend_region() const { return region_; }  // null in a group of one

  void release() noexcept;  // what was gathered here is not used by this rank any more
  Status wait_released(bool may_wait);
  void protect(bool read_only);  // as of Region; for data()

 private:
  void free() noexcept;

  std::byte *data_ = nullptr;
  const std::byte *readable_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t part_bytes_ = 0;
  tpfsdp_backend_region *region_ = nullptr;
  Group *group_ = nullptr;  // kept alive by the owner of the region
  Buffer private_;
  MemoryAccount *account_ = nullptr;
};

}  // namespace tpfsdp
