// Prints what it costs to count one message, in ns: both looks at the clock, sum, bucket and count.
// Not a test: `build/release/nccl_plugin/tests/plugin_comm_counters_cost`.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "host/comm_counters.h"
#include "host/monotonic.h"

using namespace fabric::host;

namespace {

constexpr int kMessages = 2'000'000;
constexpr int kRounds = 9;

// The best of several rounds: the machine has other things to do.
template <typename Work>
double ns_each(Work work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t began = monotonic_ns();
    for (int i = 0; i < kMessages; ++i) {
      work(i);
    }
    best = std::min(best, static_cast<double>(monotonic_ns() - began) / kMessages);
  }
  return best;
}

void print(const char* what, const TickClock& clock) {
  CommCounters counters;
  std::vector<std::uint64_t> stamps(64);
  const double both = ns_each([&](int i) {
    const auto slot = static_cast<std::size_t>(i) % stamps.size();
    const std::uint64_t posted = stamps[slot];
    stamps[slot] = clock.now();  // another message is posted
    counters.delivered(clock, static_cast<std::size_t>(i) % 8,
                       TickClock::span(posted, clock.now()));
  });
  const double counting = ns_each([&](int i) {
    counters.delivered(clock, static_cast<std::size_t>(i) % 8,
                       static_cast<std::uint64_t>(i) % 100'000);
  });
  std::printf("%-16s %5.1f ns a message, %.1f of them without the clock\n", what, both, counting);
}

}  // namespace

int main() {
  TickClock counter;
  counter.calibrate();
  print("tick counter", counter);
  print("CLOCK_MONOTONIC", TickClock());
}
