#include "host/regions.h"

#include <utility>

namespace fabric::host {

int Regions::kinds(const Transports& transports, std::size_t rails) {
  int everywhere = kMemoryHost | kMemoryCuda | kMemoryDmaBuf;
  for (std::size_t rail = 0; rail < rails; ++rail) {
    int here = 0;
    for (const auto& transport : transports) {
      here |= transport->memory_kinds(rail);
    }
    everywhere &= here;
  }
  return everywhere;
}

Region* Regions::add(const Transports& transports, const MemoryRange& range, std::string& why) {
  auto region = std::make_unique<Region>();
  region->device = (range.kind & ~kMemoryHost) != 0;
  bool usable = false;
  bool registered = false;
  for (const auto& transport : transports) {
    std::string refusal;
    auto made = transport->register_memory(range, refusal);
    registered = registered || made != nullptr;
    usable = usable || refusal.empty();
    why += refusal.empty() ? "" : (why.empty() ? "" : "; ") + refusal;
    region->of.push_back(std::move(made));
  }
  if (!usable) {
    return nullptr;
  }
  if (!registered) {
    return &plain_;
  }
  Region* const key = region.get();
  const std::scoped_lock lock(mutex_);
  held_.emplace(key, std::move(region));
  return key;
}

bool Regions::remove(Region* region) {
  if (region == &plain_) {
    return true;
  }
  std::unique_ptr<Region> ended;  // deregistered without the lock: it takes milliseconds
  const std::scoped_lock lock(mutex_);
  const auto found = held_.find(region);
  if (found == held_.end()) {
    return false;
  }
  ended = std::move(found->second);
  held_.erase(found);
  return true;
}

Registration Regions::of(const Transports& transports, Region* region, void* data,
                         std::size_t size) {
  if (region == nullptr) {
    for (const auto& transport : transports) {
      if (Memory* memory = transport->memory()) {
        return memory->make(data, size);
      }
    }
    return {};
  }
  const std::scoped_lock lock(mutex_);
  const auto found = held_.find(region);
  if (found == held_.end()) {
    return {};
  }
  for (std::size_t i = 0; i < transports.size() && i < found->second->of.size(); ++i) {
    Memory* memory = transports[i]->memory();
    TransportRegion* made = found->second->of[i].get();
    if (memory != nullptr && made != nullptr) {
      Registration registration = memory->use(*made, data, size);
      registration.device = found->second->device;
      return registration;
    }
  }
  return {};
}

}  // namespace fabric::host
