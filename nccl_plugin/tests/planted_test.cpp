// Would the simulator notice? Each of a set of faults is switched on in the cores, and has to be
// found within the number of schedules that every test run plays.
#include <doctest/doctest.h>

#include <algorithm>
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

// What only a further loss shows: no schedule without one, at a step that matters, finds it.
TEST_CASE("a core that knows one loss at a time is noticed, by a further loss in fence or resend") {
  constexpr std::uint64_t kEach = 400;
  for (const Further& one : kFurther) {
    planted = one.fault;
    std::uint64_t with = 0;
    std::uint64_t noticed = 0;
    const std::string name = one.name;
    for (std::uint64_t seed = 1; seed <= kEach; ++seed) {
      Coverage coverage;
      const std::string what = play(seed, &coverage);
      const bool further = std::any_of(one.when.begin(), one.when.end(), [&](Seen step) {
        return coverage.schedules[static_cast<std::size_t>(step)] != 0;
      });
      with += further ? 1U : 0U;
      noticed += what.empty() ? 0U : 1U;
      CHECK_MESSAGE((further || what.empty()), name << ": schedule " << seed << ", " << what);
    }
    CHECK_MESSAGE(noticed != 0, name << ": not noticed");
    MESSAGE(name << ": noticed in " << noticed << " of " << with
                 << " schedules with such a loss, 0 of " << kEach - with << " without");
  }
  planted = Fault::none;
}

}  // namespace fabric::sim
