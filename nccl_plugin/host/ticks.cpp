#include "host/ticks.h"

#include <time.h>

#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "host/monotonic.h"

namespace fabric::host {

namespace {

#if defined(__x86_64__)
// CPUID 0x80000007, EDX bit 8: "invariant TSC".
bool invariant() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0x80000007U, &a, &b, &c, &d) != 0 && (d & (1U << 8U)) != 0;
}

// Counter and clock at one moment: of a few looks the one that took least.
std::pair<std::uint64_t, std::uint64_t> both() {
  std::pair<std::uint64_t, std::uint64_t> best{};
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = __rdtsc();
    const auto ns = static_cast<std::uint64_t>(monotonic_ns());
    const std::uint64_t took = __rdtsc() - before;
    if (took < least) {
      least = took;
      best = {before + took / 2, ns};
    }
  }
  return best;
}
#endif

}  // namespace

std::uint64_t TickClock::monotonic() { return static_cast<std::uint64_t>(monotonic_ns()); }

void TickClock::set_rate(double ns_per_tick) {
  counter_ = true;
  ns_per_tick_ = ns_per_tick;
  us_per_tick_ = static_cast<std::uint64_t>(ns_per_tick / 1000 * 0x1p32);
  // 2^31 us (36 minutes) x 2^32 fit into 64 bits.
  most_ = static_cast<std::uint64_t>(0x1p31 * 1000 / ns_per_tick);
}

void TickClock::calibrate() {
#if defined(__x86_64__)
  if (!invariant()) {
    return;
  }
  const auto [ticks, ns] = both();
  timespec pause{0, 1'000'000};
  ::nanosleep(&pause, nullptr);
  const auto [ticks_after, ns_after] = both();
  if (ticks_after > ticks && ns_after > ns) {
    set_rate(static_cast<double>(ns_after - ns) / static_cast<double>(ticks_after - ticks));
  }
#elif defined(__aarch64__)
  std::uint64_t hertz = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  if (hertz != 0) {
    set_rate(1e9 / static_cast<double>(hertz));
  }
#endif
}

}  // namespace fabric::host
