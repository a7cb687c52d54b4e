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

std::unique_ptr<RegisteredCopyPool> RegisteredCopyPool::make(RegionCache& cache, Error& error) {
  std::unique_ptr<RegisteredCopyPool> pool(new RegisteredCopyPool(cache));
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

void RegisteredCopyPool::release(std::byte* copy) {
  (copy < bytes_.get() + kSmallBytes ? small_ : large_).push_back(copy);
  if (!former_.empty() && small_.size() == kSmallBlocks && large_.size() == kLargeBlocks) {
    former_.clear();
  }
}

core::Region RegisteredCopyPool::region(const std::byte*) {
  if (!cache_.is_current(*region_)) {
    Error error;
    if (auto anew = cache_.acquire(bytes_.get(), kBytes, error)) {
      former_.push_back(std::exchange(region_, std::move(anew)));
    }
  }
  return region_.get();
}

}  // namespace fabric::verbs
