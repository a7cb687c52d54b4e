// Stamps of a device's clock as times of the raw clock.
#include "core/device_clock.h"

#include <doctest/doctest.h>

#include <cstdint>

#include "util.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

namespace {

constexpr Nanos kLate = std::int64_t{1} << 60;

// A clock of `khz` whose crystal is 40 ppm fast, and which began at some number.
struct Crystal {
  std::uint64_t khz;
  std::uint64_t mask;
  std::uint64_t began;

  std::uint64_t at(Nanos raw) const {
    const auto passed = static_cast<double>(raw) * static_cast<double>(khz) / 1e6 * (1 + 40e-6);
    return (began + static_cast<std::uint64_t>(passed)) & mask;
  }
};

constexpr std::uint64_t bits(unsigned count) {
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

TEST_CASE("device clock: stamps before and after a reading become times of the raw clock") {
  for (const std::uint64_t khz : {156'250ULL, 1'000'000ULL, 276'000ULL}) {
    for (const unsigned count : {64U, 48U, 40U, 32U}) {
      // Some readings away from where its bits end.
      const Crystal crystal{khz, bits(count), bits(count) - 400 * khz};
      DeviceClock clock(crystal.mask, khz);
      Nanos now = 5 * 1000 * kMs;
      CHECK_FALSE(clock.to_raw(crystal.at(now), 0, kLate));
      for (int i = 0; i < 200; ++i, now += 5 * kMs)
        clock.add(now - 300, crystal.at(now), now + 300);
      for (const Nanos apart : {-4 * kMs, Nanos{-20'000}, Nanos{0}, Nanos{30'000}, 4 * kMs}) {
        const auto raw = clock.to_raw(crystal.at(now + apart), 0, kLate);
        REQUIRE(raw);
        CHECK(std::abs(*raw - (now + apart)) < 100);
      }
    }
  }
}

TEST_CASE("device clock: what cannot be the time of a packet is none") {
  const Crystal crystal{1'000'000, bits(48), 77};
  DeviceClock clock(crystal.mask, crystal.khz);
  Nanos now = 5 * 1000 * kMs;
  for (int i = 0; i < 200; ++i, now += 5 * kMs) clock.add(now, crystal.at(now), now);
  CHECK(clock.to_raw(crystal.at(now - kMs), now - 2 * kMs, now));
  CHECK_FALSE(clock.to_raw(crystal.at(now - 3 * kMs), now - 2 * kMs, now));
  CHECK_FALSE(clock.to_raw(crystal.at(now + kMs), now - 2 * kMs, now));
  CHECK_FALSE(clock.to_raw(0, now - 2 * kMs, now));
  CHECK_FALSE(clock.to_raw(~std::uint64_t{0}, now - 2 * kMs, now));
  // The device was reset: no line at first, then another one.
  const Crystal reset{1'000'000, bits(48), bits(40)};
  now += 5 * kMs;
  clock.add(now, reset.at(now), now);
  CHECK_FALSE(clock.to_raw(reset.at(now), now - kMs, now + kMs));
  for (int i = 0; i < 200; ++i, now += 5 * kMs) clock.add(now, reset.at(now), now);
  const auto raw = clock.to_raw(reset.at(now), now - kMs, now + kMs);
  REQUIRE(raw);
  CHECK(std::abs(*raw - now) < 100);
}

TEST_CASE("device clock: a device without one has no stamps") {
  for (DeviceClock clock : {DeviceClock(), DeviceClock(bits(48), 0), DeviceClock(0, 1000)}) {
    CHECK_FALSE(clock.exists());
    for (Nanos now = kMs; now < 1000 * kMs; now += 5 * kMs) clock.add(now, 5, now);
    CHECK_FALSE(clock.to_raw(5, 0, kLate));
  }
}
