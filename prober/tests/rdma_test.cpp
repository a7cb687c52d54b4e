// RDMA paths beside UDP paths: how a peer's queue pair becomes known, what each of the two says
// when the other is broken, and terms and packets that are to be refused.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/ud_terms.h"
#include "world.h"

using namespace fabric::prober;
using namespace fabric::prober::test;
namespace ring = fabric::ring;

namespace {

World rdma_hosts(std::uint8_t rails = 1, bool clock = false) {
  World w;
  w.rdma = true;
  w.start(1, 111, {2}, rails, 10 * kMs, clock);
  w.start(2, 222, {1}, rails, 10 * kMs, clock);
  return w;
}

// Packets of trains of which host 1 learnt the stamps over a path, in the next 500 ms.
std::size_t train_samples(World& w, std::size_t path) {
  auto& samples = w.hosts[1].records.samples;
  samples.clear();
  w.run(500 * kMs);
  return static_cast<std::size_t>(std::count_if(samples.begin(), samples.end(), [&](const auto& s) {
    constexpr unsigned kTrains =
        3U << ring::kSampleOutTrainShift | 3U << ring::kSampleBackTrainShift;
    return s.path == path && (s.flags & kTrains) != 0;
  }));
}

// The row of the RDMA path beside path `path`.
ring::PathRow rdma_row(const World& w, std::uint8_t host, std::size_t path = 0) {
  const Host& h = w.hosts.at(host);
  return row(h, h.engine->config().udp_paths() + path);
}

// A host of one rail stops, and another hears of it.
void say_byes(World& w, std::uint8_t from, std::uint8_t to) {
  std::vector<Outgoing> out;
  w.hosts[from].engine->send_byes(nullptr, w.now, out);
  REQUIRE(std::count_if(out.begin(), out.end(),
                        [&](const Outgoing& o) { return o.to == World::terms(to, 1); }) == 1);
  for (const Outgoing& o : out) {
    const auto link = static_cast<std::uint16_t>(o.link);
    const std::uint16_t port = link == 1 ? kRocePort : 9200;
    w.inject(to, link, v4(0, from, port), {o.bytes.begin(), o.bytes.end()});
  }
  w.hosts.erase(from);
}

}  // namespace

TEST_CASE("rdma: the terms of a queue pair come back as they were, and nothing else is one") {
  for (const UdTerms terms : {UdTerms{}, UdTerms{2, 0}, UdTerms{0xfffffe, 0xffff}}) {
    CHECK(unpack_ud_terms(pack(terms)) == terms);
    CHECK_FALSE(is_peer_report(pack(terms)));
  }
  CHECK_FALSE(unpack_ud_terms(0));
  CHECK_FALSE(unpack_ud_terms(pack(UdTerms{1, 0})));         // of management
  CHECK_FALSE(unpack_ud_terms(pack(UdTerms{0xffffff, 0})));  // of multicast
  CHECK_FALSE(unpack_ud_terms(
      pack(PeerReport{ReportKind::kPath, 1, 2, Reachability::kWell, Reachability::kWell, 5})));
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t packed = pack(UdTerms{77, 5}) ^ (std::uint64_t{1} << bit);
    const auto terms = unpack_ud_terms(packed);
    if (terms) CHECK(pack(*terms) == packed);
  }
}

TEST_CASE("rdma: an RDMA link has the paths of the link that it stands beside") {
  Config c;
  c.links = {{0, "a", v4(0, 1), false}, {1, "b", v4(1, 1), false}};
  c.paths = {{0, 0, v4(0, 2), 5, true}, {1, 1, v4(1, 2), 5, true}, {2, 1, v4(1, 3), 6}};
  add_rdma_link(c, 1, "mlx5_1", 2);
  add_rdma_link(c, 0, "mlx5_0", 1);
  REQUIRE(c.links.size() == 4);
  CHECK(c.udp_links() == 2);
  CHECK(c.udp_paths() == 3);
  CHECK(c.links[2].device == "mlx5_1");
  CHECK(c.links[2].device_port == 2);
  CHECK(c.links[2].address == v4(1, 1, kRocePort));
  REQUIRE(c.paths.size() == 6);
  CHECK(c.paths[3].peer == v4(1, 2, kRocePort));
  CHECK(c.paths[4].peer == v4(1, 3, kRocePort));
  CHECK(c.paths[5].peer == v4(0, 2, kRocePort));
  for (std::size_t i = 3; i < 6; ++i) {
    CHECK(c.paths[i].index == i);
    CHECK(c.paths[i].clock == (i != 4));  // as the paths beside
  }
  CHECK(c.paths[5].link == 3);
}

TEST_CASE(
    "rdma: queue pairs become known by UDP probes, and both transports measure a round trip") {
  World w = rdma_hosts(2);
  w.run(1000 * kMs);
  for (const auto host : {std::uint8_t{1}, std::uint8_t{2}}) {
    for (const auto path : {std::size_t{0}, std::size_t{1}}) {
      const ring::PathRow rdma = rdma_row(w, host, path);
      CHECK((rdma.flags & ring::kPathRdma) != 0);
      CHECK((rdma.flags & ring::kPathPeerRdma) != 0);
      CHECK((rdma.flags & ring::kPathEstablished) != 0);
      CHECK(rdma.received > 80);
      CHECK(rdma.rtt_last_ns != 0);
      CHECK(rdma.rx_missed == 0);
      CHECK((row(w.hosts.at(host), path).flags & (ring::kPathRdma | ring::kPathPeerRdma)) == 0);
    }
  }
  for (const auto& event : w.hosts[1].records.events) {
    CHECK(event.kind == static_cast<std::uint16_t>(ring::EventKind::kHeard));
  }
}

TEST_CASE("rdma: broken RDMA leaves the UDP path well, and the reverse") {
  for (const bool break_rdma : {true, false}) {
    World w = rdma_hosts();
    w.run(1000 * kMs);
    auto& lost = break_rdma ? w.lost_rdma : w.lost;
    lost = [](auto, auto, auto) { return true; };
    w.run(200 * kMs);
    const ring::PathRow udp = row(w.hosts[1]);
    const ring::PathRow rdma = rdma_row(w, 1);
    CHECK((break_rdma ? rdma : udp).rx_missed >= 3);
    CHECK((break_rdma ? udp : rdma).rx_missed == 0);
    lost = [](auto, auto, auto) { return false; };
    w.run(200 * kMs);
    CHECK(row(w.hosts[1]).rx_missed == 0);
    CHECK(rdma_row(w, 1).rx_missed == 0);
  }
}

TEST_CASE("rdma: one way broken is told by the peer") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  w.lost_rdma = [](std::uint8_t from, auto, auto) { return from == 1; };
  w.run(300 * kMs);
  CHECK(rdma_row(w, 1).tx_missed >= 3);
  CHECK(rdma_row(w, 1).rx_missed == 0);
  CHECK(rdma_row(w, 2).rx_missed >= 3);
}

TEST_CASE("rdma: trains go over RDMA where UDP is broken, one way or both, and only then") {
  for (const bool both : {true, false}) {
    World w = rdma_hosts(2, true);
    for (auto& [number, host] : w.hosts) host.engine->set_clock_messages({{{5, 0, 0, number}}});
    w.run(1000 * kMs);
    CHECK(train_samples(w, 0) > 100);
    CHECK(train_samples(w, 2) == 0);
    CHECK((rdma_row(w, 1).flags & ring::kPathClock) == 0);
    w.lost = [&](std::uint8_t from, auto, std::uint8_t rail) {
      return rail == 0 && (both || from == 1);
    };
    w.run(200 * kMs);
    CHECK(train_samples(w, 2) > 100);
    CHECK((rdma_row(w, 1).flags & ring::kPathClock) != 0);
    const auto& samples = w.hosts[1].records.samples;
    CHECK(std::any_of(samples.begin(), samples.end(),
                      [](const auto& s) { return s.path == 2 && s.clock_message[3] == 2; }));
    CHECK(train_samples(w, 3) == 0);  // the other rail's UDP is well
    w.lost = [](auto, auto, auto) { return false; };
    w.run(200 * kMs);
    CHECK(train_samples(w, 2) == 0);
    CHECK(train_samples(w, 0) > 100);
    CHECK((rdma_row(w, 1).flags & ring::kPathClock) == 0);
  }
}

// Soft-RoCE sends nothing to anybody while 64 packets of its queue pair wait for an address.
TEST_CASE("rdma: a peer that is lost on both transports is searched for once a second") {
  for (const bool says_bye : {false, true}) {
    World w;
    w.rdma = true;
    for (std::uint8_t number = 1; number <= 3; ++number) {
      std::vector<std::uint8_t> peers{1, 2, 3};
      std::erase(peers, number);
      w.start(number, 111 * number, peers, 1, 10 * kMs, true);
    }
    w.run(1000 * kMs);
    const auto dead = [](std::uint8_t from, std::uint8_t to, auto) { return from == 3 || to == 3; };
    if (says_bye) say_byes(w, 3, 1);
    w.lost = w.lost_rdma = dead;
    w.run(500 * kMs);
    CHECK((rdma_row(w, 1, 1).rx_missed > 3) != says_bye);
    w.run(1000 * kMs);
    const auto sent = [&](std::size_t path) { return rdma_row(w, 1, path).sent; };
    REQUIRE(rdma_row(w, 1, 1).address[15] == 3);
    const std::uint64_t living = sent(0);
    const std::uint64_t lost = sent(1);
    w.run(3000 * kMs);
    // In the three seconds that the kernel waits for an address.
    CHECK(sent(1) - lost >= 2);
    CHECK(sent(1) - lost <= 4);
    CHECK(sent(0) - living > 140);
    CHECK(rdma_row(w, 1, 0).rx_missed == 0);
    CHECK(rdma_row(w, 2, 0).rx_missed == 0);
    if (says_bye) continue;
    // It comes back over RDMA alone.
    w.lost_rdma = [](auto, auto, auto) { return false; };
    w.run(1200 * kMs);
    CHECK(rdma_row(w, 1, 1).rx_missed == 0);
    CHECK(sent(1) - lost > 10);
  }
}

TEST_CASE("rdma: a peer that is lost on both transports is at full pace once UDP is heard") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  w.lost = w.lost_rdma = [](auto, auto, auto) { return true; };
  w.run(5000 * kMs);
  w.lost = w.lost_rdma = [](auto, auto, auto) { return false; };
  w.run(200 * kMs);
  CHECK(rdma_row(w, 1).rx_missed == 0);
  CHECK(rdma_row(w, 2).rx_missed == 0);
  const std::uint64_t before = rdma_row(w, 1).sent;
  w.run(500 * kMs);
  CHECK(rdma_row(w, 1).sent - before >= 49);
}

TEST_CASE("rdma: to a peer that told of no queue pair, or of none any more, no trains are due") {
  for (const bool once : {false, true}) {
    World w;
    w.rdma = true;
    w.start(1, 111, {2}, 1, 10 * kMs, true);
    w.rdma = once;
    w.start(2, 222, {1}, 1, 10 * kMs, true);
    w.run(1000 * kMs);
    if (once) {
      w.hosts[2].engine->set_ud_terms(1, {});
      w.run(200 * kMs);
    }
    w.lost = [](auto, auto, auto) { return true; };
    w.run(200 * kMs);
    CHECK(row(w.hosts[1]).rx_missed >= 3);
    CHECK((rdma_row(w, 1).flags & ring::kPathClock) == 0);
    std::vector<Outgoing> out;
    w.hosts[1].engine->take_due(w.now, 0, out);
    CHECK(w.hosts[1].engine->next_due() > w.now);
  }
}

TEST_CASE("rdma: another configuration keeps the trains where they are") {
  World w = rdma_hosts(2, true);
  w.run(1000 * kMs);
  w.lost = [](auto, auto, auto) { return true; };
  w.run(200 * kMs);
  Engine& engine = *w.hosts[1].engine;
  Config same = engine.config();
  engine.configure(std::move(same), w.now, 0);
  CHECK((rdma_row(w, 1).flags & ring::kPathClock) != 0);
}

TEST_CASE("rdma: no trains over RDMA beside a path without trains") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  w.lost = [](auto, auto, auto) { return true; };
  w.run(200 * kMs);
  CHECK(train_samples(w, 1) == 0);
  CHECK((rdma_row(w, 1).flags & ring::kPathClock) == 0);
}

TEST_CASE("rdma: a new queue pair is heard of within a few packets") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  // What the peers send to: the world delivers only to the number that it knows.
  const std::uint64_t before = rdma_row(w, 2).received;
  w.hosts[2].engine->set_ud_terms(1, {4242, 0});
  w.run(200 * kMs);
  const std::uint64_t then = rdma_row(w, 2).received;
  CHECK(then - before < 12);  // they go to the new one, which the world does not know
  w.hosts[2].engine->set_ud_terms(1, World::terms(2, 1));
  w.run(200 * kMs);
  CHECK(rdma_row(w, 2).received - then > 10);
}

TEST_CASE("rdma: to a peer without a queue pair nothing is sent, and nothing is missed") {
  World w;
  w.rdma = true;
  w.start(1, 111, {2}, 1, 10 * kMs);
  w.rdma = false;
  w.start(2, 222, {1}, 1, 10 * kMs);
  w.run(2000 * kMs);
  const ring::PathRow rdma = rdma_row(w, 1);
  CHECK(rdma.sent == 0);
  CHECK(rdma.rx_missed == 0);
  CHECK((rdma.flags & ring::kPathPeerRdma) == 0);
  CHECK(row(w.hosts[1]).received > 150);
}

TEST_CASE("rdma: a peer that restarts is heard again, and one that stops says so") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  w.start(2, 333, {1}, 1, 10 * kMs);
  w.run(500 * kMs);
  CHECK(rdma_row(w, 1).restarts == 1);
  CHECK(rdma_row(w, 1).rx_missed == 0);
  say_byes(w, 2, 1);
  w.run(300 * kMs);
  CHECK((rdma_row(w, 1).flags & ring::kPathGone) != 0);
  CHECK(rdma_row(w, 1).rx_missed == 0);
}

TEST_CASE("rdma: a probe of one transport is refused on the other") {
  World w = rdma_hosts();
  w.run(1000 * kMs);
  REQUIRE_FALSE(w.captured.empty());
  const auto bytes = w.captured[w.captured.size() / 2].second;
  const auto before = w.hosts[2].engine->counters();
  w.inject(2, 1, v4(0, 1, kRocePort), bytes);  // whichever it was sent by
  w.inject(2, 0, v4(0, 1), bytes);
  w.run(10 * kMs);
  const auto after = w.hosts[2].engine->counters();
  const auto auth = static_cast<std::size_t>(ring::Refusal::kAuth);
  const auto replay = static_cast<std::size_t>(ring::Refusal::kReplay);
  CHECK(after.refused[auth] == before.refused[auth] + 1);
  CHECK(after.refused[replay] == before.refused[replay] + 1);
}

TEST_CASE("rdma: a packet without a GID is known by its queue pair and LID") {
  World w = rdma_hosts(2);
  w.run(1000 * kMs);
  const Engine& engine = *w.hosts[1].engine;
  CHECK(engine.find_peer(2, World::terms(2, 2)) == v4(0, 2, kRocePort));
  CHECK(engine.find_peer(3, World::terms(2, 3)) == v4(1, 2, kRocePort));
  CHECK_FALSE(engine.find_peer(3, World::terms(2, 2)));
  CHECK(engine.hears(2, v4(0, 2, kRocePort)));
  CHECK_FALSE(engine.hears(2, v4(0, 9, kRocePort)));
}
