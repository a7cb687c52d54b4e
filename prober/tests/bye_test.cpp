// A path that ends by intent: no miss, no loss, and back again.
#include <doctest/doctest.h>

#include "world.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;

namespace {

constexpr Nanos kInterval = 10 * kMs;

World three() {
  World w;
  w.start(1, 111, {2, 3}, 2, kInterval);
  w.start(2, 222, {1, 3}, 2, kInterval);
  w.start(3, 333, {1, 2}, 2, kInterval);
  w.run(1000 * kMs);
  return w;
}

// The configuration of a host without one peer on one rail.
Config without(const Host& host, std::uint8_t rail, std::uint8_t peer) {
  Config config = host.engine->config();
  std::erase_if(config.paths, [&](const PathConfig& p) {
    return p.link == rail && p.host_id == World::id(peer);
  });
  for (std::size_t i = 0; i < config.paths.size(); ++i) {
    config.paths[i].index = static_cast<std::uint16_t>(i);
  }
  return config;
}

void drop(World& w, std::uint8_t host, std::uint8_t rail, std::uint8_t peer) {
  Host& h = w.hosts[host];
  h.engine->configure(without(h, rail, peer), w.now, 0);
}

bool gone(const ring::PathRow& r) { return (r.flags & ring::kPathGone) != 0; }

// Host 2's paths: rail 0 to 1 and 3, rail 1 to 1 and 3.
constexpr std::size_t kRail0ToOne = 0;
constexpr std::size_t kRail1ToOne = 2;

}  // namespace

TEST_CASE("A path that is taken out at one end is gone at the other, not missed") {
  World w = three();
  drop(w, 1, 1, 2);
  w.run(3000 * kMs);
  const Host& two = w.hosts[2];
  CHECK(gone(row(two, kRail1ToOne)));
  CHECK_FALSE(gone(row(two, kRail0ToOne)));
  CHECK(two.records.of(EventKind::kMiss).empty());
  CHECK(row(two, kRail1ToOne).rx_missed == 0);
  CHECK(row(two, kRail1ToOne).rx_lost == 0);
  // Nor does the one that left hear complaints.
  CHECK(w.hosts[1].records.of(EventKind::kMiss).empty());
}

TEST_CASE("A path that comes back goes on with its sequence, and is judged again") {
  World w = three();
  const Config before = w.hosts[1].engine->config();
  drop(w, 1, 1, 2);
  w.run(2000 * kMs);
  w.hosts[1].engine->configure(before, w.now, 0);
  w.run(1000 * kMs);
  for (const std::uint8_t number : {std::uint8_t{1}, std::uint8_t{2}}) {
    const Host& h = w.hosts[number];
    const auto r = row(h, kRail1ToOne);
    CHECK_FALSE(gone(r));
    CHECK(r.rx_lost == 0);
    CHECK(r.tx_lost == 0);
    CHECK(r.restarts == 0);
    CHECK(h.records.of(EventKind::kMiss).empty());
    CHECK(h.records.of(EventKind::kHeard).size() >= 5);  // four first ones, and the return
  }
  w.lost = [](auto from, auto to, auto rail) { return from == 1 && to == 2 && rail == 1; };
  w.run(500 * kMs);
  CHECK(row(w.hosts[2], kRail1ToOne).rx_missed >= 3);
}

TEST_CASE("What is lost after a return is counted at both ends, as before it") {
  World w = three();
  const Config before = w.hosts[1].engine->config();
  std::uint64_t lost = 0;
  int number = 0;
  const auto lossy = [&](auto from, auto to, auto rail) {
    const bool hit = from == 1 && to == 2 && rail == 1 && ++number % 4 == 0;
    lost += hit ? 1U : 0U;
    return hit;
  };
  const auto check = [&] {
    w.lost = lossy;
    w.run(2000 * kMs);
    w.lost = [](auto, auto, auto) { return false; };
    w.run(500 * kMs);
    CHECK(row(w.hosts[2], kRail1ToOne).rx_lost == lost);
    CHECK(row(w.hosts[1], kRail1ToOne).tx_lost == lost);  // both have it as their third
  };
  check();
  const std::uint64_t first = lost;
  CHECK(first >= 10);
  drop(w, 1, 1, 2);
  w.run(1000 * kMs);
  w.hosts[1].engine->configure(before, w.now, 0);
  w.run(1000 * kMs);
  check();
  CHECK(lost > first + 10);
}

TEST_CASE("Lost byes are sent again") {
  World w = three();
  int left = 2;
  w.lost = [&](auto from, auto to, auto rail) {
    return from == 1 && to == 2 && rail == 1 && left-- > 0;
  };
  drop(w, 1, 1, 2);
  w.run(1000 * kMs);
  CHECK(left < 0);
  CHECK(gone(row(w.hosts[2], kRail1ToOne)));
  CHECK(w.hosts[2].records.of(EventKind::kMiss).empty());
}

TEST_CASE("A prober that stops says so on every path; its next life is heard as a restart") {
  World w = three();
  std::vector<Outgoing> out;
  Host& one = w.hosts[1];
  one.engine->send_byes(nullptr, w.now, out);
  REQUIRE(out.size() == 4);
  for (const Outgoing& o : out) {
    const std::uint8_t rail = o.destination.ip[13];
    w.inject(o.destination.ip[15], rail, v4(rail, 1), {o.bytes.begin(), o.bytes.end()});
  }
  one.engine.reset();
  w.run(3000 * kMs);
  CHECK(gone(row(w.hosts[2], kRail0ToOne)));
  CHECK(gone(row(w.hosts[2], kRail1ToOne)));
  CHECK(w.hosts[2].records.of(EventKind::kMiss).empty());
  w.start(1, 112, {2, 3}, 2, kInterval);
  w.run(1000 * kMs);
  CHECK_FALSE(gone(row(w.hosts[2], kRail0ToOne)));
  CHECK(row(w.hosts[2], kRail0ToOne).restarts == 1);
  CHECK(w.hosts[2].records.of(EventKind::kMiss).empty());
}

TEST_CASE("A bye cannot be forged without the key, nor replayed") {
  World w = three();
  Host& two = w.hosts[2];
  Packet forged;
  forged.flags = kWireReport | kWireBye;
  forged.host_id = World::id(1);
  forged.incarnation = 111;
  forged.seq = 1'000'000;
  const auto bytes = encode(forged, ring_of({key(8)}), v4(0, 1), v4(0, 2));
  w.inject(2, 0, v4(0, 1), {bytes.begin(), bytes.end()});
  w.run(100 * kMs);
  CHECK_FALSE(gone(row(two, kRail0ToOne)));

  // A true one, captured, after the path is back.
  const Config before = w.hosts[1].engine->config();
  w.captured.clear();
  drop(w, 1, 0, 2);
  w.run(100 * kMs);
  CHECK(gone(row(two, kRail0ToOne)));
  const auto captured = w.captured;
  w.hosts[1].engine->configure(before, w.now, 0);
  w.run(1500 * kMs);
  CHECK_FALSE(gone(row(two, kRail0ToOne)));
  for (const auto& [at, packet] : captured) w.inject(2, 0, v4(0, 1), packet);
  w.run(5 * kMs);
  CHECK_FALSE(gone(row(two, kRail0ToOne)));
}

TEST_CASE("What was under way before the bye is no return") {
  World w = three();
  Host& one = w.hosts[1];
  std::vector<Outgoing> single;
  std::vector<Outgoing> bye;
  while (single.empty()) {
    w.now += kMs;
    one.engine->take_due(w.now, 0, single);
  }
  one.engine->send_byes(nullptr, w.now, bye);
  one.engine.reset();
  const auto give = [&](const std::vector<Outgoing>& all) {
    for (const Outgoing& o : all) {
      const std::uint8_t rail = o.destination.ip[13];
      w.inject(o.destination.ip[15], rail, v4(rail, 1), {o.bytes.begin(), o.bytes.end()});
    }
    w.run(5 * kMs);
  };
  give(bye);
  give(single);
  w.run(1000 * kMs);
  for (const std::size_t path : {kRail0ToOne, kRail1ToOne}) CHECK(gone(row(w.hosts[2], path)));
  CHECK(w.hosts[2].records.of(EventKind::kMiss).empty());
}

TEST_CASE("A receiver that does not know the flag sees a report, which moves no due time") {
  CHECK((kWireBye & (kWireTrainMask | kWireReport | kWireStalled | kWireHwStamps)) == 0);
  World w = three();
  w.captured.clear();
  drop(w, 1, 1, 2);
  w.run(100 * kMs);
  int byes = 0;
  for (const auto& [at, bytes] : w.captured) {
    Packet p;
    REQUIRE(decode_unauthenticated(bytes, p) == WireError::kNone);
    if ((p.flags & kWireBye) == 0) continue;
    ++byes;
    CHECK((p.flags & kWireReport) != 0);
  }
  CHECK(byes >= 3);
}
