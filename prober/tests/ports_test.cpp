// A path that is probed from another source port: what follows it, what it costs.
#include "core/ports.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "util.h"
#include "world.h"

using namespace fabric::prober;
using namespace fabric::prober::test;
namespace page = fabric::clock_ports;
namespace ring = fabric::ring;

namespace {

constexpr std::uint16_t kPort = 61'001;

World pair() {
  World w;
  w.start(1, 111, {2}, 1, 10 * kMs, true);
  w.start(2, 222, {1}, 1, 10 * kMs, true);
  w.run(500 * kMs);
  return w;
}

PortWish wish(std::uint16_t port = kPort) { return {v4(0, 1, 0), v4(0, 2), World::id(2), port}; }

std::uint16_t port_of(const ring::PathRow& row) {
  return static_cast<std::uint16_t>(row.flags >> ring::kPathPortShift);
}

std::uint32_t moves_of(const ring::PathRow& row) {
  return row.flags >> ring::kPathPeerMovesShift & 0xff;
}

std::size_t misses(World& w) {
  std::size_t count = 0;
  for (auto& [number, h] : w.hosts) {
    count += h.records.misses(false).size() + h.records.misses(true).size();
  }
  return count;
}

}  // namespace

TEST_CASE("a path moves to another source port without a miss, and nothing is lost") {
  World w = pair();
  w.left_from.clear();
  w.hosts[1].engine->set_ports({wish()});
  w.run(300 * kMs);
  CHECK(port_of(row(w.hosts[1])) == kPort);
  CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) == 0);
  const std::uint64_t before = w.left_from[9200];
  w.run(1000 * kMs);
  CHECK(w.left_from[9200] == before);
  CHECK(w.left_from[kPort] > 300);
  CHECK(misses(w) == 0);
  CHECK(row(w.hosts[1]).tx_lost == 0);
  CHECK(row(w.hosts[2]).rx_lost == 0);
  CHECK(moves_of(row(w.hosts[2])) == 1);
  CHECK(moves_of(row(w.hosts[1])) == 0);

  SUBCASE("to a further one, and back") {
    w.hosts[1].engine->set_ports({wish(kPort + 1)});
    w.run(300 * kMs);
    CHECK(port_of(row(w.hosts[1])) == kPort + 1);
    w.hosts[1].engine->set_ports({});
    w.run(100 * kMs);
    CHECK(port_of(row(w.hosts[1])) == 0);
    CHECK(moves_of(row(w.hosts[2])) == 3);
    CHECK(misses(w) == 0);
  }
  SUBCASE("it stays there when the prober is configured anew") {
    Config config = w.hosts[1].engine->config();
    w.hosts[1].engine->configure(config, w.now, 0);
    w.run(300 * kMs);
    CHECK(port_of(row(w.hosts[1])) == kPort);
    CHECK(misses(w) == 0);
  }
  SUBCASE("a peer that starts anew takes it from there") {
    w.start(2, 333, {1}, 1, 10 * kMs, true);
    w.run(500 * kMs);
    CHECK(row(w.hosts[2]).peer_incarnation == 111);
    CHECK(port_of(row(w.hosts[1])) == kPort);
  }
  SUBCASE("a peer that starts anew as an older one gets all from the link's own port") {
    w.older[2] = true;
    w.start(2, 333, {1}, 1, 10 * kMs, true);
    w.run(1000 * kMs);
    CHECK(row(w.hosts[1]).peer_incarnation == 333);
    CHECK(row(w.hosts[2]).peer_incarnation == 111);
    CHECK(port_of(row(w.hosts[1])) == 0);
    CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) != 0);
  }
  SUBCASE("once the peer misses what left from it, it goes from the link's own") {
    w.blocked = [](std::uint16_t port) { return port == kPort; };
    w.run(1000 * kMs);
    CHECK(port_of(row(w.hosts[1])) == 0);
    CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) != 0);
    CHECK(row(w.hosts[2]).rx_missed == 0);
  }
}

TEST_CASE("a port that nothing gets through is tried with packets that nobody waits for") {
  World w = pair();
  w.blocked = [](std::uint16_t port) { return port == kPort; };
  w.hosts[1].engine->set_ports({wish()});
  w.run(2000 * kMs);
  CHECK(port_of(row(w.hosts[1])) == 0);
  CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) != 0);
  CHECK(misses(w) == 0);
  CHECK(w.left_from[kPort] == 2);
  CHECK(row(w.hosts[2]).rx_lost == 2);
  CHECK(moves_of(row(w.hosts[2])) == 0);
}

TEST_CASE("to a peer that takes packets from one port only, none are sent from another") {
  World w;
  w.older[2] = true;
  w.start(1, 111, {2}, 1, 10 * kMs, true);
  w.start(2, 222, {1}, 1, 10 * kMs, true);
  w.run(500 * kMs);
  w.hosts[1].engine->set_ports({wish()});
  w.run(1000 * kMs);
  CHECK(w.left_from[kPort] == 0);
  CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) != 0);
  CHECK(misses(w) == 0);
}

TEST_CASE("a peer that has not spoken yet has refused nothing") {
  World w;
  w.start(1, 111, {2}, 1, 10 * kMs, true);
  w.hosts[1].engine->set_ports({wish()});
  w.run(300 * kMs);
  CHECK((row(w.hosts[1]).flags & ring::kPathPortRefused) == 0);
  CHECK(w.left_from[kPort] == 0);
  w.start(2, 222, {1}, 1, 10 * kMs, true);
  w.run(500 * kMs);
  CHECK(port_of(row(w.hosts[1])) == kPort);
}

TEST_CASE("what is asked for another path, host or link moves nothing") {
  World w = pair();
  PortWish other = wish();
  SUBCASE("peer") { other.peer = v4(0, 3); }
  SUBCASE("peer's port") { other.peer.port = 9201; }
  SUBCASE("host") { other.host_id = World::id(3); }
  SUBCASE("link") { other.own = v4(1, 1); }
  w.hosts[1].engine->set_ports({other});
  w.run(300 * kMs);
  CHECK(w.left_from[kPort] == 0);
  CHECK(port_of(row(w.hosts[1])) == 0);
}

TEST_CASE("packets from another port are those of the host that signed them, or refused") {
  World w = pair();
  const auto send = [&](std::uint32_t host_id, const Address& source) {
    Packet p;
    p.host_id = host_id;
    p.incarnation = 222;
    p.peer_incarnation = 111;
    p.seq = 1'000'000;
    const WireBytes b = encode(p, ring_of({key(9)}), source, v4(0, 1));
    w.inject(1, 0, source, {b.begin(), b.end()});
    w.run(20 * kMs);
  };
  const auto unknown = [&] {
    return w.hosts[1].engine->counters().refused[static_cast<std::size_t>(
        ring::Refusal::kUnknownPath)];
  };
  send(World::id(3), v4(0, 2, kPort));
  CHECK(unknown() == 1);
  send(0, v4(0, 2, kPort));
  CHECK(unknown() == 2);
  send(World::id(2), v4(0, 3, kPort));
  CHECK(unknown() == 3);
  send(World::id(2), v4(0, 2, 9201));
  CHECK(unknown() == 4);
  const auto received = row(w.hosts[1]).received;
  send(World::id(2), v4(0, 2, kPort));
  CHECK(unknown() == 4);
  CHECK(row(w.hosts[1]).received > received);
}

TEST_CASE("a record's entries are wishes, but for those that cannot be") {
  page::Record record{};
  for (int i = 0; i < 5; ++i) {
    page::Entry& e = record.entry[i];
    const Address own = v4(0, 1);
    const Address peer = v4(0, 2);
    std::copy(own.ip.begin(), own.ip.end(), e.own);
    std::copy(peer.ip.begin(), peer.ip.end(), e.peer);
    e.host_id = World::id(2);
    e.peer_port = 9200;
    e.port = kPort;
  }
  record.entry[1].port = 0;
  record.entry[2].port = 22;
  record.entry[3].host_id = 0;
  record.entry[4].peer_port = 0;
  CHECK(parse_ports(record) == std::vector<PortWish>{wish()});
}
