#include "core/cross_timestamp.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

using namespace fabric::prober;

namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kStart = 5'000 * 1'000 * kMs;

// A wall clock that runs at a rate over the raw one, and reads that are a little off.
struct World {
  Nanos raw = kStart;
  Nanos base = 1'700'000'000'000'000'000;
  double beyond = 0;  // what slewing made of it
  double rate = 0;
  std::mt19937_64 rng{1};
  CrossTimestamp cross{};

  Nanos wall() const { return raw + base + std::llround(beyond); }
  void pass(Nanos ns) {
    raw += ns;
    beyond += rate * static_cast<double>(ns);
  }
  void read(Nanos width = 40) {
    // The wall clock is read somewhere within.
    const auto early = static_cast<Nanos>(rng() % static_cast<std::uint64_t>(width));
    cross.add(raw - early, wall(), raw - early + width);
  }
  void run(Nanos ns) {
    for (const Nanos end = raw + ns; raw < end;) {
      pass(kMs / 2 + static_cast<Nanos>(rng() % kMs));
      read();
    }
  }
  double off() const { return static_cast<double>(cross.to_raw(wall()).value() - raw); }
  // Largest error of so long.
  double worst(Nanos ns) {
    double most = 0;
    for (const Nanos end = raw + ns; raw < end;) {
      pass(kMs);
      read();
      most = std::max(most, std::abs(off()));
    }
    return most;
  }
};

}  // namespace

TEST_CASE("a wall clock that is slewed is converted to within some nanoseconds") {
  for (const double rate : {0.0, 50e-6, -400e-6}) {
    World world;
    world.rate = rate;
    world.read();
    REQUIRE_FALSE(world.cross.to_raw(world.wall()).has_value());  // not settled yet
    world.run(300 * kMs);
    CHECK(world.worst(1000 * kMs) <= 10);
  }
}

TEST_CASE("stamps between two readings and before the last are converted too") {
  World world;
  world.rate = 100e-6;
  world.run(400 * kMs);
  const Nanos wall = world.wall();
  const Nanos raw = world.raw;
  world.pass(3 * kMs);
  CHECK(std::abs(static_cast<double>(world.cross.to_raw(world.wall()).value() - world.raw)) <= 12);
  world.run(10 * kMs);
  CHECK(std::abs(static_cast<double>(world.cross.to_raw(wall).value() - raw)) <= 12);
}

TEST_CASE("a new rate is followed") {
  World world;
  world.run(400 * kMs);
  world.rate = 1e-6;
  CHECK(world.worst(500 * kMs) <= 40);
  CHECK(world.worst(500 * kMs) <= 10);
  CHECK(world.cross.steps() == 0);
}

TEST_CASE("a step leaves no stamp that mixes both times") {
  World world;
  world.rate = 20e-6;
  world.run(400 * kMs);
  const Nanos before = world.wall();
  world.base += 5 * kMs;
  world.pass(kMs);
  world.read();
  CHECK(world.cross.steps() == 1);
  CHECK_FALSE(world.cross.to_raw(before).has_value());
  CHECK_FALSE(world.cross.to_raw(world.wall()).has_value());
  world.run(80 * kMs);
  CHECK(world.worst(300 * kMs) <= 12);
  CHECK(world.cross.steps() == 1);
}

TEST_CASE("where reading a clock is slow, stamps are converted within half of what it takes") {
  World world;
  world.rate = 20e-6;
  for (const Nanos end = world.raw + 400 * kMs; world.raw < end;) {
    world.pass(2 * kMs);
    world.read(5'000);
  }
  CHECK(world.cross.width_ns() == 5'000);
  CHECK(world.cross.least_ns() == 5'000);
  CHECK(world.cross.steps() == 0);
  for (int i = 0; i < 500; ++i) {
    world.pass(2 * kMs);
    world.read(5'000);
    CHECK(std::abs(world.off()) <= 2'500);
  }
}

TEST_CASE("what a line may be off by follows from the readings that are in it") {
  World world;
  CHECK(world.cross.width_ns() == 0);
  world.read();
  CHECK(world.cross.width_ns() == 0);  // nothing is converted yet
  world.run(400 * kMs);
  CHECK(world.cross.width_ns() == 40);
  for (int i = 0; i < 200; ++i) {  // each is read early
    const Nanos width = i % 4 == 0 ? 40 : 180;
    world.pass(2 * kMs);
    world.cross.add(world.raw - width + 1, world.wall(), world.raw + 1);
  }
  CHECK(world.cross.width_ns() > 120);
  CHECK(world.cross.width_ns() < 180);
  CHECK(std::abs(world.off()) <= static_cast<double>(world.cross.width_ns()) / 2 + 1);
}

TEST_CASE("when reading becomes slower or faster while it runs stamps go on") {
  World world;
  world.rate = 20e-6;
  world.run(400 * kMs);
  for (const Nanos width : {240, 6'000, 40}) {
    for (int i = 0; i < 1'500; ++i) {
      world.pass(2 * kMs);
      world.read(width);
      REQUIRE(world.cross.to_raw(world.wall()).has_value());
      CHECK(std::abs(world.off()) <= 3'100);
    }
    CHECK(std::abs(world.off()) <= static_cast<double>(width));
    CHECK(world.cross.width_ns() <= width + 40);
  }
}

TEST_CASE("a wall clock that is slewed by percents is a new rate, not a step at each reading") {
  for (const double rate : {0.08333, -0.1, 0.002}) {
    World world;
    world.run(400 * kMs);
    world.rate = rate;
    world.run(70 * kMs);
    CHECK(world.worst(300 * kMs) <= 40);
    world.rate = 0;
    world.run(70 * kMs);
    CHECK(world.worst(300 * kMs) <= 40);
    CHECK(world.cross.steps() <= 4);  // two at a change whose first readings lie close
  }
}

TEST_CASE("neither a slow first reading nor readings on end make the first stamps wrong") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    World world;
    world.rng.seed(seed);
    world.read(4'000);
    // Three readings in each wake, ten of them until there are stamps.
    while (!world.cross.to_raw(world.wall()).has_value()) {
      world.pass(10 * kMs);
      for (int i = 0; i < 3; ++i) {
        world.pass(5'000);
        world.read(60);
      }
    }
    CHECK(std::abs(world.off()) <= 60);
    CHECK(world.worst(100 * kMs) <= 60);
  }
}

TEST_CASE("two steps, one after the other, are no rate") {
  World world;
  world.run(400 * kMs);
  for (const Nanos step : {5 * kMs, -7 * kMs}) {
    world.base += step;
    world.pass(kMs);
    world.read();
  }
  CHECK(world.cross.steps() == 2);
  world.run(250 * kMs);
  CHECK(world.worst(300 * kMs) <= 12);
}

TEST_CASE("readings that took long say nothing, and far stamps are not converted") {
  World world;
  world.run(400 * kMs);
  const Nanos wall = world.wall();
  world.cross.add(world.raw, world.wall() + 50'000, world.raw + 100'000);
  world.cross.add(world.raw + 10, world.wall(), world.raw);
  CHECK(world.cross.steps() == 0);
  CHECK(world.cross.to_raw(wall).has_value());
  CHECK_FALSE(world.cross.to_raw(wall - 2 * CrossTimestamp::kFarthest).has_value());
  CHECK_FALSE(world.cross.to_raw(wall + 2 * CrossTimestamp::kFarthest).has_value());
}

TEST_CASE("after a stop of the prober the line still holds") {
  World world;
  world.rate = 30e-6;
  world.run(400 * kMs);
  world.pass(900 * kMs);
  world.read();
  CHECK(world.cross.steps() == 0);
  CHECK(std::abs(world.off()) <= 200);
  world.run(100 * kMs);
  CHECK(world.worst(100 * kMs) <= 12);
}
