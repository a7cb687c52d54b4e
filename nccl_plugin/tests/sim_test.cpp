// Random schedules of loss, duplication, stale packets and dying paths against both cores; what is
// checked in each is told in sim/world.h.
//
// Each schedule has a seed: FABRIC_SIM_SEED=N replays one alone, FABRIC_SIM_RUNS=N sets how many.
#include <doctest/doctest.h>

#include <random>
#include <string>

#include "tests/from_environment.h"
#include "tests/sim/world.h"

using fabric::testing::from_environment;

TEST_CASE("random schedules") {
  const std::uint64_t only = from_environment("FABRIC_SIM_SEED", 0);
  const std::uint64_t runs = only != 0 ? 1 : from_environment("FABRIC_SIM_RUNS", 10'000);
  const std::uint64_t base = only != 0 ? only : std::random_device{}() | 1U;
  fabric::sim::Coverage coverage;
  for (std::uint64_t seed = base; seed < base + runs; ++seed) {
    const std::string wrong = fabric::sim::play(seed, &coverage);
    if (!wrong.empty()) {
      FAIL("FABRIC_SIM_SEED=" << seed << ": " << wrong);
    }
  }
  MESSAGE("seeds " << base << " to " << base + runs - 1);
  std::string seen;
  for (std::size_t i = 0; i < fabric::sim::kSeenCount; ++i) {
    const std::uint64_t schedules = coverage.schedules[i];
    const std::string what = fabric::sim::kSeenNames[i];
    seen += "\n  " + what + ": " + std::to_string(schedules);
    // The rarest of them is in every thirtieth schedule: has the simulator gone blind?
    if (runs >= 500) {
      CHECK_MESSAGE(schedules != 0, "never tried: " << what);
    }
  }
  MESSAGE("schedules that had" << seen);
}
