// What packets say of their sender: when they were due, and how long it had been awake by then.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

#include "core/engine.h"
#include "world.h"

using namespace fabric::prober;
using namespace fabric::prober::test;

TEST_CASE("What a packet says: nothing was left out that was due while its sender was awake") {
  World w;
  for (std::uint8_t h = 1; h <= 3; ++h) {
    std::vector<std::uint8_t> peers;
    for (std::uint8_t p = 1; p <= 3; ++p) {
      if (p != h) peers.push_back(p);
    }
    w.start(h, 100U + h, peers, 2, 10 * kMs, true);
  }
  std::mt19937_64 rng(7);
  w.run(300 * kMs);
  for (int i = 0; i < 60; ++i) {
    const auto where = static_cast<Point>(rng() % 3);
    const Nanos length = static_cast<Nanos>(rng() % 120) * kMs;
    if (rng() % 4 == 0) {
      w.freeze(1, length);
    } else {
      w.freeze_in_pass(1, where, length);
    }
    w.run(length + static_cast<Nanos>(rng() % 60) * kMs);
  }
  w.run(300 * kMs);
  struct Said {
    Nanos awake_since;
    Nanos due;
  };
  std::vector<Said> said;
  std::map<std::uint32_t, std::vector<Nanos>> singles;  // when they were due, by path
  for (const auto& [at, bytes] : w.captured) {
    Packet p;
    REQUIRE(decode_unauthenticated(bytes, p) == WireError::kNone);
    CHECK(p.due_time <= at + 1 * kMs);
    said.push_back({p.due_time - Nanos{p.awake_us} * 1000, p.due_time});
    if ((p.flags & (kWireTrainMask | kWireReport)) == 0) singles[p.path].push_back(p.due_time);
  }
  REQUIRE(singles.size() == 4);
  int left_out = 0;
  for (const auto& [path, dues] : singles) {
    for (std::size_t i = 1; i < dues.size(); ++i) {
      for (Nanos due = dues[i - 1] + 20 * kMs; due < dues[i] - 10 * kMs; due += 20 * kMs) {
        ++left_out;
        for (const Said& s : said) {
          CHECK_FALSE((s.awake_since + kMs < due && due < s.due - kMs));
        }
      }
    }
  }
  CHECK(left_out > 100);
}

TEST_CASE("When a path's packets are due, by its peer's clock; of an older peer by ours") {
  for (const bool older : {false, true}) {
    CAPTURE(older);
    World w;
    w.start(1, 111, {2}, 2, 10 * kMs, true);
    w.start(2, 222, {1}, 2, 10 * kMs, true);
    w.older[2] = older;
    w.run(1000 * kMs);
    w.freeze(2, 200 * kMs);
    w.run(230 * kMs);
    const auto r = row(w.hosts[1]);
    const auto said = static_cast<Nanos>(r.said_ns);
    const auto heard = static_cast<Nanos>(r.last_heard_ns);
    CHECK(heard - said >= (older ? 0 : -kMs));
    CHECK(heard - said <= (older ? 0 : w.delay + kMs));
    CHECK(static_cast<Nanos>(r.due_ns) - said > 0);
    CHECK(static_cast<Nanos>(r.due_ns) - said <= 10 * kMs);
    // It has been running for some 30 ms; an older one says that it had a gap within a second.
    CHECK(r.awake_us <= (older ? 0 : 31'000));
    CHECK(r.awake_us >= (older ? 0 : 15'000));
    w.run(1500 * kMs);
    CHECK(row(w.hosts[1]).awake_us >= 1'000'000);
  }
}

TEST_CASE("A prober that has just begun, or has another pace, does not say that it ran before") {
  World w;
  for (std::uint8_t h = 1; h <= 2; ++h) {
    w.start(h, 100U + h, {static_cast<std::uint8_t>(3 - h)}, 2, 10 * kMs, true);
  }
  w.run(1000 * kMs);
  CHECK(row(w.hosts[1]).awake_us <= 1'000'000);
  w.run(500 * kMs);
  const Nanos again = w.now;
  w.start(2, 202, {1}, 2, 10 * kMs, true);
  w.run(200 * kMs);
  CHECK(row(w.hosts[1]).peer_incarnation == 202);
  CHECK(Nanos{row(w.hosts[1]).awake_us} * 1000 <= w.now - again);
  w.run(1000 * kMs);
  // Four peers more that never answer: five times the period.
  Config c = w.hosts[2].engine->config();
  for (std::uint8_t more = 11; more <= 14; ++more) {
    for (std::uint8_t rail = 0; rail < 2; ++rail) {
      c.paths.push_back({static_cast<std::uint16_t>(c.paths.size()), rail, v4(rail, more),
                         World::id(more), false});
    }
  }
  const Nanos changed = w.now;
  w.hosts[2].engine->configure(c, w.now, 0);
  w.run(40 * kMs);  // trains go on
  CHECK(static_cast<Nanos>(row(w.hosts[1]).said_ns) > changed + 20 * kMs);
  CHECK(Nanos{row(w.hosts[1]).awake_us} * 1000 < w.now - changed);
  w.run(300 * kMs);
  CHECK(row(w.hosts[1]).awake_us > 100'000);
  CHECK(Nanos{row(w.hosts[1]).awake_us} * 1000 <= w.now - changed);
}
