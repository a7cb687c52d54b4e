#include "verbs/copy_pool.h"

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace fabric::verbs {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSmallBytes = RegisteredCopyPool::kSmall * RegisteredCopyPool::kSmallBlocks;
constexpr std::size_t kBytes =
    kSmallBytes + RegisteredCopyPool::kLarge * RegisteredCopyPool::kLargeBlocks;
static_assert(kBytes % kPage == 0);

}  // namespace

void RegisteredCopyPool::Free::operator()(std::byte* bytes) const { std::free(bytes); }

std::unique_ptr<RegisteredCopyPool> RegisteredCopyPool::make(RegionCache& cache,
                                                             std::function<std::int64_t()> now,
                                                             Error& error) {
  std::unique_ptr<RegisteredCopyPool> pool(new RegisteredCopyPool(cache, std::move(now)));
  pool->bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kBytes)));
  if (pool->bytes_ == nullptr) {
    error = failed("aligned_alloc", "this host", ENOMEM);
    return nullptr;
  }
  pool->region_ = cache.acquire(pool->bytes_.get(), kBytes, error);
  if (pool->region_ == nullptr) {
    return nullptr;
  }
  for (std::size_t i = 0; i < kSmallBlocks; ++i) {
    pool->small_.push_back(pool->bytes_.get() + i * kSmall);
  }
  for (std::size_t i = 0; i < kLargeBlocks; ++i) {
    pool->large_.push_back(pool->bytes_.get() + kSmallBytes + i * kLarge);
  }
  return pool;
}

std::byte* RegisteredCopyPool::take(std::size_t size) {
  std::vector<std::byte*>& blocks = size <= kSmall && !small_.empty() ? small_ : large_;
  if (blocks.empty()) {
    return nullptr;
  }
  std::byte* block = blocks.back();
  blocks.pop_back();
  return block;
}

std::size_t RegisteredCopyPool::block_of(const std::byte* copy) const {
  const auto at = static_cast<std::size_t>(copy - bytes_.get());
  return at < kSmallBytes ? at / kSmall : kSmallBlocks + (at - kSmallBytes) / kLarge;
}

void RegisteredCopyPool::release(std::byte* copy) {
  const std::size_t block = block_of(copy);
  known_by_[block].reset();
  (block < kSmallBlocks ? small_ : large_).push_back(copy);
}

core::Region RegisteredCopyPool::region(const std::byte* copy) {
  region_ = cache_.renew(std::move(region_), bytes_.get(), kBytes, now_());
  return (known_by_[block_of(copy)] = region_).get();
}

}  // namespace fabric::verbs
