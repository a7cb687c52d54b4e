// Room for copies of small messages in registered memory: one pool for each sending comm, of as
// many bytes as the core ever has copied at a time, in blocks of two sizes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/copy_pool.h"
#include "verbs/region_cache.h"

namespace fabric::verbs {

class RegisteredCopyPool final : public core::CopyPool {
 public:
  // `now`: monotonic, ns. Null: `error` says why no device registers it.
  static std::unique_ptr<RegisteredCopyPool> make(RegionCache& cache,
                                                  std::function<std::int64_t()> now, Error& error);

  [[nodiscard]] std::size_t largest() const override { return kLarge; }
  std::byte* take(std::size_t size) override;
  void release(std::byte* copy) override;
  // With the devices that are here now. It stays registered until the copy is released.
  [[nodiscard]] core::Region region(const std::byte* copy) override;

  static constexpr std::size_t kSmall = 256;               // bytes of a block
  static constexpr std::size_t kLarge = core::kCopyLimit;  // of the others
  static constexpr std::size_t kSmallBlocks = core::kCopyMessages;
  static constexpr std::size_t kLargeBlocks = 2 * core::kCopyBudget / core::kCopyLimit;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  RegisteredCopyPool(RegionCache& cache, std::function<std::int64_t()> now)
      : cache_(cache), now_(std::move(now)) {}
  [[nodiscard]] std::size_t block_of(const std::byte* copy) const;

  RegionCache& cache_;
  const std::function<std::int64_t()> now_;
  std::unique_ptr<std::byte[], Free> bytes_;  // outlives its registrations
  std::shared_ptr<const RegisteredBuffer> region_;
  // By block: what its copy is known by, which may be a former one.
  std::array<std::shared_ptr<const RegisteredBuffer>, kSmallBlocks + kLargeBlocks> known_by_;
  std::vector<std::byte*> small_;  // free blocks
  std::vector<std::byte*> large_;
};

}  // namespace fabric::verbs
