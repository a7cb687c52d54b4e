#include "core/due_time.h"

#include <limits>

namespace fabric::prober {
namespace {

constexpr int kUnitShift = 8;  // 256 ns
constexpr int kDueShift = 4;
constexpr std::uint32_t kBoundMask = 15;
constexpr std::uint32_t kDueBits = 28;
constexpr std::uint64_t kDueMask = (std::uint64_t{1} << kDueBits) - 1;

std::uint64_t add(Nanos a, Nanos b) {
  return static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b);
}

// Nearest to a multiple of `interval`, and how far from that.
Nanos beside(Nanos value, Nanos interval) {
  const Nanos into = ((value % interval) + interval) % interval;
  return into > interval / 2 ? into - interval : into;
}

}  // namespace

std::uint32_t pack_next_due(Nanos due, Nanos now, const FabricTime& time) {
  if (!time.good() || due - now > kMostAhead || now - due > kMostAhead) return 0;
  std::uint32_t bound = 1;
  while (bound < kBoundMask && (Nanos{1} << (kUnitShift + bound)) < time.bound()) ++bound;
  const std::uint64_t unit = (std::uint64_t{1} << kUnitShift) - 1;
  const std::uint64_t units = (add(due, time.ahead()) + unit) >> kUnitShift;
  return static_cast<std::uint32_t>((units & kDueMask) << kDueShift) | bound;
}

std::optional<DueTime> unpack_next_due(std::uint32_t packed, Nanos now, const FabricTime& time) {
  const std::uint32_t bound = packed & kBoundMask;
  if (bound == 0 || !time.good()) return std::nullopt;
  const std::uint64_t here = add(now, time.ahead());
  const std::uint64_t apart = ((packed >> kDueShift) - (here >> kUnitShift)) & kDueMask;
  const bool before = apart >> (kDueBits - 1) != 0;
  const Nanos units = static_cast<Nanos>(apart) - (before ? Nanos{1} << kDueBits : 0);
  const Nanos into = static_cast<Nanos>(here & ((std::uint64_t{1} << kUnitShift) - 1));
  return DueTime{now + units * (Nanos{1} << kUnitShift) - into, Nanos{1} << (kUnitShift + bound)};
}

void DueTimeTracker::learn(Nanos late, Nanos now) {
  if (learnt_ == 0) {
    had_previous_ = false;
    current_ = late;
    bucket_start_ = now;
  } else if (now - bucket_start_ >= kBucket) {
    had_previous_ = now - bucket_start_ < 2 * kBucket;
    previous_ = current_;
    current_ = late;
    bucket_start_ = now;
  } else {
    current_ = std::max(current_, late);
  }
  learnt_ = std::min(learnt_ + 1, kLearnt);
}

bool DueTimeTracker::take(const std::optional<DueTime>& next_due, std::uint64_t seq, bool single,
                          Nanos arrived, Nanos on_time, Nanos interval, Nanos link_interval,
                          const FabricTime& time) {
  if (!next_due) {
    forget();
    return true;
  }
  if (time.generation() != generation_) forget();
  // Only the due time that the packet just before it announced: else it may be another's.
  if (single && due_ != 0 && seq == seq_ + 1) learn(arrived - due_, arrived);
  generation_ = time.generation();
  seq_ = seq;
  interval_ = interval;
  link_interval_ = link_interval;
  const Nanos bounds = next_due->bound + time.bound();
  const Nanos moved = interval / 16 + link_interval / 4 + bounds;
  const Nanos ahead = next_due->due - arrived;
  const Nanos since = next_due->due - on_time;  // a multiple of the interval, and not none
  const Nanos phase = beside(since, interval);
  if (ahead < -interval / 2 || ahead > interval + moved || since < interval - moved ||
      phase < -moved || phase > moved) {
    due_ = 0;
    return false;
  }
  due_ = next_due->due;
  paced_ = next_due->due - phase;
  late_ = (had_previous_ ? std::max(current_, previous_) : current_) + bounds;
  return true;
}

std::uint32_t DueTimeTracker::missing(Nanos now) const {
  if (!holds() || now < missing_from(1)) return 0;
  if (now < missing_from(2)) return 1;
  const Nanos n = 2 + (now - missing_from(2)) / interval_;
  return static_cast<std::uint32_t>(std::min<Nanos>(n, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace fabric::prober
