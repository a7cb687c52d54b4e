// Round-trip time of a path from stamps: last, smoothed (gain 1/8, RFC 6298), and the least of the
// last 10 to 20 s.
#pragma once

#include <cstdint>

#include "core/stalls.h"
#include "core/windowed_min.h"

namespace fabric::prober {

class Rtt {
 public:
  static constexpr Nanos kBucket = 10'000'000'000;
  static constexpr Nanos kMost = 10'000'000'000;  // beyond this a clock was stepped

  // Returns false, and ignores it, when `rtt` cannot be one.
  bool add(Nanos rtt, Nanos now) {
    if (rtt <= 0 || rtt > kMost) return false;
    last_ = rtt;
    smoothed_ = smoothed_ == 0 ? rtt : smoothed_ + (rtt - smoothed_) / 8;
    least_.add(rtt, now);
    return true;
  }
  Nanos last() const { return last_; }
  Nanos smoothed() const { return smoothed_; }
  Nanos least() const { return least_.get(); }

 private:
  Nanos last_ = 0;
  Nanos smoothed_ = 0;
  WindowedMin least_{kBucket};
};

}  // namespace fabric::prober
