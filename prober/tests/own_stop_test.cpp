// What a prober that stood still, or whose packets stood in its own queue, says of its peers.
#include "core/engine.h"

#include <doctest/doctest.h>

#include "world.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;

namespace {

void check_own_stop(const World& w, Nanos length) {
  const Host& one = w.hosts.at(1);
  for (const auto& m : one.records.of(EventKind::kMiss)) {
    CHECK((m.flags & ring::kFlagInconclusive) != 0);
    CHECK(m.count == 0);
  }
  CHECK_FALSE(one.records.misses(true).empty());  // the peer did miss us, and said so
  CHECK(one.records.of(EventKind::kStall).size() == 1);
  const auto& counters = one.engine->counters();
  CHECK(counters.stall_max_ns >= length - 10 * kMs);
  CHECK(counters.stall_ns <= length + 10 * kMs);  // and not noted twice
  for (std::size_t path = 0; path < one.engine->path_count(); ++path) {
    CHECK(row(one, path).rx_missed == 0);
    CHECK(row(one, path).tx_missed == 0);
  }
  for (const auto& m : w.hosts.at(2).records.misses(false)) {
    CHECK((m.flags & ring::kFlagInconclusive) == 0);
  }
}

}  // namespace

TEST_CASE("Own gap of one second: no conclusive miss at the one that was stopped") {
  World w = two_hosts();
  w.run(1000 * kMs);
  w.freeze(1, 1000 * kMs);
  w.run(2000 * kMs);
  const Records& r = w.hosts[1].records;
  const auto stalls = r.of(EventKind::kStall);
  REQUIRE(stalls.size() == 1);
  CHECK(stalls[0].value[0] >= 990 * kMs);
  for (const auto& m : r.of(EventKind::kMiss)) CHECK((m.flags & ring::kFlagInconclusive) != 0);
  CHECK_FALSE(r.misses(true).empty());  // the peer did miss us, and said so: our own doing
  CHECK(row(w.hosts[1]).tx_missed == 0);
  // The peer saw a true silence, and hears why when it ends.
  const Records& other = w.hosts[2].records;
  CHECK(other.misses(false).size() >= 90);
  const auto heard = other.of(EventKind::kHeard);
  REQUIRE(heard.size() == 2);
  CHECK((heard[1].flags & ring::kFlagPeerStalled) != 0);
}

TEST_CASE("Own stop in the middle of a pass: no conclusive miss either") {
  for (const Point where : {Point::kBetweenSockets, Point::kBeforeJudge, Point::kBeforeSend}) {
    for (Nanos phase = 0; phase < 10 * kMs; phase += kMs) {
      CAPTURE(static_cast<int>(where));
      CAPTURE(phase);
      World w = two_hosts(10 * kMs, false, 2);
      w.run(1000 * kMs + phase);
      w.freeze_in_pass(1, where, 1000 * kMs);
      w.run(2000 * kMs);
      check_own_stop(w, 1000 * kMs);
    }
  }
}

TEST_CASE("Slow to speak after an own stop: what we did not send, nobody missed") {
  for (Nanos phase = 0; phase < 10 * kMs; phase += kMs) {
    CAPTURE(phase);
    World w = two_hosts(10 * kMs, false, 2);
    w.run(1000 * kMs + phase);
    w.freeze(1, 1000 * kMs);
    // What piled up takes a while to be read; no step of it is long enough to be a gap.
    w.freeze_in_pass(1, Point::kBetweenSockets, 19 * kMs / 4);
    w.freeze_in_pass(1, Point::kBeforeJudge, 9 * kMs / 4);
    w.freeze_in_pass(1, Point::kBeforeSend, 9 * kMs / 4);
    w.run(2000 * kMs);
    check_own_stop(w, 1000 * kMs);
  }
}

TEST_CASE("What the kernel had no way for nobody missed; when that lasts it is told") {
  for (Nanos phase = 0; phase < 20 * kMs; phase += kMs) {
    CAPTURE(phase);
    World w = two_hosts(10 * kMs, phase % 2 != 0);  // with trains, too
    w.run(1000 * kMs + phase);
    w.no_way[1] = true;
    w.run(500 * kMs);
    CHECK(row(w.hosts[2]).rx_missed >= 40);
    CHECK(row(w.hosts[1]).tx_missed == 0);
    w.no_way[1] = false;
    w.run(200 * kMs);
    CHECK(row(w.hosts[2]).rx_missed == 0);
    for (const auto& miss : w.hosts[1].records.misses(true)) CHECK(miss.count == 0);

    w.no_way[1] = true;
    w.run(950 * kMs);
    CHECK(row(w.hosts[1]).tx_missed == 0);
    w.run(250 * kMs);
    CHECK(row(w.hosts[1]).tx_missed >= 3);
  }
}

TEST_CASE("The run of misses on a link, over all its paths, for as long as it is news") {
  World w;
  w.start(1, 111, {2, 3}, 2, 10 * kMs);
  w.start(2, 222, {1, 3}, 2, 10 * kMs);
  w.start(3, 333, {1, 2}, 2, 10 * kMs);
  w.run(1000 * kMs);
  CHECK(w.hosts[1].engine->miss_run() == 0);
  w.lost = [](auto, auto to, auto rail) { return to == 1 && rail == 1; };
  w.run(45 * kMs);  // three of either peer in turn
  CHECK(w.hosts[1].engine->miss_run() >= 2);
  w.run(1000 * kMs);
  CHECK(w.hosts[1].engine->miss_run() == 0);
  CHECK(row(w.hosts[1], 2).rx_missed > 16);
  w.lost = [](auto, auto, auto) { return false; };
  w.run(100 * kMs);
  CHECK(w.hosts[1].engine->miss_run() == 0);
  CHECK(row(w.hosts[1], 2).rx_missed == 0);
}

TEST_CASE("What stands in the own queue nobody missed; a queue that is stuck is told") {
  for (Nanos phase = 0; phase < 10 * kMs; phase += kMs) {
    CAPTURE(phase);
    World w = two_hosts();
    w.run(1000 * kMs + phase);
    w.queued_until[1] = w.now + 60 * kMs;
    w.run(59 * kMs);
    CHECK(row(w.hosts[2]).rx_missed >= 3);  // it cannot know
    CHECK(row(w.hosts[1]).tx_missed == 0);
    w.run(30 * kMs);
    CHECK(row(w.hosts[1]).tx_missed == 0);
    CHECK(row(w.hosts[2]).rx_missed == 0);

    w.queued_until[1] = w.now + 1000 * kMs;
    w.run(90 * kMs);
    CHECK(row(w.hosts[1]).tx_missed == 0);
    w.run(60 * kMs);
    CHECK(row(w.hosts[1]).tx_missed >= 3);
  }
}

TEST_CASE("After an own stop each packet that the peer does not hear counts again") {
  World w = two_hosts();
  w.run(1000 * kMs);
  w.freeze(1, 1000 * kMs);
  w.run(1000 * kMs);
  w.lost = [](auto from, auto, auto) { return from == 1; };
  w.run(100 * kMs);
  CHECK(row(w.hosts[1]).tx_missed >= 8);
  CHECK(row(w.hosts[1]).tx_missed <= 11);
  CHECK(row(w.hosts[1]).rx_missed == 0);
}

TEST_CASE("Own gap with a full socket: inconclusive first, conclusive after 1.5 waking intervals") {
  World w = two_hosts();
  w.run(1000 * kMs);
  w.lost = [](auto, auto to, auto) { return to == 1; };
  w.freeze(1, 500 * kMs);
  w.run(500 * kMs);
  const Nanos woke = w.now;
  w.run(100 * kMs);
  const auto misses = w.hosts[1].records.misses(false);
  REQUIRE_FALSE(misses.empty());
  CHECK((misses[0].flags & ring::kFlagInconclusive) != 0);
  CHECK(misses[0].count == 0);
  const auto first = std::find_if(misses.begin(), misses.end(), [](const auto& m) {
    return (m.flags & ring::kFlagInconclusive) == 0;
  });
  REQUIRE(first != misses.end());
  CHECK(first->count == 1);
  CHECK(static_cast<Nanos>(first->mono_ns) - woke >= 2 * kMs);
  CHECK(static_cast<Nanos>(first->mono_ns) - woke <= 20 * kMs);
}
