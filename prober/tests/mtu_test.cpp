// Large packets: the wire, one path's rounds, and two engines with a port between them that drops
// what is too large.
#include "core/mtu.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/engine.h"
#include "util.h"

using namespace fabric::prober;
using mtu::Kind;

namespace {

constexpr Nanos kSecond = 1'000'000'000;

Address at(std::uint8_t host) {
  Address a;
  a.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  a.port = 9200;
  return a;
}

Keyring ring() {
  Key key{};
  key.fill(5);
  return Keyring(std::span(&key, 1));
}

// Hosts 1 to `count`, each probing all others on one link.
struct Fabric {
  std::vector<std::unique_ptr<Engine>> engines;
  Nanos now = 10 * kSecond;
  test::Records sink;
  int old = 0;  // a host whose prober knows nothing of large packets
  std::size_t large_sent = 0;
  // Whether a packet of so many bytes gets from one host to another.
  std::function<bool(int from, int to, std::size_t size)> passes = [](int, int, std::size_t) {
    return true;
  };

  explicit Fabric(int count) {
    for (int i = 1; i <= count; ++i) {
      auto dice = std::make_shared<std::uint64_t>(static_cast<std::uint64_t>(i) * 77);
      engines.push_back(std::make_unique<Engine>(static_cast<std::uint64_t>(i) * 1000,
                                                 [dice] { return *dice += 0x9e3779b97f4a7c15U; }));
      Config config;
      config.host_id = static_cast<std::uint32_t>(i);
      config.links.push_back({0, "rail0", at(static_cast<std::uint8_t>(i)), false});
      for (int j = 1; j <= count; ++j) {
        if (j == i) continue;
        PathConfig path;
        path.index = static_cast<std::uint16_t>(config.paths.size());
        path.peer = at(static_cast<std::uint8_t>(j));
        path.host_id = static_cast<std::uint32_t>(j);
        config.paths.push_back(path);
      }
      engines.back()->set_keys(ring());
      engines.back()->configure(config, now, 0);
      engines.back()->set_mtu_limit(0, 8972);
    }
  }

  void deliver(int from, const Address& to, std::span<const std::uint8_t> bytes,
               std::size_t length) {
    const int host = to.ip[15];
    if (!passes(from, host, length)) return;
    const Address source = at(static_cast<std::uint8_t>(from));
    WireBytes older{};
    if (Packet packet; from == old && decode_unauthenticated(bytes, packet) == WireError::kNone) {
      packet.flags &= static_cast<std::uint8_t>(~kWireMtu);
      older = encode(packet, ring(), source, to);
      bytes = older;
    }
    const Datagram datagram{source, bytes, length, {0, false, now}};
    engines[static_cast<std::size_t>(host - 1)]->on_datagrams(0, {&datagram, 1}, sink);
  }

  void answer() {
    for (int from = 1; from <= static_cast<int>(engines.size()); ++from) {
      std::vector<mtu::Outgoing> out;
      engines[static_cast<std::size_t>(from - 1)]->take_mtu_answers(out);
      for (const auto& o : out) deliver(from, o.destination, o.bytes, o.size);
    }
  }

  void run(Nanos time, std::uint32_t most = 8972) {
    for (const Nanos end = now + time; now < end; now += 10'000'000) {
      for (int from = 1; from <= static_cast<int>(engines.size()); ++from) {
        Engine& engine = *engines[static_cast<std::size_t>(from - 1)];
        std::vector<Outgoing> out;
        engine.judge(now, sink);
        engine.take_due(now, 0, out);
        for (const auto& o : out) deliver(from, o.destination, o.bytes, o.bytes.size());
        std::vector<mtu::Outgoing> large;
        if (const auto path = engine.mtu_due(now)) engine.begin_mtu(*path, most, now, large);
        for (const auto& o : large) {
          large_sent += o.size > 600 ? 1 : 0;
          deliver(from, o.destination, o.bytes, o.size);
        }
        answer();
      }
    }
  }

  const mtu::Path& path(int host, std::size_t index) {
    return engines[static_cast<std::size_t>(host - 1)]->mtu_of(index);
  }
};

}  // namespace

TEST_CASE("The wire of large packets: what was encoded is decoded, and nothing else") {
  const mtu::Packet packet{Kind::kLarge, 8972, 7, 1472, 3, 4, 5};
  const auto bytes = mtu::encode(packet, ring(), at(1), at(2));
  CHECK(mtu::decode(bytes, 1472, ring(), at(1), at(2)) == packet);
  CHECK_FALSE(mtu::decode(bytes, 1471, ring(), at(1), at(2)));
  CHECK_FALSE(mtu::decode(bytes, 1472, ring(), at(2), at(1)));
  CHECK_FALSE(mtu::decode(std::span(bytes).first(mtu::kSize - 1), 1472, ring(), at(1), at(2)));
  for (std::size_t i = 0; i < mtu::kSize; ++i) {
    auto changed = bytes;
    changed[i] ^= 0x10;
    CHECK_FALSE(mtu::decode(changed, 1472, ring(), at(1), at(2)));
  }
}

TEST_CASE("Healthy paths pass their large packets, each link once in five seconds") {
  Fabric fabric(4);
  fabric.run(60 * kSecond);
  for (int host = 1; host <= 4; ++host) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& path = fabric.path(host, i);
      CHECK(path.tx().size == 8972);
      CHECK(path.tx().missing == 0);
      CHECK(path.rx().missing == 0);
      CHECK(path.tx().passed != 0);
      CHECK(path.rx().passed != 0);
    }
  }
  CHECK(fabric.large_sent <= 4 * 13);
  CHECK(fabric.engines[0]->counters().refused[3] == 0);
}

TEST_CASE("A port that drops large packets is seen by both of its sides, by direction") {
  Fabric fabric(4);
  fabric.run(30 * kSecond);
  fabric.passes = [](int from, int, std::size_t size) { return from != 1 || size <= 1472; };
  fabric.run(40 * kSecond);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(fabric.path(1, i).tx().missing >= 3);
    CHECK(fabric.path(1, i).rx().missing == 0);
  }
  for (int host = 2; host <= 4; ++host) {
    CHECK(fabric.path(host, 0).rx().missing >= 3);
    CHECK(fabric.path(host, 0).tx().missing == 0);
    CHECK(fabric.path(host, 1).rx().missing == 0);
  }
  fabric.passes = [](int, int, std::size_t) { return true; };
  fabric.run(20 * kSecond);
  for (std::size_t i = 0; i < 3; ++i) CHECK(fabric.path(1, i).tx().missing == 0);
  for (int host = 2; host <= 4; ++host) CHECK(fabric.path(host, 0).rx().missing == 0);
}

TEST_CASE("What drops all packets is no matter of their size") {
  Fabric fabric(3);
  fabric.run(30 * kSecond);
  fabric.passes = [](int from, int to, std::size_t) { return from != 1 && to != 1; };
  fabric.run(60 * kSecond);
  for (int host = 1; host <= 3; ++host) {
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(fabric.path(host, i).tx().missing <= 1);
      CHECK(fabric.path(host, i).rx().missing <= 1);
    }
  }
}

TEST_CASE("Of two MTUs the smaller one is asked for; and what a router said counts") {
  Fabric fabric(3);
  fabric.engines[1]->set_mtu_limit(0, 1472);
  fabric.passes = [](int, int to, std::size_t size) { return to != 2 || size <= 1472; };
  fabric.run(60 * kSecond);
  CHECK(fabric.path(1, 0).tx().size == 1472);
  CHECK(fabric.path(1, 1).tx().size == 8972);
  CHECK(fabric.path(1, 0).tx().missing == 0);
  fabric.passes = [](int, int, std::size_t size) { return size <= 4000; };
  Fabric routed(3);
  routed.passes = fabric.passes;
  routed.run(60 * kSecond, 4000);
  CHECK(routed.path(1, 0).tx().size == 4000);
  CHECK(routed.path(1, 0).tx().missing == 0);
}

TEST_CASE("A peer of an older version is sent none") {
  Fabric fabric(3);
  fabric.old = 2;
  fabric.run(60 * kSecond);
  CHECK(fabric.path(1, 0).tx().size == 0);
  CHECK(fabric.path(1, 1).tx().passed != 0);
  CHECK(fabric.path(3, 1).tx().size == 0);
}

TEST_CASE("A captured packet of a round counts once") {
  mtu::Path path;
  const mtu::Packet small{Kind::kSmall, 8972, 2, 8972, 9, 1, 4};
  const mtu::Packet large{Kind::kLarge, 8972, 2, 8972, 9, 1, 4};
  CHECK(path.take(small, kSecond));
  CHECK_FALSE(path.take(small, kSecond));
  CHECK(path.take(large, kSecond));
  CHECK_FALSE(path.take(large, 2 * kSecond));
  CHECK_FALSE(path.take(small, 2 * kSecond));
  path.expire(9 * kSecond);
  CHECK(path.rx().missing == 0);
}
