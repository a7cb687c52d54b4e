// When each path sends. Slots of a link are arranged as a round-robin tournament over the link's
// members: in one slot every host exchanges packets with exactly one other, so each end both sends
// and hears at an even pace although every host computes the slots by itself. Slots lie on a grid
// of fabric time, or of wall-clock time where there is no fabric time. Hosts share the grid as well
// as their clocks agree; without agreement the phases are arbitrary, and the pace of each path is
// the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/stalls.h"

namespace fabric::prober {

struct Slot {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
};

// The slot in which `me` and `peer` meet, among `members` (sorted, distinct, with both in it).
// An even number n of members has n - 1 slots (the circle method), an odd one n with one idle.
Slot meeting_slot(std::span<const std::uint32_t> members, std::uint32_t me, std::uint32_t peer);

// One path's timer.
class Cadence {
 public:
  Cadence() = default;
  Cadence(Nanos period, Slot slot) : period_(period), slot_(slot) {}

  // First instant of the grid after `now`; `grid_minus_mono` converts `now` to the grid's clock.
  void start(Nanos now, Nanos grid_minus_mono);
  // After sending at or after due(): one period on, pulled towards the grid by at most 1/16 of a
  // period, so that a step of the grid's clock never looks like a miss. After a stall the past
  // instants are dropped, not made up for.
  void advance(Nanos now, Nanos grid_minus_mono);

  Nanos due() const { return due_; }
  Nanos period() const { return period_; }

 private:
  Nanos grid_after(Nanos mono, Nanos grid_minus_mono) const;

  Nanos period_ = 0;
  Slot slot_{};
  Nanos due_ = 0;
};

}  // namespace fabric::prober
