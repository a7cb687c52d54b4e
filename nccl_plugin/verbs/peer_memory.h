// Page-aligned memory of this process that one device may read and the peer may write.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "verbs/path_terms.h"
#include "verbs/region.h"

namespace fabric::verbs {

class PeerMemory {
 public:
  // Zeros. Null: `error` says why.
  static std::unique_ptr<PeerMemory> make(std::shared_ptr<Device> device, std::size_t size,
                                          Error& error);

  [[nodiscard]] std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  [[nodiscard]] std::uint64_t address() const {
    return reinterpret_cast<std::uintptr_t>(bytes_.get());
  }
  [[nodiscard]] std::uint32_t local_key() const { return region_->local_key(); }
  [[nodiscard]] std::uint32_t remote_key() const { return region_->remote_key(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };

  std::unique_ptr<std::byte[], Free> bytes_;  // outlives the region
  std::size_t size_ = 0;
  std::unique_ptr<Region> region_;
};

}  // namespace fabric::verbs
