// When the prober itself was not running.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace fabric::prober {

using Nanos = std::int64_t;  // CLOCK_MONOTONIC, nanoseconds

// Remembers the last gaps between when the loop asked to run and when it ran.
class StallLog {
 public:
  struct Gap {
    Nanos start = 0;
    Nanos end = 0;
  };

  void add(Nanos start, Nanos end) {
    gaps_[next_++ % gaps_.size()] = {start, end};
    last_end_ = end;
  }

  // How much of [from, to] was lost to gaps.
  Nanos within(Nanos from, Nanos to) const {
    Nanos sum = 0;
    for (const Gap& gap : gaps_) {
      sum += std::max<Nanos>(0, std::min(gap.end, to) - std::max(gap.start, from));
    }
    return sum;
  }

  // Nothing is known of what was before: the process began, or its packets had another pace.
  void begin(Nanos at) { began_ = std::max(began_, at); }

  // How long by then no gap had been seen.
  Nanos awake(Nanos at) const { return std::max<Nanos>(0, at - std::max(began_, last_end_)); }

  // Said to peers: their misses about now are ours.
  bool lately(Nanos now, Nanos within_ns) const {
    return last_end_ != 0 && now - last_end_ < within_ns;
  }

 private:
  std::array<Gap, 32> gaps_{};
  std::size_t next_ = 0;
  Nanos last_end_ = 0;
  Nanos began_ = 0;
};

}  // namespace fabric::prober
