// The two clocks of the loop, read together.
#pragma once

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

}  // namespace fabric::prober
