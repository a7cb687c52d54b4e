// Round-trip time of a path from stamps: last, smoothed (gain 1/8, RFC 6298), and the least of the
// last 10 to 20 s.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/stalls.h"

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
    if (now - bucket_start_ >= kBucket) {
      previous_ = now - bucket_start_ >= 2 * kBucket ? 0 : current_;
      current_ = rtt;
      bucket_start_ = now;
    } else {
      current_ = current_ == 0 ? rtt : std::min(current_, rtt);
    }
    return true;
  }
  Nanos last() const { return last_; }
  Nanos smoothed() const { return smoothed_; }
  Nanos least() const {
    return previous_ == 0 ? current_ : (current_ == 0 ? previous_ : std::min(current_, previous_));
  }

 private:
  Nanos last_ = 0;
  Nanos smoothed_ = 0;
  Nanos current_ = 0;
  Nanos previous_ = 0;
  Nanos bucket_start_ = 0;
};

}  // namespace fabric::prober
