#include "core/balance.h"

#include <algorithm>
#include <cmath>

namespace fabric::core {

namespace {

constexpr double kSlow = 1.3;       // times as long as on the others
constexpr double kSlowSpeed = 1.5;  // times as quick as it are the others
constexpr double kHeldMost = 0.5;   // of a step, or it is not what the others wait for
constexpr int kSlowSteps = 2;       // in a row: one may be an accident
constexpr double kLonger = 1.1;     // dead band of what follows
constexpr double kShorter = 0.85;
constexpr double kNoComplaint = 10;  // what is not used is tried again
constexpr int kGather = 4;           // steps: a second's ratio is off by a third now and then
constexpr double kDownMost = 0.6;    // of one step
constexpr double kUp = 1.1;          // the times answer a weight more than in proportion
constexpr std::uint64_t kQueue = 64U << 10U;  // bytes; fewer are on their way, not waiting
constexpr std::uint64_t kEnough = 1U << 20U;  // bytes delivered in a step, else nothing is known
constexpr std::uint64_t kComparable = 4;      // the other carried at least a quarter as much
constexpr std::uint16_t kFloor = 100;
constexpr double kWorthwhile = 0.45;  // of the others' speed: with less a path is removed
// A path on which bytes wait for less than this of a step is not full: what it delivers does not
// measure its speed.
constexpr std::int64_t kMeasurableNs = kBalanceStepNs / 20;
constexpr std::int64_t kPauseMinNs = 60'000'000'000;
constexpr std::int64_t kPauseMaxNs = 600'000'000'000;
constexpr std::uint16_t kAlmost = 990;  // as good as full, but comms stay in the pool
constexpr int kGoodSteps = 3;           // steps
constexpr int kGoodStepsMax = 300;
constexpr std::int64_t kForgivenNs = 600'000'000'000;
constexpr std::int64_t kRehashAfterNs = 10'000'000'000;  // at less than kRehashBelow
constexpr std::uint16_t kRehashBelow = 750;
constexpr std::int64_t kRehashMinNs = 10'000'000'000;
constexpr std::int64_t kRehashMaxNs = 300'000'000'000;

std::uint16_t scaled(std::uint16_t factor, double by, std::uint16_t most) {
  return static_cast<std::uint16_t>(
      std::clamp<double>(static_cast<double>(factor) * by, kFloor, most));
}

}  // namespace

void Balance::observe(PathIndex index, std::uint64_t waiting, std::uint64_t delivered,
                      std::int64_t passed, std::int64_t now, PathKind kind) {
  Path& path = paths_[index];
  if (kind == PathKind::one_sided) {
    path.one_sided_until = now + 2 * kBalanceStepNs;
  } else if (now < path.one_sided_until) {
    return;
  }
  if (kind != path.kind) {
    const std::int64_t one_sided_until = path.one_sided_until;
    renewed_ |= path.factor != kFullWeight ? bit(index) : 0;
    removed_ &= ~bit(index);
    path = {};
    path.kind = kind;
    path.one_sided_until = one_sided_until;
  }
  if (waiting >= kQueue) {
    path.held += std::max<std::int64_t>(now - std::max(path.until, now - passed), 0);
    path.until = now;
  }
  path.delivered += delivered;
  seen_ |= bit(index);
}

// Of those with a comparable load; a comparison with an idle path would say nothing.
std::optional<Balance::Others> Balance::others(const Path& path) const {
  std::array<double, kMaxPaths> held{};
  std::size_t count = 0;
  Others found;
  each(seen_, [&](PathIndex index) {
    const Path& other = paths_[index];
    if (&other == &path || other.kind != path.kind || other.delivered < kEnough ||
        other.delivered < path.delivered / kComparable) {
      return;
    }
    held[count++] = static_cast<double>(other.held);
    if (other.held >= kMeasurableNs) {
      found.measured = std::max(
          found.measured, static_cast<double>(other.delivered) / static_cast<double>(other.held));
    }
    found.speed =
        std::max(found.speed,
                 static_cast<double>(other.delivered) /
                     static_cast<double>(std::max<std::int64_t>(other.held, kBalanceStepNs / 100)));
  });
  if (count == 0) {
    return std::nullopt;
  }
  std::sort(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count));
  found.held = std::max<double>(held[(count - 1) / 2], static_cast<double>(kBalanceStepNs) / 100);
  return found;
}

// At full weight.
bool Balance::enter(Path& path, const std::optional<Others>& others, std::int64_t now) {
  const auto held = static_cast<double>(path.held);
  const bool slow = others && path.delivered >= kEnough &&
                    held > kHeldMost * static_cast<double>(kBalanceStepNs) &&
                    held > kSlow * others->held &&
                    others->speed * held > kSlowSpeed * static_cast<double>(path.delivered);
  path.slow_steps = slow ? path.slow_steps + 1 : 0;
  // One that was removed before is on probation: it costs the job what it costs now.
  if (path.slow_steps < (path.pause == 0 ? kSlowSteps : 1)) {
    return false;
  }
  path.slow_steps = 0;
  path.good_steps = 0;
  path.good_steps_needed = path.good_steps_needed == 0
                               ? kGoodSteps
                               : std::min(2 * path.good_steps_needed, kGoodStepsMax);
  path.tried = false;
  path.lowered = now;
  path.healed = now;
  const double by = std::clamp(others->held / held, kDownMost, 1.0);
  const double speed = static_cast<double>(path.delivered) / held;
  path.much_slower = speed < kWorthwhile * others->measured;
  path.factor = scaled(path.factor, path.much_slower ? speed / others->measured : by, kAlmost);
  return true;
}

void Balance::judge_speed(PathIndex index, std::int64_t now) {
  Path& path = paths_[index];
  if (!path.much_slower) {
    return;
  }
  path.much_slower = false;
  path.pause = path.pause == 0 ? kPauseMinNs : std::min(2 * path.pause, kPauseMaxNs);
  path.retry_at = now + path.pause;
  removed_ |= bit(index);
}

bool Balance::try_again(PathIndex index, std::int64_t now) {
  Path& path = paths_[index];
  if (now < path.retry_at) {
    return false;
  }
  removed_ &= ~bit(index);
  path.factor = kFullWeight;
  path.healed = now;  // removals are forgiven after a time in use, not while it is removed
  path.slow_steps = 0;
  path.own_held = path.others_held = path.own_bytes = path.others_speed = 0;
  path.gathered = 0;
  return true;
}

// Below full weight.
bool Balance::follow(Path& path, const std::optional<Others>& others, std::int64_t now) {
  const bool known = others && path.delivered >= kEnough;
  path.own_held += known ? static_cast<double>(path.held) : 1;
  path.others_held += known ? others->held : kNoComplaint;
  path.own_bytes += known ? static_cast<double>(path.delivered) : 0;
  path.others_speed = std::max(path.others_speed, known ? others->measured : 0);
  if (++path.gathered < kGather) {
    return false;
  }
  const double ratio = path.others_held / std::max(path.own_held, 1.0);
  const double speed = path.own_bytes / std::max(path.own_held, 1.0);
  const bool much_slower = speed < kWorthwhile * path.others_speed;
  path.own_held = path.others_held = path.own_bytes = path.others_speed = 0;
  path.gathered = 0;
  if (ratio * kLonger < 1) {
    if (std::exchange(path.tried, false)) {
      path.good_steps_needed = std::min(2 * path.good_steps_needed, kGoodStepsMax);
    }
    path.good_steps = 0;
    path.healed = now;
    path.much_slower = much_slower;
    const std::uint16_t to = scaled(path.factor, std::max(std::sqrt(ratio), kDownMost), kAlmost);
    return std::exchange(path.factor, to) != to || much_slower;
  }
  const bool room = ratio * kShorter > 1 && path.factor < kAlmost;
  if (!room && ++path.good_steps < path.good_steps_needed) {
    return false;
  }
  path.tried = path.tried || !room;
  path.good_steps = 0;
  path.factor = path.factor >= kAlmost ? kFullWeight : scaled(path.factor, kUp, kAlmost);
  return true;
}

PathSet Balance::step(std::int64_t now) {
  if (now - last_ < kBalanceStepNs) {
    return 0;
  }
  last_ = now;
  PathSet changed = std::exchange(renewed_, 0);
  rehash_ = 0;
  each(seen_, [&](PathIndex index) {
    Path& path = paths_[index];
    const auto beside = others(path);
    if ((removed_ & bit(index)) != 0) {
      changed |= try_again(index, now) ? bit(index) : 0;
    } else if (path.factor == kFullWeight ? enter(path, beside, now) : follow(path, beside, now)) {
      changed |= bit(index);
      judge_speed(index, now);
    }
    if (path.factor >= kRehashBelow) {
      path.lowered = now;
    } else if (now - path.lowered >= kRehashAfterNs && now >= path.next_rehash) {
      rehash_ |= bit(index);
      path.rehash_backoff =
          path.rehash_backoff == 0 ? kRehashMinNs : std::min(2 * path.rehash_backoff, kRehashMaxNs);
      path.next_rehash = now + path.rehash_backoff;
    }
    if (path.factor == kFullWeight && now - path.healed > kForgivenNs) {
      path.good_steps_needed = 0;
      path.rehash_backoff = 0;
      path.pause = 0;
    }
  });
  PathSet keep = 0;
  each(seen_, [&](PathIndex index) {
    Path& path = paths_[index];
    path.held = 0;
    path.delivered = 0;
    if (path.factor != kFullWeight || path.good_steps_needed != 0) {
      keep |= bit(index);
    }
  });
  seen_ = keep;
  return changed;
}

}  // namespace fabric::core
