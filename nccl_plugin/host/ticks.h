// A clock that costs 10 ns a look where clock_gettime takes 24 (one machine, measured): the
// processor's own counter where it runs at one rate on all cores, else CLOCK_MONOTONIC. For
// measuring how long something took within this process, nothing else.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "pages/stats_page.h"

namespace fabric::host {

class TickClock {
 public:
  // Until calibrated, ticks are nanoseconds of CLOCK_MONOTONIC.
  TickClock() = default;
  // Finds out how long a tick is: sleeps a millisecond where it has to be measured. Before any
  // now().
  void calibrate();

  [[nodiscard]] std::uint64_t now() const {
#if defined(__x86_64__)
    if (counter_) {
      return __rdtsc();
    }
#elif defined(__aarch64__)
    if (counter_) {
      std::uint64_t value = 0;
      asm volatile("mrs %0, cntvct_el0" : "=r"(value));
      return value;
    }
#endif
    return monotonic();
  }
  // Ticks from `since` to `until`: none when the clock seems to have gone back.
  [[nodiscard]] static std::uint64_t span(std::uint64_t since, std::uint64_t until) {
    return until > since ? until - since : 0;
  }
  // Which bucket of a pages::StatsLatency.
  [[nodiscard]] std::size_t bucket(std::uint64_t ticks) const {
    const std::uint64_t us = (std::min(ticks, most_) * us_per_tick_) >> 32U;
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(us)),
                                 pages::kStatsLatencyBuckets - 1);
  }
  [[nodiscard]] std::uint64_t ns(std::uint64_t ticks) const {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * ns_per_tick_);
  }

 private:
  static std::uint64_t monotonic();
  void set_rate(double ns_per_tick);

  bool counter_ = false;
  double ns_per_tick_ = 1;
  std::uint64_t us_per_tick_ = (std::uint64_t{1} << 32U) / 1000;  // fixed point, 32 bits
  std::uint64_t most_ = std::uint64_t{1} << 41U;                  // above: `us` would overflow
};

}  // namespace fabric::host
