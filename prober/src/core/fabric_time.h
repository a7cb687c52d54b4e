// Fabric time as the prober uses it: for the grid of its packets, and to tell and to be told when
// the next one is due. Pure: what the clock page says is a parameter.
//
// Used only once it has been good for kSettled: known, off by little, and going on as it did. A
// page that is gone, or old, or of another epoch, or that jumps is no fabric time any more; the
// grid is that of the wall clock then. What is due next was told before, and stays
// (core/due_time.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/stalls.h"

namespace fabric::prober {

struct FabricReading {
  Nanos ahead = 0;  // fabric time less CLOCK_MONOTONIC
  Nanos bound = 0;  // how far off it may be
  std::uint64_t epoch = 0;
};

class FabricTime {
 public:
  static constexpr Nanos kSettled = 1'000'000'000;
  static constexpr Nanos kMostBound = 1'000'000;
  // More than the two clocks are ever read apart; and both may be slewed by 500 ppm.
  static constexpr Nanos kJump = 20'000;
  static constexpr Nanos kSlewed = 1'000;

  // How far off fabric time may be to be of use where a link hears something every `link_interval`.
  static Nanos most_bound(Nanos link_interval) { return std::min(kMostBound, link_interval / 16); }

  // What the page says at `now`; nothing: there is no time on it.
  void look(const std::optional<FabricReading>& reading, Nanos link_interval, Nanos now) {
    if (!reading || reading->bound < 0 || reading->bound > most_bound(link_interval)) {
      known_ = false;
      return;
    }
    if (!known_ || !goes_on(*reading, now)) {
      ++generation_;
      since_ = now;
    }
    known_ = true;
    last_ = *reading;
    at_ = now;
  }

  bool good() const { return known_ && at_ - since_ >= kSettled; }
  Nanos ahead() const { return last_.ahead; }
  Nanos bound() const { return last_.bound; }
  // Another one: what was learnt of the time before is of no use.
  std::uint32_t generation() const { return generation_; }

 private:
  bool goes_on(const FabricReading& reading, Nanos now) const {
    const Nanos most = kJump + last_.bound + reading.bound + (now - at_) / kSlewed;
    // Unsigned: the page is another process's, and the difference of any two must be defined.
    const auto apart = static_cast<Nanos>(static_cast<std::uint64_t>(reading.ahead) -
                                          static_cast<std::uint64_t>(last_.ahead));
    return reading.epoch == last_.epoch && apart <= most && apart >= -most;
  }

  FabricReading last_{};
  bool known_ = false;
  Nanos at_ = 0;
  Nanos since_ = 0;
  std::uint32_t generation_ = 0;
};

}  // namespace fabric::prober
