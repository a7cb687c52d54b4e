// Room for copies of small messages in registered memory: one pool for each sending comm, of as
// many bytes as the core ever has copied at a time, in blocks of two sizes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/copy_pool.h"
#include "verbs/region_cache.h"

namespace fabric::verbs {

class RegisteredCopyPool final : public core::CopyPool {
 public:
  // Null: `error` says why no device registers it.
  static std::unique_ptr<RegisteredCopyPool> make(RegionCache& cache, Error& error);

  [[nodiscard]] std::size_t largest() const override { return kLarge; }
  std::byte* take(std::size_t size) override;
  void release(std::byte* copy) override;
  // With the devices that are here now.
  [[nodiscard]] core::Region region(const std::byte* copy) override;

  static constexpr std::size_t kSmall = 256;               // bytes of a block
  static constexpr std::size_t kLarge = core::kCopyLimit;  // of the others
  static constexpr std::size_t kSmallBlocks = core::kCopyMessages;
  static constexpr std::size_t kLargeBlocks = 2 * core::kCopyBudget / core::kCopyLimit;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  explicit RegisteredCopyPool(RegionCache& cache) : cache_(cache) {}

  RegionCache& cache_;
  std::unique_ptr<std::byte[], Free> bytes_;  // outlives its registration
  std::shared_ptr<const RegisteredBuffer> region_;
  std::vector<std::shared_ptr<const RegisteredBuffer>> former_;  // copies may be known by them
  std::vector<std::byte*> small_;                                // free blocks
  std::vector<std::byte*> large_;
};

}  // namespace fabric::verbs
