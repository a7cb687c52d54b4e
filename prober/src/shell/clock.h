// The two clocks of the loop, read together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "core/stalls.h"

namespace fabric::prober {

inline Nanos read_clock(clockid_t id) {
  timespec ts{};
  ::clock_gettime(id, &ts);
  return Nanos{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

struct Now {
  Nanos mono = read_clock(CLOCK_MONOTONIC);
  Nanos wall = read_clock(CLOCK_REALTIME);
  Nanos wall_minus_mono() const { return wall - mono; }
};

// What a CrossTimestamp takes: the wall clock between two readings of the raw one, the tightest of
// some.
struct CrossReading {
  Nanos before = 0;
  Nanos wall = 0;
  Nanos after = 0;
};

// `usual`: how long one took at least; 0: not known yet.
inline CrossReading read_cross_timestamp(Nanos usual) {
  constexpr int kTries = 3;
  constexpr Nanos kTight = 80;  // two calls of the vDSO, on nearly any machine
  const Nanos tight = std::max(kTight, usual + usual / 8);
  CrossReading best;
  for (int i = 0; i < kTries; ++i) {
    const CrossReading now{read_clock(CLOCK_MONOTONIC_RAW), read_clock(CLOCK_REALTIME),
                           read_clock(CLOCK_MONOTONIC_RAW)};
    if (i == 0 || now.after - now.before < best.after - best.before) best = now;
    if (best.after - best.before <= tight) break;
  }
  return best;
}

}  // namespace fabric::prober
