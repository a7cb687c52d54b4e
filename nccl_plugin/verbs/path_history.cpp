#include "verbs/path_history.h"

#include <algorithm>

namespace fabric::verbs {

namespace {

constexpr std::uint32_t kMostDoublings = 6;

}  // namespace

// `least`: it counts as so many at least.
void PathHistory::fail(std::uint32_t least, std::int64_t now) {
  failures_ = std::max(failures_ + 1, least);
  failed_at_ = now;
}

void PathHistory::never_connected(std::int64_t now) {
  const std::scoped_lock lock(mutex_);
  fail(1, now);
}

void PathHistory::not_validated(std::int64_t now) {
  const std::scoped_lock lock(mutex_);
  ++short_lives_;
  fail(1, now);
}

void PathHistory::memory_unknown(std::int64_t now) {
  const std::scoped_lock lock(mutex_);
  ++memory_faults_;
  fail(kTries, now);
}

void PathHistory::lost_after(std::int64_t lived, std::int64_t now) {
  const std::scoped_lock lock(mutex_);
  const std::int64_t forgiven = std::max<std::int64_t>(lived, 0) / kForgiveNs;
  memory_faults_ -= static_cast<std::uint32_t>(std::min<std::int64_t>(memory_faults_, forgiven));
  if (lived >= kYoungNs) {
    failures_ = 0;
    short_lives_ /= 2;
  } else if (++short_lives_ >= kShortLives) {
    fail(kTries, now);
  }
}

bool PathHistory::backs_off(std::int64_t now, bool needed) const {
  const std::scoped_lock lock(mutex_);
  if (failures_ < kTries) {
    return false;
  }
  const std::uint32_t again = memory_faults_ == 0 ? 0 : memory_faults_ - 1;
  const std::uint32_t doublings = std::min(std::max(failures_ - kTries, again), kMostDoublings);
  const std::int64_t backoff = std::min(kBackoffNs << doublings, kBackoffMaxNs);
  return now - failed_at_ < (needed ? kBackoffNs : backoff);
}

std::uint32_t PathHistory::short_lives() const {
  const std::scoped_lock lock(mutex_);
  return short_lives_;
}

}  // namespace fabric::verbs
