#include "core/cadence.h"

#include <algorithm>

namespace fabric::prober {

Slot meeting_slot(std::span<const std::uint32_t> members, std::uint32_t me, std::uint32_t peer) {
  const auto rank = [&](std::uint32_t id) {
    return static_cast<std::uint32_t>(std::lower_bound(members.begin(), members.end(), id) -
                                      members.begin());
  };
  const auto n = static_cast<std::uint32_t>(members.size());
  if (n < 2) return {};
  const std::uint32_t a = rank(me);
  const std::uint32_t b = rank(peer);
  if (n % 2 == 1) return {(a + b) % n, n};
  const std::uint32_t rounds = n - 1;
  // Circle method: the last member stays, the others turn.
  if (a == rounds) return {2 * b % rounds, rounds};
  if (b == rounds) return {2 * a % rounds, rounds};
  return {(a + b) % rounds, rounds};
}

Nanos Cadence::grid_after(Nanos mono, Nanos grid_minus_mono) const {
  const Nanos phase = period_ / slot_.count * slot_.index;
  const Nanos grid = mono + grid_minus_mono - phase;
  const Nanos into = ((grid % period_) + period_) % period_;
  return mono + (period_ - into);
}

void Cadence::start(Nanos now, Nanos grid_minus_mono) { due_ = grid_after(now, grid_minus_mono); }

void Cadence::advance(Nanos now, Nanos grid_minus_mono) {
  const Nanos ideal = due_ + period_;
  if (ideal <= now) {
    due_ = grid_after(now, grid_minus_mono);
    return;
  }
  const Nanos after = grid_after(ideal - 1, grid_minus_mono);
  const Nanos before = after - period_;
  const Nanos nearest = after - ideal <= ideal - before ? after : before;
  const Nanos limit = period_ / 16;
  due_ = std::max(ideal + std::clamp(nearest - ideal, -limit, limit), now + 1);
}

}  // namespace fabric::prober
