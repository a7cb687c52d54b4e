// A host with the key writes packets in another's name: it knows that host's life, and not what we
// challenge it with. And recordings of the true host's packets, which have old answers.
#include <doctest/doctest.h>

#include "core/engine.h"
#include "world.h"

using namespace fabric::prober;
namespace ring = fabric::ring;
using namespace fabric::prober::test;
using fabric::ring::EventKind;
using fabric::ring::Refusal;

namespace {

constexpr std::uint64_t kFar = PeerIdentity::kFar;

std::uint64_t refusals_of(const Host& h, Refusal why) {
  return h.engine->counters().refused[static_cast<std::size_t>(why)];
}

// To host 1 in the name of host 2, whose life is 222.
Packet in_its_name(std::uint64_t seq) {
  Packet p;
  p.host_id = World::id(2);
  p.incarnation = 222;
  p.seq = seq;
  p.interval_us = 10'000;
  p.response = 0x5eed;
  p.due_time = 1;
  return p;
}

void forge(World& w, const Packet& packet) {
  const WireBytes bytes = encode(packet, ring_of({key(9)}), v4(0, 2), v4(0, 1));
  w.inject(1, 0, v4(0, 2), {bytes.begin(), bytes.end()});
}

// Of the true host 2.
std::uint64_t highest_sent(World& w) { return row(w.hosts.at(2)).sent; }

// The path is as if nothing had been.
void check_well(World& w) {
  const Host& one = w.hosts.at(1);
  const auto before = row(one);
  const auto misses = one.records.of(EventKind::kMiss).size();
  const auto replays = refusals_of(one, Refusal::kReplay);
  w.run(1000 * kMs);
  const auto after = row(one);
  CHECK(after.received - before.received >= 99);
  CHECK(after.received - before.received <= 102);
  CHECK(after.rx_lost == before.rx_lost);
  CHECK(after.tx_lost == before.tx_lost);
  CHECK(after.rx_missed == 0);
  CHECK(after.tx_missed == 0);
  CHECK(after.restarts == 0);
  CHECK((after.flags & ring::kPathGone) == 0);
  CHECK(one.records.of(EventKind::kMiss).size() == misses);
  CHECK(refusals_of(one, Refusal::kReplay) == replays);
}

}  // namespace

TEST_CASE("A sequence far ahead counts for nothing from who cannot answer") {
  World w = two_hosts();
  w.run(2000 * kMs);
  const Host& one = w.hosts.at(1);
  const auto before = row(one);
  const auto unproven = refusals_of(one, Refusal::kUnproven);
  for (const std::uint64_t ahead : {std::uint64_t{64}, kFar - 1, kFar, std::uint64_t{1} << 41}) {
    for (int i = 0; i < 50; ++i) {
      Packet p = in_its_name(highest_sent(w) + ahead + 50);
      if (i % 10 == 0) p.flags |= kWireReport | kWireBye;
      forge(w, p);
      w.run(2 * kMs);
    }
  }
  CHECK(refusals_of(one, Refusal::kUnproven) - unproven == 200);
  CHECK(row(one).rx_lost == before.rx_lost);
  CHECK(row(one).duplicates == 0);
  check_well(w);
  for (const auto& miss : one.records.of(EventKind::kMiss)) CHECK(miss.count == 0);
}

TEST_CASE("Who has seen one answer of the true host still cannot go far ahead") {
  World w = two_hosts();
  std::uint64_t seen = 0;
  w.rewrite[2] = [&seen](Packet& packet) { seen = packet.response; };
  w.run(2000 * kMs);
  const Host& one = w.hosts.at(1);
  Packet p = in_its_name(highest_sent(w) + kFar + 50);
  for (int i = 0; i < 50; ++i) {
    p.response = seen;  // by then all that it sends answers a challenge that was drawn since
    if (i == 0) w.rewrite[2] = [](Packet&) {};
    forge(w, p);
    w.run(2 * kMs);
  }
  CHECK(refusals_of(one, Refusal::kUnproven) >= 50);
  CHECK(row(one).rx_lost == 0);
  check_well(w);
}

TEST_CASE("Sequences that are dragged ahead step by step are the true host's again by itself") {
  World w = two_hosts();
  w.run(2000 * kMs);
  const Host& one = w.hosts.at(1);
  std::uint64_t seq = highest_sent(w);
  const auto before = row(one);
  for (int i = 0; i < 2000; ++i) {
    Packet p = in_its_name(seq += 60);
    if (i % 100 == 99) p.flags |= kWireReport | kWireBye;
    forge(w, p);
    w.run(1 * kMs);
    if (i % 20 == 19) seq = highest_sent(w);  // it sees its own path's sequences go on as fast
  }
  // The true host was heard all the while, and what is counted is bounded by what was forged.
  CHECK(row(one).received - before.received > 150);
  CHECK(row(one).rx_lost - before.rx_lost < std::uint64_t{2000} * 60);
  w.run(50 * kMs);
  check_well(w);
  // Its further losses are counted exactly, at both ends.
  const auto lost = row(one).rx_lost;
  const auto lost_there = row(w.hosts.at(2)).tx_lost;
  int dropped = 0;
  w.lost = [&](auto from, auto, auto) { return from == 2 && ++dropped % 10 == 0; };
  w.run(1000 * kMs);
  w.lost = [](auto, auto, auto) { return false; };
  w.run(500 * kMs);
  CHECK(row(one).rx_lost - lost == static_cast<std::uint64_t>(dropped / 10));
  CHECK(row(w.hosts.at(2)).tx_lost - lost_there == static_cast<std::uint64_t>(dropped / 10));
}

TEST_CASE("A single packet a little ahead delays the true host by no more than that") {
  World w = two_hosts();
  w.run(2000 * kMs);
  Packet p = in_its_name(highest_sent(w) + 60);
  p.flags |= kWireReport | kWireBye;
  forge(w, p);
  w.run(700 * kMs);
  check_well(w);
}

TEST_CASE("A recording of the present life never makes the sequences begin anew") {
  World w = two_hosts();
  w.run(2000 * kMs);
  const Host& two = w.hosts.at(2);
  const auto before = row(two);
  const auto replays = refusals_of(two, Refusal::kReplay);
  std::uint64_t injected = 0;
  // Again and again: each round draws a challenge, and the next has recordings of its answer.
  for (int round = 0; round < 5; ++round) {
    const auto captured = w.captured;
    for (std::size_t i = 0; i + 80 < captured.size(); ++i) {
      w.inject(2, 0, v4(0, 1), captured[i].second);
      ++injected;
      if (i % 20 == 0) w.run(10 * kMs);
    }
    w.run(1000 * kMs);
  }
  CHECK(refusals_of(two, Refusal::kReplay) - replays == injected);
  CHECK(row(two).rx_lost == 0);
  CHECK(row(two).restarts == 0);
  CHECK(two.records.of(EventKind::kMiss).empty());
  CHECK(row(two).received - before.received + 2 >= row(w.hosts.at(1)).sent - before.received);
}

TEST_CASE("The true host may jump: it answers, and what it did not send is lost") {
  for (const std::uint64_t jump : {std::uint64_t{100}, kFar, 5 * kFar}) {
    CAPTURE(jump);
    World w = two_hosts();
    w.run(2000 * kMs);
    w.rewrite[2] = [jump](Packet& packet) { packet.seq += jump; };
    w.run(100 * kMs);
    check_well(w);
    CHECK(row(w.hosts.at(1)).rx_lost >= jump);
    CHECK(row(w.hosts.at(1)).rx_lost <= jump + 4);
    CHECK(row(w.hosts.at(1)).rx_lost - jump <= refusals_of(w.hosts.at(1), Refusal::kUnproven));
  }
}

TEST_CASE("A peer whose sequences begin anew in the same life is heard once it has answered") {
  World w = two_hosts();
  w.run(5000 * kMs);
  w.rewrite[2] = [](Packet& packet) { packet.seq -= 400; };
  w.run(100 * kMs);
  const Host& one = w.hosts.at(1);
  CHECK(row(one).rx_lost == 0);
  check_well(w);
}

TEST_CASE("What another said in the host's name of losses and due times does not stand") {
  World w = two_hosts();
  w.run(2000 * kMs);
  const Host& one = w.hosts.at(1);
  for (int i = 0; i < 100; ++i) {
    Packet p = in_its_name(highest_sent(w) + 1);
    p.peer_incarnation = 111;
    p.rx_max = row(one).sent;
    p.rx_lost = i % 2 == 0 ? 0xffffffffU : 5;
    p.due_time = std::int64_t{1} << 61;
    forge(w, p);
    w.run(5 * kMs);
    CHECK(row(one).tx_lost <= row(one).sent);
  }
  w.run(200 * kMs);
  check_well(w);
  CHECK(row(one).said_ns <= static_cast<std::uint64_t>(w.now));
  CHECK(row(one).due_ns <= static_cast<std::uint64_t>(w.now + 20 * kMs));
}
