// Would the simulator notice? Each of a set of faults is switched on in the cores, and has to be
// found within the number of schedules that every test run plays.
#include <doctest/doctest.h>

#include <string>

#include "tests/sim/planted.h"
#include "tests/sim/world.h"

namespace fabric::sim {

namespace {

constexpr std::uint64_t kSchedules = 10'000;  // as sim_test.cpp plays

struct Found {
  std::uint64_t seed = 0;  // 0: not noticed
  std::string what;
};

Found look_for(Fault fault, std::uint64_t schedules) {
  planted = fault;
  for (std::uint64_t seed = 1; seed <= schedules; ++seed) {
    std::string what = play(seed);
    if (!what.empty()) {
      return {seed, std::move(what)};
    }
  }
  return {};
}

}  // namespace

TEST_CASE("the copies of the cores do what the cores do") {
  const Found found = look_for(Fault::none, 300);
  CHECK_MESSAGE(found.seed == 0, "seed " << found.seed << ": " << found.what);
}

TEST_CASE("each planted fault is noticed") {
  for (const Planted& one : kPlanted) {
    const Found found = look_for(one.fault, kSchedules);
    const std::string name = one.name;
    CHECK_MESSAGE(found.seed != 0, name << ": not noticed");
    MESSAGE(name << ": schedule " << found.seed << ", " << found.what);
  }
}

}  // namespace fabric::sim
