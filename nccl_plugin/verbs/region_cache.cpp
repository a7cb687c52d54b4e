#include "verbs/region_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace fabric::verbs {

unsigned RegisteredBuffer::rails() const {
  unsigned rails = 0;
  for (std::size_t rail = 0; rail < regions_.size(); ++rail) {
    rails |= regions_[rail] == nullptr ? 0U : 1U << rail;
  }
  return rails;
}

RegionCache::RegionCache(std::vector<std::shared_ptr<Device>> devices, bool relaxed)
    : relaxed_(relaxed), devices_(std::move(devices)) {}

void RegionCache::set_devices(std::vector<std::shared_ptr<Device>> devices) {
  const std::lock_guard lock(mutex_);
  devices_ = std::move(devices);
}

// Is it registered with every device that is here and did not refuse it?
bool RegionCache::serves_all(const RegisteredBuffer& buffer) const {
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
    const Region* region = buffer.on(rail);
    const bool has = region != nullptr && &region->device() == devices_[rail].get();
    if (devices_[rail] != nullptr && !devices_[rail]->gone() && !has &&
        buffer.refused_[rail].lock() != devices_[rail]) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<RegisteredBuffer> RegionCache::make(const Pages& pages, Error& error,
                                                    const DmaBuf* dmabuf) {
  auto buffer = std::make_shared<RegisteredBuffer>();
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
    if (devices_[rail] == nullptr || devices_[rail]->gone()) {
      continue;
    }
    std::shared_ptr<Region>& region = buffer->regions_[rail];
    for (std::size_t before = 0; before < rail && region == nullptr; ++before) {
      region = devices_[before] == devices_[rail] ? buffer->regions_[before] : nullptr;
    }
    Error refusal;
    if (region == nullptr) {
      region = Region::make(devices_[rail], pages.start(), pages.length, relaxed_, refusal, dmabuf);
    }
    if (region == nullptr) {
      buffer->errors_.push_back(std::move(refusal));
      buffer->refused_[rail] = devices_[rail];
    }
  }
  if (buffer->rails() == 0) {
    error = buffer->errors_.empty() ? Error{ENODEV, "no rail has an RDMA device"}
                                    : buffer->errors_.front();
    return nullptr;
  }
  return buffer;
}

RegionCache::Pages RegionCache::pages_of(const void* address, std::size_t length) {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = start / page * page;
  const std::uintptr_t end = (start + std::max<std::size_t>(length, 1) + page - 1) / page * page;
  return {first, end - first};
}

std::shared_ptr<const RegisteredBuffer> RegionCache::make_apart(void* address, std::size_t length,
                                                                Error& error) {
  const std::lock_guard lock(mutex_);
  return make(pages_of(address, length), error, nullptr);
}

std::shared_ptr<const RegisteredBuffer> RegionCache::renew(
    std::shared_ptr<const RegisteredBuffer> held, void* address, std::size_t length,
    std::int64_t now, const DmaBuf* dmabuf) {
  const std::lock_guard lock(mutex_);
  if (serves_all(*held) || now < held->renew_at_) {
    return held;
  }
  Error refusal;
  if (auto anew = acquire_locked(pages_of(address, length), refusal, dmabuf)) {
    return anew;
  }
  held->renew_pause_ = std::clamp(2 * held->renew_pause_, kRenewLeastNs, kRenewMostNs);
  held->renew_at_ = now + held->renew_pause_;
  return held;
}

std::shared_ptr<const RegisteredBuffer> RegionCache::acquire(void* address, std::size_t length,
                                                             Error& error, const DmaBuf* dmabuf) {
  const std::lock_guard lock(mutex_);
  return acquire_locked(pages_of(address, length), error, dmabuf);
}

std::shared_ptr<RegisteredBuffer> RegionCache::acquire_locked(const Pages& pages, Error& error,
                                                              const DmaBuf* dmabuf) {
  if (dmabuf != nullptr) {
    return make(pages, error, dmabuf);
  }
  const std::uintptr_t first = pages.first;
  const std::uintptr_t end = first + pages.length;
  trim_locked();
  // One that begins at or before these pages and covers them serves as well.
  for (auto found = held_.upper_bound({first, SIZE_MAX}); found != held_.begin();) {
    --found;
    if (found->first.first + found->first.length < end) {
      continue;
    }
    if (auto buffer = found->second.lock(); buffer != nullptr && serves_all(*buffer)) {
      return buffer;
    }
  }
  auto buffer = make(pages, error, nullptr);
  if (buffer != nullptr) {
    held_[pages] = buffer;
  }
  return buffer;
}

void RegionCache::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

void RegionCache::trim_locked() {
  std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
}

std::size_t RegionCache::size() {
  const std::lock_guard lock(mutex_);
  trim_locked();
  return held_.size();
}

}  // namespace fabric::verbs
