// SPDX-License-Identifier: Apache-2.0
#include "comm/region.hpp"

#include "comm/backend_call.hpp"
#include "comm/group.hpp"

#include <algorithm>
#include <utility>

namespace tpfsdp {
namespace {

void protect(const Group *group, tpfsdp_backend_region *region, bool read_only) {
  if (!region) return;
  tpfsdp_backend_call call(group->owner());
  const Status status = group->owner().backend().region_protect(&call, region, read_only ? 1 : 0);
  if (status != TPFSDP_OK) throw Failure(failure_of(call, status));
}

}  // namespace

Region::Region(Group &group, int64_t size_bytes, MemoryAccount *account) : size_bytes_(size_bytes) {
  if (!group.comm()) {
    private_ = Buffer(size_bytes, account);
    data_ = private_.data();
    return;
  }
  tpfsdp_backend_call call(group.owner());
  void *data = nullptr;
  const Status status = group.owner().backend().region_create(&call, group.comm(), size_bytes, &data, &region_);
  if (status != TPFSDP_OK) {
    ErrorDetail detail = failure_of(call, status);
    detail.group = group.name();
    throw Failure(std::move(detail));
  }
  data_ = static_cast<std::byte *>(data);
  group_ = &group;
  account_ = account;
  if (account_) account_->add(size_bytes_);
}

Region::Region(Region &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      region_(std::exchange(other.region_, nullptr)),
      group_(std::exchange(other.group_, nullptr)),
      private_(std::move(other.private_)),
      account_(std::exchange(other.account_, nullptr)) {}

Region &Region::operator=(Region &&other) noexcept {
  if (this == &other) return *this;
  free();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  region_ = std::exchange(other.region_, nullptr);
  group_ = std::exchange(other.group_, nullptr);
  private_ = std::move(other.private_);
  account_ = std::exchange(other.account_, nullptr);
  return *this;
}

Region::~Region() { free(); }

void Region::free() noexcept {
  if (region_) group_->owner().backend().region_destroy(region_);
  if (account_) account_->subtract(size_bytes_);
  region_ = nullptr;
  account_ = nullptr;
}

void Region::protect(bool read_only) { tpfsdp::protect(group_, region_, read_only); }

// ---- CommonRegion ------------------------------------------------------------------------------------------------

bool CommonRegion::is_possible(const Group &group) {
  return !group.comm() || (group.owner().backend().capabilities & TPFSDP_BACKEND_CAN_SHARE_REGIONS) != 0;
}

int64_t CommonRegion::part_bytes(int64_t size_bytes, int32_t rank, int32_t world_size) {
  return size_bytes / world_size + (rank < size_bytes % world_size ? 1 : 0);
}

Status CommonRegion::create(Group &group, int64_t size_bytes, MemoryAccount *account, bool may_wait) {
  TPFSDP_CHECK(!data_);
  if (!group.comm()) {
    private_ = Buffer(std::max<int64_t>(size_bytes, 1), nullptr);
    data_ = private_.data();
    readable_ = data_;
  } else {
    void *data = nullptr;
    const void *readable = nullptr;
    if (group.create_common(size_bytes, may_wait, &data, &readable, &region_) == TPFSDP_PENDING) return TPFSDP_PENDING;
    data_ = static_cast<std::byte *>(data);
    readable_ = static_cast<const std::byte *>(readable);
  }
  group_ = &group;
  size_bytes_ = size_bytes;
  part_bytes_ = part_bytes(size_bytes, group.rank(), group.size());
  account_ = account;
  if (account_) account_->add(part_bytes_);
  return TPFSDP_OK;
}

CommonRegion::CommonRegion(CommonRegion &&other) noexcept { *this = std::move(other); }

CommonRegion &CommonRegion::operator=(CommonRegion &&other) noexcept {
  if (this == &other) return *this;
  free();
  data_ = std::exchange(other.data_, nullptr);
  readable_ = std::exchange(other.readable_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  part_bytes_ = std::exchange(other.part_bytes_, 0);
  region_ = std::exchange(other.region_, nullptr);
  group_ = std::exchange(other.group_, nullptr);
  private_ = std::move(other.private_);
  account_ = std::exchange(other.account_, nullptr);
  return *this;
}

CommonRegion::~CommonRegion() { free(); }

void CommonRegion::free() noexcept {
  if (region_) group_->owner().backend().region_destroy(region_);
  if (account_) account_->subtract(part_bytes_);
  region_ = nullptr;
  account_ = nullptr;
}

void CommonRegion::release() noexcept {
  if (region_) group_->owner().backend().region_release(region_);
}

Status CommonRegion::wait_released(bool may_wait) {
  return region_ ? group_->wait_released(region_, may_wait) : TPFSDP_OK;
}

void CommonRegion::protect(bool read_only) { tpfsdp::protect(group_, region_, read_only); }

}  // namespace tpfsdp
