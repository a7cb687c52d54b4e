// Probes by fabric time: when they go, when a lost one is called, and that nothing else is.
#include <doctest/doctest.h>

#include <random>

#include "rounds.h"
#include "world.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;

namespace {

constexpr Nanos kGridPace = 10 * kMs;
constexpr Nanos kGridAhead = 1'700'000'000'003'700'000;  // not on the wall's grid

World meshed(std::uint8_t hosts, bool clock = false) {
  World w;
  for (std::uint8_t h = 1; h <= hosts; ++h) {
    // Wall clocks that differ, as those of hosts do.
    w.wall[h] = h * 1'300'000;
    w.page[h] = FabricReading{kGridAhead, 900, 7};
    std::vector<std::uint8_t> peers;
    for (std::uint8_t p = 1; p <= hosts; ++p) {
      if (p != h) peers.push_back(p);
    }
    w.start(h, 100U + h, peers, 1, kGridPace, clock);
  }
  return w;
}

std::size_t by_due_time(const World& w, std::uint8_t number) {
  std::size_t count = 0;
  const Host& h = w.hosts.at(number);
  for (std::size_t i = 0; i < h.engine->path_count(); ++i) {
    if ((row(h, i).flags & ring::kPathByDueTime) != 0) ++count;
  }
  return count;
}

std::size_t misses(const World& w) {
  std::size_t count = 0;
  for (const auto& [number, h] : w.hosts) count += h.records.of(EventKind::kMiss).size();
  return count;
}

}  // namespace

TEST_CASE("Packets go by the grid of fabric time, whatever the wall clocks say") {
  for (const bool clock : {false, true}) {
    World w = meshed(4, clock);
    w.run(3000 * kMs);
    for (std::uint8_t h = 1; h <= 4; ++h) {
      CHECK(w.hosts[h].engine->synchronized());
      CHECK(by_due_time(w, h) == 3);
    }
    CHECK(misses(w) == 0);
    w.captured.clear();
    w.run(300 * kMs);
    int singles = 0;
    for (const auto& [at, bytes] : w.captured) {
      Packet p;
      REQUIRE(decode_unauthenticated(bytes, p) == WireError::kNone);
      CHECK(p.next_due != 0);
      if ((p.flags & (kWireTrainMask | kWireReport)) != 0) continue;
      ++singles;
      CHECK((p.due_time + kGridAhead) % kGridPace == 0);
    }
    CHECK(singles >= 29);
    CHECK(w.hosts[1].engine->counters().due_times_refused == 0);
  }
}

TEST_CASE("A one-way loss is called by the receiver a fraction of an interval after it was due") {
  for (const bool synchronized : {true, false}) {
    World w = meshed(4);
    if (!synchronized) w.page.clear();
    w.run(3000 * kMs);
    const Nanos cut = w.now;
    w.lost = [](auto from, auto to, auto) { return from == 2 && to == 1; };
    w.run(200 * kMs);
    const auto seen = w.hosts[1].records.misses(false);
    REQUIRE(seen.size() >= 4);
    CHECK(seen[0].count == 1);
    CHECK(seen[0].flags == 0);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const Nanos due = static_cast<Nanos>(seen[i].value[3]);
      if (!synchronized) {
        CHECK(due == 0);
        continue;
      }
      CHECK(due > cut - kMs);
      CHECK((due + kGridAhead) % kGridPace < 256);
      const Nanos after = static_cast<Nanos>(seen[i].mono_ns) - due;
      // The world's steps, what a packet may go early by, and after the first what a grid may move
      // by.
      CHECK(after >= DueTimeTracker::grace(kGridPace) - kMs / 2);
      CHECK(after <= DueTimeTracker::grace(kGridPace) + kMs + (i == 0 ? 0 : 3 * kGridPace / 16));
    }
    const auto r = row(w.hosts[1], 0);
    CHECK((r.late_ns < 5 * kMs) == synchronized);
    CHECK(r.late_ns > 0);
    // The peer hears of it at once, and believes it.
    const auto told = w.hosts[2].records.misses(true);
    REQUIRE_FALSE(told.empty());
    CHECK(told[0].flags == ring::kFlagTx);
    CHECK(told[0].mono_ns - seen[0].mono_ns < 2'500'000);
    CHECK(w.hosts[1].records.misses(true).empty());
  }
}

TEST_CASE(
    "No transition looks like a miss: page gone, holdover, epochs, jumps, at any of the ends") {
  // Ten peers: a grid that is pulled moves by 6 ms a period, more than packets may be late.
  for (const std::uint8_t hosts : {std::uint8_t{2}, std::uint8_t{4}, std::uint8_t{11}}) {
    World w = meshed(hosts, hosts == 4);
    w.run(3000 * kMs);
    std::mt19937_64 rng(hosts);
    Nanos ahead = kGridAhead;
    std::uint64_t epoch = 7;
    std::size_t judged = 0;
    for (int i = 0; i < fabric::testing::rounds(40); ++i) {
      const bool all = rng() % 2 == 0;
      const auto one = static_cast<std::uint8_t>(1 + rng() % hosts);
      std::optional<FabricReading> says;
      switch (rng() % 4) {
        case 0:
          break;  // gone
        case 1:
          says = FabricReading{ahead, kMs, epoch};
          break;
        case 2:  // a mesh's time is taken over
          ahead += static_cast<Nanos>(rng() % 20'000'000) - 10 * kMs;
          says = FabricReading{ahead, 900, ++epoch};
          break;
        default:  // it jumps within its epoch, which it never should
          says =
              FabricReading{ahead + static_cast<Nanos>(rng() % 20'000'000) - 10 * kMs, 900, epoch};
          break;
      }
      for (std::uint8_t h = 1; h <= hosts; ++h) {
        if (all || h == one) w.page[h] = says;
      }
      w.run(static_cast<Nanos>(rng() % 2500) * kMs);
      if (rng() % 2 == 0) {
        for (std::uint8_t h = 1; h <= hosts; ++h) w.page[h] = FabricReading{ahead, 900, epoch};
        w.run(static_cast<Nanos>(rng() % 3000) * kMs);
      }
      judged += by_due_time(w, 1);
    }
    CHECK(judged > 0);
    CHECK(misses(w) == 0);
  }
}

TEST_CASE("What owes to our own stop is inconclusive, wherever it falls") {
  for (const Nanos length : {20 * kMs, 60 * kMs, 300 * kMs}) {
    for (const auto where : {Point::kBetweenSockets, Point::kBeforeJudge, Point::kBeforeSend}) {
      World w = meshed(3);
      w.run(3000 * kMs);
      for (int i = 0; i < 5; ++i) {
        w.freeze_in_pass(1, where, length);
        w.run(length + 137 * kMs);
      }
      CHECK(by_due_time(w, 1) == 2);
      for (const auto& m : w.hosts[1].records.misses(false)) {
        CHECK((m.flags & ring::kFlagInconclusive) != 0);
      }
      CHECK(row(w.hosts[1], 0).rx_missed == 0);
    }
  }
}

TEST_CASE("A loss in the midst of our own stop is called once we have run long enough") {
  World w = meshed(2);
  w.run(3000 * kMs);
  w.lost = [](auto from, auto, auto) { return from == 2; };
  w.run(2 * kMs);
  w.freeze(1, 100 * kMs);
  w.run(102 * kMs);
  CHECK(row(w.hosts[1]).rx_missed <= 1);
  w.run(100 * kMs);
  CHECK(row(w.hosts[1]).rx_missed >= 8);
}

TEST_CASE("A peer that lies about due times makes no loss of what comes in time, and is counted") {
  std::mt19937_64 rng(17);
  for (int way = 0; way < 4; ++way) {
    CAPTURE(way);
    World w = meshed(4, way == 3);
    Nanos settled_until = 0;
    w.rewrite[2] = [&](Packet& p) {
      if (p.next_due == 0 || w.now < settled_until) return;
      switch (way) {
        case 0:
          p.next_due = static_cast<std::uint32_t>(rng());
          break;
        case 1:  // always too early, by anything up to two intervals
          p.next_due -= static_cast<std::uint32_t>(rng() % (60'000'000 / 256)) << 4;
          break;
        case 2:  // always a little too early
          p.next_due -= static_cast<std::uint32_t>(rng() % (4'000'000 / 256)) << 4;
          break;
        default:
          p.next_due += static_cast<std::uint32_t>(rng() % (60'000'000 / 256)) << 4;
          break;
      }
    };
    settled_until = w.now + 4000 * kMs;  // believed first
    w.run(4000 * kMs);
    CHECK(by_due_time(w, 1) == 3);
    w.run(8000 * kMs);
    CHECK(w.hosts[1].records.misses(false).empty());
    CHECK((w.hosts[1].engine->counters().due_times_refused > 0) == (way != 2));
    // And a loss is called all the same.
    w.lost = [](auto from, auto to, auto) { return from == 2 && to == 1; };
    w.run(60 * kMs);
    CHECK(w.hosts[1].records.misses(false).size() >= 1);
  }
}

TEST_CASE("With an older peer, or one that may not, the rules are those of before") {
  World w = meshed(3);
  w.older[2] = true;
  Config c = w.hosts[3].engine->config();
  c.synchronized = false;
  w.hosts[3].engine->configure(c, w.now, w.wall[3]);
  w.run(4000 * kMs);
  CHECK(w.hosts[1].engine->synchronized());
  CHECK_FALSE(w.hosts[3].engine->synchronized());
  CHECK(by_due_time(w, 1) == 0);
  CHECK(by_due_time(w, 2) == 1);
  CHECK(by_due_time(w, 3) == 0);
  CHECK(misses(w) == 0);
}

TEST_CASE("A queue that builds up within some packets is no loss") {
  World w = meshed(4);
  w.run(3000 * kMs);
  for (int i = 0; i < 40; ++i) {
    for (int step = 0; step < 10; ++step) {
      w.delay += 2 * kMs;
      w.run(30 * kMs);
    }
    for (; w.delay > kMs; w.delay -= 2 * kMs) w.run(30 * kMs);
  }
  for (const auto& [number, h] : w.hosts) CHECK(h.records.misses(false).empty());
}
