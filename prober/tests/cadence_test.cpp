#include "core/cadence.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

using namespace fabric::prober;

namespace {
constexpr Nanos kMs = 1'000'000;
}

TEST_CASE("In each slot a host meets one other, and both agree on the slot") {
  for (std::uint32_t n = 2; n <= 13; ++n) {
    std::vector<std::uint32_t> members;
    for (std::uint32_t i = 0; i < n; ++i) members.push_back(100 + 7 * i);
    for (const auto me : members) {
      std::set<std::uint32_t> slots;
      for (const auto peer : members) {
        if (peer == me) continue;
        const Slot mine = meeting_slot(members, me, peer);
        CHECK(mine.index == meeting_slot(members, peer, me).index);
        CHECK(mine.count == (n % 2 == 0 ? n - 1 : n));
        CHECK(mine.index < mine.count);
        slots.insert(mine.index);
      }
      CHECK(slots.size() == n - 1);  // no two peers in one slot
    }
  }
}

TEST_CASE("A link hears something every interval while each path is probed at peers x interval") {
  // Four hosts, link interval 10 ms; each with an arbitrary monotonic clock, one wall clock.
  const std::vector<std::uint32_t> members = {3, 17, 40, 99};
  const Nanos period = 30 * kMs;
  std::map<std::uint32_t, std::vector<Nanos>> heard;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Nanos>> path;
  for (const auto from : members) {
    const Nanos boot = static_cast<Nanos>(from) * 123'456'789;
    for (const auto to : members) {
      if (from == to) continue;
      Cadence cadence(period, meeting_slot(members, from, to));
      cadence.start(0, boot);
      while (cadence.due() < 1000 * kMs) {
        const Nanos wall = cadence.due() + boot - boot / period * period;
        heard[to].push_back(wall);
        path[{from, to}].push_back(cadence.due());
        cadence.advance(cadence.due() + 50'000, boot);
      }
    }
  }
  for (auto& [host, times] : heard) {
    // Phase within the period: three distinct slots, 10 ms apart.
    std::set<Nanos> phases;
    for (const Nanos t : times) phases.insert(t % period / kMs);
    CHECK(phases == std::set<Nanos>{0, 10, 20});
  }
  for (const auto& [ends, times] : path) {
    for (std::size_t i = 1; i < times.size(); ++i) CHECK(times[i] - times[i - 1] == period);
  }
}

TEST_CASE("A step of the wall clock never makes a gap of 1.5 intervals") {
  Cadence cadence(40 * kMs, {1, 4});
  Nanos offset = 5 * kMs;
  cadence.start(0, offset);
  Nanos last = cadence.due();
  for (int i = 0; i < 400; ++i) {
    if (i % 37 == 5) offset += (i % 2 == 0 ? 1 : -1) * 17'300'000;
    cadence.advance(cadence.due() + 10'000, offset);
    const Nanos step = cadence.due() - last;
    CHECK(step >= 37 * kMs);
    CHECK(step <= 43 * kMs);
    last = cadence.due();
  }
}

TEST_CASE("After a stall the past instants are dropped") {
  Cadence cadence(10 * kMs, {});
  cadence.start(0, 0);
  CHECK(cadence.due() == 10 * kMs);
  cadence.advance(1003 * kMs, 0);
  CHECK(cadence.due() == 1010 * kMs);
}
