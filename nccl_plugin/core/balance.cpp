#include "core/balance.h"

#include <algorithm>
#include <cmath>

namespace fabric::core {

namespace {

constexpr double kSlow = 1.5;  // times the other path's latency
constexpr double kGood = 1.2;
constexpr double kQueue = 128.0 * 1024;       // bytes waiting on average, else there is no queue
constexpr std::uint64_t kEnough = 1U << 20U;  // bytes delivered in a step, else nothing is known
constexpr std::uint64_t kComparable = 4;      // the other carried at least a quarter as much
constexpr std::uint16_t kFloor = 100;
constexpr std::uint16_t kAlmost = 990;  // as good as full, but comms stay in the pool
constexpr double kRaise = 1.25;
constexpr double kBelow = 0.9;
constexpr int kPatience = 3;  // steps
constexpr int kPatienceMax = 300;
constexpr std::int64_t kForgivenNs = 600'000'000'000;
constexpr int kRehashAfter = 3;  // slow steps at less than half weight
constexpr std::int64_t kRehashMinNs = 10'000'000'000;
constexpr std::int64_t kRehashMaxNs = 300'000'000'000;

}  // namespace

void Balance::observe(PathIndex index, std::uint64_t waiting, std::uint64_t delivered,
                      std::int64_t passed) {
  Path& path = paths_[index];
  path.area += static_cast<double>(waiting) * static_cast<double>(passed);
  path.delivered += delivered;
  path.watched += passed;
  seen_ |= bit(index);
}

// In ns; negative: not known.
double Balance::latency(const Path& path) const {
  return path.delivered < kEnough ? -1 : path.area / static_cast<double>(path.delivered);
}

double Balance::best_beside(const Path& path) const {
  double best = -1;
  each(seen_, [&](PathIndex index) {
    const Path& other = paths_[index];
    const double of_other = latency(other);
    if (&other != &path && of_other >= 0 && other.delivered >= path.delivered / kComparable &&
        (best < 0 || of_other < best)) {
      best = of_other;
    }
  });
  return best;
}

bool Balance::lower(Path& path, double ratio, std::int64_t now) {
  if (path.patience == 0 || now - path.healed > kForgivenNs) {
    path.patience = kPatience;
  } else if (path.lifted) {
    path.patience = std::min(2 * path.patience, kPatienceMax);
  }
  path.lifted = false;
  path.good_steps = 0;
  ++path.slow_steps;
  path.healed = now;
  path.ceiling = static_cast<std::uint16_t>(std::max<double>(kFloor, path.factor * kBelow));
  const double by = std::clamp(std::sqrt(1 / ratio), 0.5, 0.9);
  const auto to = static_cast<std::uint16_t>(std::max<double>(kFloor, path.factor * by));
  return std::exchange(path.factor, to) != to;
}

bool Balance::raise(Path& path) {
  path.slow_steps = 0;
  if (path.factor == kFullWeight) {
    return false;
  }
  const std::uint16_t limit = std::min(kAlmost, path.ceiling);
  const auto higher = static_cast<std::uint16_t>(path.factor * kRaise);
  if (path.factor < limit) {
    path.factor = std::min(limit, higher);
    return true;
  }
  if (++path.good_steps < path.patience) {
    return false;
  }
  path.good_steps = 0;
  path.lifted = true;
  path.ceiling = higher;
  path.factor = path.factor >= kAlmost ? kFullWeight : std::min(kAlmost, higher);
  return true;
}

PathSet Balance::step(std::int64_t now) {
  if (now - last_ < kBalanceStepNs) {
    return 0;
  }
  last_ = now;
  PathSet changed = 0;
  rehash_ = 0;
  each(seen_, [&](PathIndex index) {
    Path& path = paths_[index];
    const double own = latency(path);
    const double best = best_beside(path);
    const bool queue = path.watched > 0 && path.area / static_cast<double>(kBalanceStepNs) > kQueue;
    bool moved = false;
    if (own >= 0 && best >= 0 && queue && own > kSlow * best) {
      moved = lower(path, own / std::max(best, 1.0), now);
    } else if (own < 0 || best < 0 || !queue || own < kGood * best) {
      moved = raise(path);  // no complaint: what is not used is tried again
    } else {
      path.good_steps = 0;
    }
    if (moved) {
      changed |= bit(index);
    }
    if (path.slow_steps >= kRehashAfter && path.factor < kFullWeight / 2 &&
        now >= path.next_rehash) {
      rehash_ |= bit(index);
      path.slow_steps = 0;
      path.rehash_backoff =
          path.rehash_backoff == 0 ? kRehashMinNs : std::min(2 * path.rehash_backoff, kRehashMaxNs);
      path.next_rehash = now + path.rehash_backoff;
    }
    if (path.factor == kFullWeight && now - path.healed > kForgivenNs) {
      path.patience = 0;
      path.rehash_backoff = 0;
    }
  });
  PathSet keep = 0;
  each(seen_, [&](PathIndex index) {
    Path& path = paths_[index];
    path.area = 0;
    path.delivered = 0;
    path.watched = 0;
    if (path.factor != kFullWeight || path.patience != 0) {
      keep |= bit(index);
    }
  });
  seen_ = keep;
  return changed;
}

}  // namespace fabric::core
