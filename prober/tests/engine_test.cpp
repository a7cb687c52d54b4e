#include "core/engine.h"

#include <doctest/doctest.h>

#include "core/stamp_share.h"
#include "world.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;
using fabric::ring::Refusal;

namespace {

std::uint64_t refused(const Host& h, Refusal why) {
  return h.engine->counters().refused[static_cast<std::size_t>(why)];
}

}  // namespace

TEST_CASE("Two hosts prove themselves and hear each other; RTT is twice the delay") {
  World w = two_hosts();
  w.run(2000 * kMs);
  for (auto& [n, h] : w.hosts) {
    const auto heard = h.records.of(EventKind::kHeard);
    REQUIRE(heard.size() == 1);
    CHECK((heard[0].flags & ring::kFlagFirst) != 0);
    CHECK(h.records.of(EventKind::kMiss).empty());
    CHECK(h.records.of(EventKind::kPeerRestart).empty());
    CHECK(h.records.of(EventKind::kStall).empty());
    const auto r = row(h);
    CHECK(r.rtt_last_ns == 60'000);
    CHECK(r.rtt_min_ns == 60'000);
    CHECK(r.received > 190);
    CHECK(r.rx_lost == 0);
    CHECK(r.tx_lost == 0);
    CHECK(r.rx_bitmap == ~std::uint64_t{0});
    CHECK(r.tx_bitmap == ~std::uint64_t{0});
    CHECK(refused(h, Refusal::kReplay) == 0);
    CHECK(refused(h, Refusal::kUnproven) <= 3);
  }
}

TEST_CASE("Trains: all three positions are sampled, both ways") {
  World w = two_hosts(10 * kMs, true);
  w.run(1000 * kMs);
  int positions[4] = {};
  for (const auto& s : w.hosts[1].records.samples) {
    if ((s.flags & ring::kSampleHasOut) == 0 || (s.flags & ring::kSampleHasBack) == 0) continue;
    CHECK(s.t2 - s.t1 == w.delay);
    CHECK(s.t4 - s.t3 == w.delay);
    ++positions[(s.flags >> ring::kSampleOutTrainShift) & 3];
  }
  CHECK(positions[0] > 80);  // the single packets beside them
  for (int i = 1; i <= 3; ++i) CHECK(positions[i] > 80);
  CHECK(row(w.hosts[1]).interval_ns == 10 * kMs);
}

TEST_CASE("Messages of the clock service go with the packets of paths with trains, in turn") {
  for (const bool clock : {true, false}) {
    World w = two_hosts(10 * kMs, clock);
    const std::vector<ClockMessage> messages{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
    w.hosts.at(1).engine->set_clock_messages(messages);
    w.run(500 * kMs);
    std::map<std::uint64_t, int> heard;
    for (const auto& s : w.hosts.at(2).records.samples) {
      if (s.clock_message[0] == 0) continue;
      ++heard[s.clock_message[0]];
      CHECK(s.clock_message[3] == s.clock_message[0] + 3);
    }
    CHECK(heard.size() == (clock ? 3 : 0));
    for (const auto& [first, count] : heard) CHECK(count > 30);
    for (const auto& s : w.hosts.at(1).records.samples) CHECK(s.clock_message[0] == 0);
    w.hosts.at(1).engine->set_clock_messages({});
    w.run(100 * kMs);
    const auto before = w.hosts.at(2).records.samples.size();
    w.run(100 * kMs);
    const auto& samples = w.hosts.at(2).records.samples;
    CHECK(samples.size() > before);
    for (std::size_t i = before; i < samples.size(); ++i) CHECK(samples[i].clock_message[0] == 0);
  }
}

TEST_CASE("A link's own message takes its turn on the paths of that link") {
  World w = two_hosts(10 * kMs, true);
  const std::vector<ClockMessage> messages{{1}, {2}};
  for (const std::size_t link : {std::size_t{0}, std::size_t{1}}) {
    std::vector<ClockMessage> links(2);
    links[link] = {9};
    w.hosts.at(1).engine->set_clock_messages(messages, links);
    w.run(100 * kMs);
    std::map<std::uint64_t, int> heard;
    auto& samples = w.hosts.at(2).records.samples;
    samples.clear();
    w.run(500 * kMs);
    for (const auto& s : samples) ++heard[s.clock_message[0]];
    heard.erase(0);
    CHECK(heard.size() == (link == 0 ? 3 : 2));
    for (const auto& [first, count] : heard) CHECK(count > 30);
  }
}

TEST_CASE("Stamps of the NIC and of the kernel are never told or sampled together") {
  struct Case {
    bool sent_by_nic, arrived_by_nic;
    bool tells_sent, tells_arrived;
  };
  for (const Case c : {Case{true, true, true, true}, Case{false, false, true, true},
                       Case{true, false, true, false}, Case{false, true, false, true}}) {
    Path path({0, 0, v4(0, 2), 7, true, false, 0}, 10 * kMs, [] { return 1; });
    Records records;
    const StallLog stalls;
    Packet hello;
    hello.incarnation = 9;
    hello.response = 1;
    hello.seq = 1;
    hello.flags = 1;
    const Packet first = path.next_packet(1, kMs, 5);
    path.on_transmit_stamp(first.seq, 1'000, c.sent_by_nic, kMs);
    path.on_packet(hello, 0, {2'000, c.arrived_by_nic, kMs}, 5, stalls, records);
    const Packet told = path.next_packet(2, 2 * kMs, 5);
    CHECK((told.tx_ref_stamp != 0) == c.tells_sent);
    CHECK((told.rx_ref_stamp != 0) == c.tells_arrived);
    CHECK(((told.flags & kWireHwStamps) != 0) == (c.sent_by_nic || c.arrived_by_nic));
    Packet answer = hello;
    answer.seq = 2;
    answer.peer_incarnation = 5;
    answer.rx_ref_seq = first.seq;
    answer.rx_ref_stamp = 3'000;
    answer.tx_ref_seq = 1;
    answer.tx_ref_stamp = 1'500;
    records.samples.clear();
    path.on_packet(answer, 0, {4'000, c.arrived_by_nic, 3 * kMs}, 5, stalls, records);
    REQUIRE(records.samples.size() == 1);
    const auto flags = records.samples[0].flags;
    CHECK(((flags & ring::kSampleHasOut) != 0) == c.tells_sent);
    CHECK(((flags & ring::kSampleHasBack) != 0) == c.tells_arrived);
    CHECK(((flags & ring::kSampleHwLocal) != 0) == (c.sent_by_nic || c.arrived_by_nic));
  }
}

TEST_CASE(
    "A NIC that leaves out a quarter of the stamps is found out, one that misses a few is not") {
  for (const int period : {1, 3, 5, 40}) {
    StampShare share;
    for (int i = 0; i < 1024; ++i) share.add(i % period == 0);
    CHECK(share.low() == (period > 1));
    for (int i = 0; i < 1024; ++i) share.add(i % period != 0 || period == 1);
    CHECK(share.low() == (period == 3));
  }
}

TEST_CASE("A packet that left at a time that no clock can say has left") {
  Path path({0, 0, v4(0, 2), 7, true, false, 0}, 10 * kMs, [] { return 1; });
  const Packet packet = path.next_packet(1, kMs, 5);
  path.on_transmit_stamp(packet.seq, 0, false, kMs);
  CHECK(path.next_packet(2, 2 * kMs, 5).tx_ref_stamp == 0);
  path.on_transmit_stamp(packet.seq, 77, false, kMs);
  bool told = false;
  for (int i = 0; i < 8; ++i) told = told || path.next_packet(0, 3 * kMs, 5).tx_ref_stamp == 77;
  CHECK(told);
}

TEST_CASE("A train goes with a wake up to 2 ms before it is due, none is lost by that") {
  World w = two_hosts(10 * kMs, true);
  w.run(1000 * kMs);  // it has answered
  Engine& engine = *w.hosts.at(1).engine;
  const auto trains = [&](Nanos at) {
    std::vector<Outgoing> out;
    engine.take_due(at, 0, out);
    Packet packet;
    return std::count_if(out.begin(), out.end(), [&](const Outgoing& o) {
      CHECK(decode_unauthenticated(o.bytes, packet) == WireError::kNone);
      return (packet.flags & kWireTrainMask) != 0;
    });
  };
  // One peer: the single packet is due with the train.
  const Nanos due = engine.next_due() + engine.slack() / 2;
  CHECK(trains(due - 2 * kMs - 1) == 0);
  CHECK(trains(due - 2 * kMs) == 3);
  CHECK(trains(due - engine.slack()) == 0);
  CHECK(engine.next_due() == due - engine.slack() / 2);  // single packets keep their time
  // Of a loop that wakes every 2 ms, each train finds one.
  Nanos now = due;
  std::ptrdiff_t sent = 0;
  for (; now < due + 1000 * kMs; now += 2 * kMs) sent += trains(now);
  CHECK(sent == 300);
}

TEST_CASE("An address that never answered as its host gets a packet a second, and no trains") {
  World w = two_hosts(10 * kMs, true);
  // Host 1 hears one packet of host 2, which its answer proves there, and nothing more.
  std::array<int, 3> sent{};
  w.lost = [&](auto from, auto, auto) {
    const int number = sent.at(from)++;
    return from == 1 ? number < 4 : number > 0;  // a train and a single one
  };
  w.run(5000 * kMs);
  const std::uint64_t first = row(w.hosts[1]).sent;
  CHECK(first >= 32);
  CHECK(first <= 40);
  w.run(10'000 * kMs);
  CHECK(row(w.hosts[1]).sent - first >= 9);
  CHECK(row(w.hosts[1]).sent - first <= 11);
  CHECK((row(w.hosts[1]).flags & ring::kPathEstablished) == 0);
  // Host 2 hears it, and knows when the next packet will come.
  CHECK((row(w.hosts[2]).flags & ring::kPathEstablished) != 0);
  CHECK(w.hosts[2].records.misses(false).empty());
  w.lost = [](auto, auto, auto) { return false; };
  w.run(2200 * kMs);
  CHECK((row(w.hosts[1]).flags & ring::kPathEstablished) != 0);
  const std::uint64_t before = row(w.hosts[1]).sent;
  w.run(1000 * kMs);
  CHECK(row(w.hosts[1]).sent - before > 390);  // singles and trains
  CHECK(w.hosts[2].records.misses(false).empty());
}

TEST_CASE("An address that answers as another host than the one that named it proves nothing") {
  World w;  // host 1 was told that host 2's address is host 3's
  w.start(1, 1, {2}, 1, 10 * kMs);
  w.start(2, 2, {1}, 1, 10 * kMs);
  Config told = w.hosts[1].engine->config();
  told.paths[0].host_id = World::id(3);
  w.hosts[1].engine->configure(told, w.now, 0);
  w.run(5000 * kMs);
  CHECK((row(w.hosts[1]).flags & ring::kPathEstablished) == 0);
  CHECK(row(w.hosts[1]).last_heard_ns == 0);
  CHECK(row(w.hosts[1]).sent <= 40);
  CHECK(refused(w.hosts[1], Refusal::kUnknownPath) > 0);
}

TEST_CASE("Black hole one way: rx misses there, tx misses here, both exact and prompt") {
  World w = two_hosts();
  w.run(1000 * kMs);
  const Nanos cut = w.now;
  w.lost = [](auto from, auto, auto) { return from == 1; };
  w.run(100 * kMs);
  const auto rx = w.hosts[2].records.misses(false);
  REQUIRE(rx.size() >= 8);
  for (std::size_t i = 0; i < rx.size(); ++i) {
    CHECK(rx[i].count == i + 1);
    CHECK((rx[i].flags & ring::kFlagInconclusive) == 0);
    CHECK(rx[i].value[0] == 10 * kMs);
  }
  // The last packet came up to an interval before the cut; the first miss is 1.5 intervals after
  // it.
  CHECK(static_cast<Nanos>(rx[2].mono_ns) - cut <= 38 * kMs);
  for (std::size_t i = 1; i < rx.size(); ++i) {
    const auto step = static_cast<Nanos>(rx[i].mono_ns - rx[i - 1].mono_ns);
    CHECK(step >= 7 * kMs);
    CHECK(step <= 13 * kMs);
  }
  const auto tx = w.hosts[1].records.misses(true);
  REQUIRE(tx.size() >= 7);
  CHECK(tx[0].mono_ns - rx[0].mono_ns <= 3 * kMs);  // reported at once
  CHECK((tx[0].flags & ring::kFlagInconclusive) == 0);
  CHECK(w.hosts[1].records.misses(false).empty());
  CHECK(w.hosts[2].records.misses(true).empty());

  w.lost = [](auto, auto, auto) { return false; };
  w.run(1000 * kMs);
  CHECK(w.hosts[2].records.of(EventKind::kHeard).size() == 2);
  const auto heard = w.hosts[1].records.of(EventKind::kHeard);
  REQUIRE(heard.size() == 2);
  CHECK((heard[1].flags & ring::kFlagTx) != 0);
  const auto gone = row(w.hosts[2]).rx_lost;
  CHECK(gone >= 10);
  CHECK(row(w.hosts[1]).tx_lost == gone);  // each side knows the other's loss
  CHECK(row(w.hosts[1]).tx_missed == 0);
  CHECK(row(w.hosts[2]).rx_missed == 0);
}

TEST_CASE("Random loss is counted exactly at both ends") {
  World w = two_hosts();
  w.run(500 * kMs);
  std::mt19937_64 rng(4);
  std::uint64_t dropped = 0;
  w.lost = [&](auto from, auto, auto) {
    const bool drop = from == 1 && rng() % 10 == 0;
    dropped += drop ? 1 : 0;
    return drop;
  };
  w.run(5000 * kMs);
  w.lost = [](auto, auto, auto) { return false; };
  w.run(1000 * kMs);
  CHECK(dropped > 20);
  CHECK(row(w.hosts[2]).rx_lost == dropped);
  CHECK(row(w.hosts[1]).tx_lost == dropped);
}

TEST_CASE("A restarted peer is a restart, not a replay") {
  World w = two_hosts();
  w.run(1000 * kMs);
  w.start(2, 333, {1}, 1, 10 * kMs);
  w.run(1000 * kMs);
  const Host& one = w.hosts[1];
  const auto restarts = one.records.of(EventKind::kPeerRestart);
  REQUIRE(restarts.size() == 1);
  CHECK(restarts[0].value[0] == 222);
  CHECK(restarts[0].value[1] == 333);
  CHECK(refused(one, Refusal::kReplay) == 0);
  CHECK(one.records.of(EventKind::kMiss).size() <= 1);  // back within about two intervals
  CHECK(row(one).peer_incarnation == 333);
  CHECK(row(one).restarts == 1);
  CHECK(row(one).rx_lost == 0);
  CHECK(row(one).tx_lost == 0);
}

TEST_CASE("An old capture changes nothing, of whatever life of whichever side") {
  World w = two_hosts();
  w.run(500 * kMs);
  const auto first_life = w.captured;
  REQUIRE(first_life.size() > 40);
  w.start(1, 112, {2}, 1, 10 * kMs);  // both restart
  w.start(2, 223, {1}, 1, 10 * kMs);
  w.run(500 * kMs);
  const Host& two = w.hosts[2];
  const auto before = row(two);
  const std::size_t events = two.records.events.size();
  for (const auto& [t, bytes] : first_life) w.inject(2, 0, v4(0, 1), bytes);
  const auto second_life = w.captured;
  for (std::size_t i = first_life.size(); i < second_life.size(); ++i) {
    w.inject(2, 0, v4(0, 1), second_life[i].second);
  }
  w.run(200 * kMs);
  CHECK(row(two).peer_incarnation == 112);
  CHECK(row(two).restarts == before.restarts);
  CHECK(two.records.events.size() == events);
  CHECK(row(two).received - before.received <= 21);
  CHECK(refused(two, Refusal::kReplay) + refused(two, Refusal::kUnproven) >=
        second_life.size() - 2);
}

TEST_CASE("A capture of an ended life within our own is a replay") {
  World w = two_hosts();
  w.run(500 * kMs);
  const auto first_life = w.captured;
  w.start(1, 112, {2}, 1, 10 * kMs);
  w.run(500 * kMs);
  const auto replays = refused(w.hosts[2], Refusal::kReplay);
  CHECK(replays == 0);
  for (const auto& [t, bytes] : first_life) w.inject(2, 0, v4(0, 1), bytes);
  w.run(100 * kMs);
  CHECK(refused(w.hosts[2], Refusal::kReplay) == first_life.size());
  CHECK(row(w.hosts[2]).peer_incarnation == 112);
}

TEST_CASE("Refused by reason: garbage, wrong key, unknown source, wrong host") {
  World w = two_hosts();
  w.run(500 * kMs);
  Host& one = w.hosts[1];
  const auto before = row(one);
  const std::size_t events = one.records.events.size();
  Packet p;
  p.host_id = World::id(2);
  p.incarnation = 222;
  p.seq = 1'000'000;
  const auto send = [&](const Keyring& keys, const Address& source) {
    const WireBytes b = encode(p, keys, source, v4(0, 1));
    w.inject(1, 0, source, {b.begin(), b.end()});
  };
  w.inject(1, 0, v4(0, 2), {1, 2, 3});
  w.inject(1, 0, v4(0, 2), std::vector<std::uint8_t>(300, 0x55));
  send(ring_of({key(8)}), v4(0, 2));
  send(ring_of({key(9)}), v4(0, 77));
  p.host_id = 5;
  send(ring_of({key(9)}), v4(0, 2));
  w.run(100 * kMs);
  CHECK(refused(one, Refusal::kShort) == 1);
  CHECK(refused(one, Refusal::kMagic) == 1);
  CHECK(refused(one, Refusal::kAuth) == 1);
  CHECK(refused(one, Refusal::kUnknownPath) == 2);
  CHECK(one.records.events.size() == events);
  CHECK(row(one).peer_incarnation == before.peer_incarnation);
  CHECK(row(one).rx_missed == 0);
}

TEST_CASE("Four hosts, two rails: a link's packets come evenly, one rail's cut touches no other") {
  World w;
  for (std::uint8_t h = 1; h <= 4; ++h) {
    std::vector<std::uint8_t> peers;
    for (std::uint8_t p = 1; p <= 4; ++p) {
      if (p != h) peers.push_back(p);
    }
    w.start(h, 100U + h, peers, 2, 10 * kMs);
  }
  w.run(1000 * kMs);
  for (auto& [n, h] : w.hosts) {
    CHECK(h.records.of(EventKind::kMiss).empty());
    CHECK(h.engine->path_count() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(row(h, i).interval_ns == 30 * kMs);
  }
  const Nanos cut = w.now;
  w.lost = [](auto from, auto to, auto rail) { return rail == 1 && (from == 3 || to == 3); };
  w.run(200 * kMs);
  for (auto& [n, h] : w.hosts) {
    std::map<std::uint16_t, int> by_path;
    for (const auto& m : h.records.of(EventKind::kMiss)) {
      CHECK(m.link == 1);
      ++by_path[m.path];
    }
    CHECK(by_path.size() == (n == 3 ? 3 : 1));
  }
  // Three misses on the link, of three peers, come well before three on any one path.
  const auto misses = w.hosts[3].records.misses(false);
  REQUIRE(misses.size() >= 3);
  CHECK(static_cast<Nanos>(misses[2].mono_ns) - cut <= 50 * kMs);
}

TEST_CASE("A new configuration keeps the state of paths that stay") {
  World w = two_hosts();
  w.run(500 * kMs);
  Host& one = w.hosts[1];
  const auto before = row(one);
  Config c = one.engine->config();
  c.paths.push_back({0, 0, v4(0, 9), World::id(9), false});
  c.paths[0].index = 1;
  std::swap(c.paths[0], c.paths[1]);
  c.paths[0].index = 0;
  one.engine->configure(c, w.now, 0);
  CHECK(row(one, 0).received == 0);
  CHECK(row(one, 1).received == before.received);
  CHECK(row(one, 1).peer_incarnation == 222);
  w.run(300 * kMs);
  CHECK(one.records.of(EventKind::kPeerRestart).empty());
  CHECK(row(one, 1).received > before.received);
  for (const auto& m : one.records.of(EventKind::kMiss)) CHECK(m.path == 1);
}
