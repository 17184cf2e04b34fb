// SPDX-License-Identifier: Apache-2.0
#include "comm/region.hpp"

#include "comm/backend_call.hpp"
#include "comm/group.hpp"

#include <utility>

namespace tpfsdp {

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

void Region::protect(bool read_only) {
  if (!region_) return;
  tpfsdp_backend_call call(group_->owner());
  const Status status = group_->owner().backend().region_protect(&call, region_, read_only ? 1 : 0);
  if (status != TPFSDP_OK) throw Failure(failure_of(call, status));
}

}  // namespace tpfsdp
